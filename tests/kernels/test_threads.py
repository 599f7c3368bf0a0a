"""The number of threads is what this process may use, or what it is told to; anything else is an error."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from outrider.errors import RequestError
from outrider.kernels import threads
from outrider.kernels.threads import checked_threads, default_threads


@pytest.fixture(autouse=True)
def machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A process with an affinity to 6 processors, and the folder of a control group without limits."""
    monkeypatch.delenv("OUTRIDER_THREADS", raising=False)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(6)), raising=False)
    monkeypatch.setattr(threads, "_CGROUP", tmp_path)
    monkeypatch.setattr(threads, "_MEMBERSHIP", tmp_path / "membership")
    return tmp_path


def limit_version_1(folder: Path, quota: str, period: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "cpu.cfs_quota_us").write_text(quota)
    (folder / "cpu.cfs_period_us").write_text(period)


def test_without_limits_it_is_the_affinity() -> None:
    assert default_threads() == 6


def test_without_affinity_it_is_the_number_of_processors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "sched_getaffinity")
    for count, expected in ((3, 3), (None, 1)):
        monkeypatch.setattr(os, "cpu_count", lambda count=count: count)
        assert default_threads() == expected


QUOTAS = [("200000 100000", 2), ("150000 100000", 2), ("10000 100000", 1), ("max 100000", 6), ("900000 100000", 6)]


@pytest.mark.parametrize(("limit", "expected"), QUOTAS)
def test_a_control_group_of_version_2_caps_it(machine: Path, limit: str, expected: int) -> None:
    (machine / "cpu.max").write_text(limit + "\n")
    assert default_threads() == expected


@pytest.mark.parametrize(("quota", "expected"), [("200000", 2), ("150000", 2), ("1000", 1), ("-1", 6), ("0", 6)])
def test_a_control_group_of_version_1_caps_it(machine: Path, quota: str, expected: int) -> None:
    limit_version_1(machine / "cpu", quota + "\n", "100000\n")
    assert default_threads() == expected


@pytest.mark.parametrize("content", ["", "max", "what 100000", "100000 0", "1 2 3", "\x00"])
def test_a_limit_that_makes_no_sense_is_none(machine: Path, content: str) -> None:
    (machine / "cpu.max").write_text(content)
    assert default_threads() == 6
    limit_version_1(machine / "cpu", "100000", "0")
    assert default_threads() == 6


@pytest.mark.parametrize(
    ("group", "limits", "expected"),
    [
        ("/a/b", {"a/b": 3}, 3),
        ("/a/b", {"a": 2, "a/b": 3}, 2),
        ("/a/b", {"": 4, "a": 2, "a/b": 1}, 1),
        ("/a/b", {"a/c": 1, "a/b/d": 1, "c": 1}, 6),  # of others, and of a group below
        ("/", {"": 2, "a": 1}, 2),
        ("/elsewhere", {"": 2}, 2),  # a container sees its own group as the root
        ("/../a", {"": 5, "a": 1}, 5),
    ],
)
@pytest.mark.parametrize("version", [1, 2])
def test_the_group_of_the_process_and_those_above_it_count(
    machine: Path, version: int, group: str, limits: dict[str, int], expected: int
) -> None:
    line = f"0::{group}" if version == 2 else f"9:memory:/c\n4:cpu,cpuacct:{group}\n0::/c"
    (machine / "membership").write_text(line + "\n")
    for path, processors in limits.items():
        if version == 2:
            (machine / path).mkdir(parents=True, exist_ok=True)
            (machine / path / "cpu.max").write_text(f"{processors * 50_000} 50000\n")
        else:
            limit_version_1(machine / "cpu" / path, f"{processors * 50_000}\n", "50000\n")
    assert default_threads() == expected


def test_a_list_of_groups_that_makes_no_sense_leaves_the_root(machine: Path) -> None:
    (machine / "membership").write_text("nonsense")
    (machine / "cpu.max").write_text("200000 100000")
    assert default_threads() == 2


def test_a_limit_is_not_raised_by_the_environment_but_overruled(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (machine / "cpu.max").write_text("100000 100000")
    monkeypatch.setenv("OUTRIDER_THREADS", "5")
    assert default_threads() == 5


@pytest.mark.parametrize("text", ["", "two", "2.5", "-1", "0", "1025", "٣", " 2"])
def test_an_environment_that_is_no_number_of_threads_is_refused(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OUTRIDER_THREADS", text)
    with pytest.raises(RequestError, match="OUTRIDER_THREADS is "):
        default_threads()


@pytest.mark.parametrize("count", [0, -3, 1025, 2**40])
def test_an_impossible_number_is_refused(count: int) -> None:
    with pytest.raises(RequestError, match=f"threads is {count}, expected 1 to 1024"):
        checked_threads(count)


def test_a_possible_number_is_taken() -> None:
    assert [checked_threads(count) for count in (1, 7, 1024)] == [1, 7, 1024]
