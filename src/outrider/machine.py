"""What a measurement or a certificate must be read with: the processor and the version."""

from __future__ import annotations

import os
import platform
from importlib import metadata
from pathlib import Path


def processor() -> str:
    """Its name, as far as the system tells."""
    try:
        lines = Path("/proc/cpuinfo").read_text("utf-8").splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def processors() -> int:
    """How many of them this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def memory() -> int | None:
    """Bytes that can be had without anything being swapped out; None if the system does not tell."""
    try:
        lines = Path("/proc/meminfo").read_text("utf-8").splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")), None)


def version() -> str:
    """Outrider's own."""
    try:
        return metadata.version("outrider")
    except metadata.PackageNotFoundError:
        return "(not installed)"
