"""How many threads to use: what this process may really use, not what the machine has."""

from __future__ import annotations

import math
import os
from pathlib import Path, PurePath

from outrider.errors import RequestError

_CGROUP, _MEMBERSHIP = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")


def default_threads() -> int:
    """The number in OUTRIDER_THREADS, or else the processors of this process's affinity, capped by its cgroup quota."""
    text = os.environ.get("OUTRIDER_THREADS")
    if text is not None:
        if not text.isascii() or not text.isdigit():
            raise RequestError(f"OUTRIDER_THREADS is {text!r}, expected a whole number of at least 1")
        return checked_threads(int(text), "OUTRIDER_THREADS")
    affinity = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota = _cgroup_quota(_CGROUP, _MEMBERSHIP)
    return max(1, min(affinity, math.ceil(quota)) if quota is not None else affinity)


def checked_threads(threads: int, name: str = "threads") -> int:
    """`threads` if it is a possible number; RequestError names it otherwise."""
    if not 1 <= threads <= 1024:
        raise RequestError(f"{name} is {threads}, expected 1 to 1024")
    return threads


def _cgroup_quota(root: Path, membership: Path) -> float | None:
    """Processors' worth of time that the process's control group (version 2, or 1) and all above it allow; None where
    there is no limit.

    In a container the path of the group may be that of the machine: what is not below `root` limits nothing.
    """
    version_1 = root / "cpu"
    groups = {root, version_1}
    try:
        for line in membership.read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            own = PurePath(path.lstrip("/"))
            if (not controllers or "cpu" in controllers.split(",")) and ".." not in own.parts:
                mount = version_1 if controllers else root
                groups |= {mount / group for group in (own, *own.parents)}
    except (OSError, ValueError):
        pass
    quotas = [_quota_2(group) or _quota_1(group) for group in groups]
    return min((quota for quota in quotas if quota), default=None)


def _quota_2(group: Path) -> float | None:
    try:
        quota, period = (group / "cpu.max").read_text().split()
        return None if quota == "max" else int(quota) / int(period)
    except (OSError, ValueError, ZeroDivisionError):
        return None


def _quota_1(group: Path) -> float | None:
    try:
        quota = (group / "cpu.cfs_quota_us").read_text()
        period = (group / "cpu.cfs_period_us").read_text()
        return None if int(quota) <= 0 else int(quota) / int(period)
    except (OSError, ValueError, ZeroDivisionError):
        return None
