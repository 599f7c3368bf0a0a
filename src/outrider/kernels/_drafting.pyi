from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from outrider.types import IntArray

class Index:
    def append(self, tokens: Sequence[int]) -> None: ...
    def extend(self, tokens: Sequence[int]) -> None: ...
    def __len__(self) -> int: ...

class Followers:
    def add(
        self, order: int, keys: npt.NDArray[np.int64], tokens: IntArray, chances: npt.NDArray[np.uint8]
    ) -> None: ...

def grow(
    own: Index, others: Sequence[Index], followers: Followers | None, count: int
) -> tuple[tuple[int, ...], tuple[int, ...], tuple[float, ...]]: ...

class Calibration:
    @property
    def odds(self) -> float: ...
    def believed(self, estimate: float) -> float: ...
    def gains(self, estimates: Sequence[float], parents: Sequence[int]) -> list[float]: ...
    def learn(self, outcomes: Sequence[tuple[float, bool]]) -> None: ...
    def follow(
        self, tokens: Sequence[int], parents: Sequence[int], estimates: Sequence[float], committed: Sequence[int]
    ) -> bool: ...

def allocate(
    gains: Sequence[Sequence[float]], rooms: Sequence[float], added: Sequence[float], worth: float
) -> tuple[list[int], list[float]]: ...
def weigh(
    calibration: Calibration,
    estimates: Sequence[float],
    parents: Sequence[int],
    room: float,
    added: Sequence[float],
    worth: float,
    least: float,
) -> tuple[float, list[float], list[int] | None] | None: ...
