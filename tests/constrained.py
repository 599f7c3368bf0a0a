"""A constraint that is a function of the output, so that tests know what is right without a grammar."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

import numpy as np
import numpy.typing as npt

from outrider.errors import ConstraintError

Language = Callable[[tuple[int, ...]], Collection[int]]
"""The tokens that may come after an output; none: it is complete."""


class Toy:
    """Allows what a function of the output says."""

    def __init__(self, language: Language, vocabulary: int = 16) -> None:
        self._language = language
        self._vocabulary = vocabulary
        self.output: tuple[int, ...] = ()

    @property
    def finished(self) -> bool:
        return not self._language(self.output)

    def allowed(self, drafted: Sequence[int]) -> npt.NDArray[np.bool_]:
        assert self._count(drafted) == len(drafted), "a row after an illegal draft is looked at"
        mask = np.zeros(self._vocabulary, np.bool_)
        mask[list(self._language((*self.output, *drafted)))] = True
        return mask

    def legal(self, drafted: Sequence[int]) -> int:
        return self._count(drafted)

    def _count(self, drafted: Sequence[int]) -> int:
        for count, token in enumerate(drafted):
            if token not in self._language((*self.output, *drafted[:count])):
                return count
        return len(drafted)

    def forced(self) -> Sequence[int]:
        forced: list[int] = []
        while len(choice := self._language((*self.output, *forced))) == 1 and len(forced) < 20:
            forced += choice
        return forced

    def accept(self, token: int) -> None:
        if token not in self._language(self.output):
            raise ConstraintError(f"token {token} is not allowed after {self.output}")
        self.output = (*self.output, token)
