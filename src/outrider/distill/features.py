"""What the target computes on the corpus, on disk: hidden states and most probable tokens, made once and mapped.

    features = Features(folder, target, layers, dialogues)
    for done in features.compute(context): ...         # goes on where it stopped
    taps, candidates, logs = features.of(number)

They are a cache: whenever the folder is gone, it is computed again from the corpus.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator, Sequence
from hashlib import sha256
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from outrider.distill.interview import Dialogue
from outrider.distill.target import Reader, Target
from outrider.types import FloatArray, IntArray

CANDIDATES = 64
"""Most probable tokens that are kept of each answered position."""

_NOTED = 100  # dialogues between two notes

HalfArray = npt.NDArray[np.float16]


class Features:
    """The features of a corpus, or of as much of it as is computed.

    dialogues   those that fit into the bound on disk use; `done` of them are computed.
    nbytes      what all of them take on disk.
    vocabulary  of the target.
    """

    def __init__(
        self, folder: Path, target: Target, layers: Sequence[int], dialogues: Sequence[Dialogue], most: int
    ) -> None:
        """Look what is there; features of another target or corpus are deleted.

        layers  whose inputs are kept as taps, possibly none.
        most    bytes that the folder may take.
        """
        self._folder = folder
        self._target = target
        self._layers = tuple(layers)
        self._candidates = min(CANDIDATES, target.shape.vocabulary)
        width = len(self._layers) * target.shape.hidden
        self._formats: dict[str, tuple[str, int]] = {
            "taps": ("<f2", width),
            "candidates": ("<i4", self._candidates),
            "logs": ("<f2", self._candidates),
        }
        lengths = np.array([(len(d.tokens) - 1, _answered(d)) for d in dialogues], np.int64).reshape(-1, 2)
        self._ends = np.concatenate(([[0, 0]], lengths.cumsum(0)))
        sizes = self._ends @ np.array([2 * width, 6 * self._candidates])
        count = int(np.searchsorted(sizes, most, "right")) - 1
        self.dialogues = tuple(dialogues[:count])
        self.nbytes = int(sizes[count])
        self._sizes = sizes
        self._all = tuple(dialogues)
        self.vocabulary = target.shape.vocabulary
        self.done = self._found()

    @property
    def nbytes_done(self) -> int:
        """What is on disk already."""
        return int(self._sizes[self.done])

    def compute(self) -> Iterator[int]:
        """Compute what is missing; yields the number of dialogues done. May be closed, and called again later."""
        if self.done == len(self.dialogues):
            return
        self._folder.mkdir(parents=True, exist_ok=True)
        files = {name: self._appending(name) for name in self._formats}
        reader = Reader(self._target, self._layers, max(len(d.tokens) for d in self.dialogues))
        try:
            for dialogue in self.dialogues[self.done :]:
                self._write(files, reader, dialogue)
                self.done += 1
                if self.done % _NOTED == 0:
                    self._note(files)
                yield self.done
        finally:
            self._note(files)
            for file in files.values():
                file.close()

    def of(self, number: int) -> tuple[HalfArray, IntArray, HalfArray]:
        """A dialogue's taps [tokens - 1, layers * hidden], and of each answered position, in order, the most probable
        tokens [answered, candidates], likeliest first, and the logarithms of their probabilities."""
        (row, answer), (row_end, answer_end) = self._ends[number], self._ends[number + 1]
        return (
            self._mapped("taps", row, row_end),
            self._mapped("candidates", answer, answer_end),
            self._mapped("logs", answer, answer_end),
        )

    def _write(self, files: dict[str, IO[bytes]], reader: Reader, dialogue: Dialogue) -> None:
        for _, output in reader.read(dialogue.tokens, dialogue.answers):
            if self._layers:
                taps = np.concatenate([output.taps[layer] for layer in self._layers], axis=1)
                files["taps"].write(taps.astype("<f2").data)
            if len(output.logits):
                assert output.maxima is not None
                ids, logs = likeliest(output.logits, output.maxima, self._candidates)
                files["candidates"].write(ids.astype("<i4").data)
                files["logs"].write(logs.astype("<f2").data)

    def _mapped(self, name: str, begin: int, end: int) -> npt.NDArray[Any]:
        dtype, width = self._formats[name]
        if begin == end or width == 0:
            return np.zeros((end - begin, width), dtype)
        offset = int(begin) * width * np.dtype(dtype).itemsize
        return np.memmap(self._path(name), dtype, "r", offset, (int(end - begin), width))

    def _path(self, name: str) -> Path:
        return self._folder / f"{name}.bin"

    def _appending(self, name: str) -> IO[bytes]:
        """The file, cut to the dialogues that are done."""
        dtype, width = self._formats[name]
        rows = self._ends[self.done, 0 if name == "taps" else 1]
        file = self._path(name).open("ab")
        file.truncate(int(rows) * width * np.dtype(dtype).itemsize)
        return file

    def _identity(self, count: int) -> dict[str, object]:
        """What the features of the first `count` dialogues depend on."""
        tokens = sha256()
        for dialogue in self._all[:count]:
            tokens.update(np.array([len(dialogue.tokens), *dialogue.tokens], "<i4").data)
            tokens.update(np.array(dialogue.answers, "<i4").data)
        return {
            "target": self._target.sha256,
            "layers": list(self._layers),
            "candidates": self._candidates,
            "dialogues": count,
            "corpus": tokens.hexdigest(),
        }

    def _note(self, files: dict[str, IO[bytes]]) -> None:
        """Note what is done, once it is in the files: what a crash leaves beyond that is cut off."""
        for file in files.values():
            file.flush()
        new = self._folder / "features.json.new"
        new.write_text(json.dumps(self._identity(self.done)), "utf-8")
        os.replace(new, self._folder / "features.json")

    def _found(self) -> int:
        """How many dialogues are done already."""
        try:
            noted = json.loads((self._folder / "features.json").read_text("utf-8"))
            count = int(noted["dialogues"])
            sound = noted == self._identity(count)
        except (OSError, ValueError, KeyError, TypeError):
            count, sound = 0, False
        if not sound and self._folder.exists():
            shutil.rmtree(self._folder)
        return min(count, len(self.dialogues)) if sound else 0


def likeliest(logits: FloatArray, maxima: FloatArray, count: int) -> tuple[npt.NDArray[np.int64], FloatArray]:
    """Of each row of logits, the `count` most probable tokens, likeliest first, and their log-probabilities.

    maxima  of each so many logits in a row, see `Output`: the largest `count` of them are logits, so that no candidate
            is less than the least of those.
    """
    ids = np.empty((len(logits), count), np.int64)
    if maxima.shape[1] > count:
        least = np.partition(maxima, -count, axis=1)[:, -count]
    else:
        least = np.full(len(logits), -np.inf, np.float32)
    for row, (values, bound) in enumerate(zip(logits, least, strict=True)):
        candidates = np.flatnonzero(values >= bound)
        # Ties go to the lowest id, as everywhere.
        ids[row] = candidates[np.argsort(-values[candidates], kind="stable")[:count]]
    values = np.take_along_axis(logits, ids, 1)
    top = values[:, :1]
    total = np.exp(logits - top).sum(axis=1, keepdims=True)
    return ids, values - top - np.log(total)


def _answered(dialogue: Dialogue) -> int:
    return sum(end - start for start, end in dialogue.answers)
