"""Runtimes of recorded programs: the native executor, and the NumPy interpreter that is its oracle."""
