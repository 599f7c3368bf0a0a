"""What the benchmarks share: the machine's description, interleaved timing, and tables."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import statistics
import subprocess
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

console = Console(width=120)
ROOT = Path(__file__).parent.parent


def describe_machine(*packages: str) -> str:
    """Processor, cores, load, versions and commit: what a figure must be read with."""
    name = platform.processor() or platform.machine()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        models = [line.split(":", 1)[1].strip() for line in cpuinfo.read_text().splitlines() if "model name" in line]
        name = models[0] if models else name
    versions = ", ".join(f"{package} {importlib.metadata.version(package)}" for package in packages)
    commit = subprocess.run(
        ["git", "-C", ROOT, "describe", "--always", "--dirty"], capture_output=True, text=True, check=False
    )
    load = ", ".join(f"{x:.1f}" for x in os.getloadavg())
    return (
        f"{name}, {len(os.sched_getaffinity(0))} processors, load {load}; Python {platform.python_version()}, "
        f"{versions}; commit {commit.stdout.strip() or 'unknown'}"
    )


def interleave(subjects: Mapping[str, Callable[[], float]], rounds: int, warm_up: int = 1) -> dict[str, list[float]]:
    """Calls each subject in turn, round after round; each returns its own figure of one run."""
    figures: dict[str, list[float]] = {name: [] for name in subjects}
    for turn in range(warm_up + rounds):
        for name, subject in subjects.items():
            figure = subject()
            if turn >= warm_up:
                figures[name].append(figure)
    return figures


def median_ratio(numerator: Sequence[float], denominator: Sequence[float]) -> float:
    """Median of the ratios round by round, in which the machine's drift cancels."""
    return statistics.median(a / b for a, b in zip(numerator, denominator, strict=True))


def spread(figures: Sequence[float], digits: int = 1) -> str:
    """Median and range."""
    return f"{statistics.median(figures):.{digits}f} ({min(figures):.{digits}f} to {max(figures):.{digits}f})"


def table(title: str, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Prints a table; all columns but the first are aligned right."""
    drawn = Table(title=title, title_justify="left", box=None, pad_edge=False, padding=(0, 3, 0, 0))
    for i, column in enumerate(columns):
        drawn.add_column(column, justify="left" if i == 0 else "right")
    for row in rows:
        drawn.add_row(*[str(cell) for cell in row])
    console.print(drawn)
    console.print()
