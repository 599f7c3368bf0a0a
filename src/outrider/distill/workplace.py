"""The folder of a distillation: what it is a distillation of, so that going on goes on with the same."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from fcntl import LOCK_EX, LOCK_NB, flock
from hashlib import file_digest
from pathlib import Path

from outrider.distill.stages import Settings
from outrider.distill.target import Target
from outrider.errors import RequestError

WORK = "work"


class Workplace:
    """`work/` in the folder of a distillation.

    folder      `work/` itself.
    corpus      the dialogues' file, in it.
    interviews  whether the target writes them; else they were brought by the user.
    """

    def __init__(self, folder: Path, *, resume: bool, corpus: Path | None, identity: dict[str, object]) -> None:
        """Begin, or go on.

        corpus    what the user brings; None when going on: what there is.
        identity  of what is distilled, and how: must be the same when going on.

        Raises RequestError if there is something and it is not to be gone on with, or the other way round, or if
        something else was begun there.
        """
        self.folder = folder / WORK
        self.corpus = self.folder / "corpus.jsonl"
        noted = self.folder / "settings.json"
        if noted.exists() != resume:
            raise RequestError(
                f"{folder} holds no distillation to resume; start one without --resume"
                if resume
                else f"{folder} holds a distillation already; go on with --resume, or choose another folder"
            )
        brought = None if corpus is None else _digest(corpus)
        if resume:
            begun = json.loads(noted.read_text("utf-8"))
            self.interviews = begun["corpus"] is None
            identity = {**identity, "corpus": begun["corpus"] if brought is None else brought}
            for name, value in identity.items():
                if begun.get(name) != value:
                    raise RequestError(
                        f"{folder} was begun with {name}={begun.get(name)}; it cannot go on with {value}"
                    )
            return
        self.interviews = corpus is None
        self.folder.mkdir(parents=True, exist_ok=True)
        if corpus is not None:
            shutil.copyfile(corpus, self.corpus)
        noted.write_text(json.dumps({**identity, "corpus": brought}), "utf-8")

    @classmethod
    def of(cls, settings: Settings, target: Target) -> Workplace:
        """That of a distillation."""
        identity = {"target_sha256": target.sha256, "kind": settings.kind, "seed": settings.seed}
        return cls(settings.folder, resume=settings.resume, corpus=settings.corpus, identity=identity)

    @contextmanager
    def held(self) -> Iterator[None]:
        """Nobody else computes in this folder meanwhile. Raises RequestError if somebody does."""
        with (self.folder / "lock").open("w") as lock:
            try:
                flock(lock, LOCK_EX | LOCK_NB)  # let go when the file is closed, however the process ends
            except BlockingIOError as error:
                raise RequestError(f"another process is at work in {self.folder}; wait until it has ended") from error
            yield


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return file_digest(file, "sha256").hexdigest()
