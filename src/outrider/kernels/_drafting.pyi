from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from outrider.types import IntArray

class Index:
    def append(self, tokens: Sequence[int]) -> None: ...
    def __len__(self) -> int: ...

class Followers:
    def add(
        self, order: int, keys: npt.NDArray[np.int64], tokens: IntArray, chances: npt.NDArray[np.uint8]
    ) -> None: ...

def grow(
    own: Index, others: Sequence[Index], followers: Followers | None, count: int
) -> tuple[tuple[int, ...], tuple[int, ...], tuple[float, ...]]: ...
