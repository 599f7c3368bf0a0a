"""Policies choose, for each step, which drafter proposes and how much; each is itself a drafter."""
