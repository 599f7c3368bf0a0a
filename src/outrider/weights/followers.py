"""The table of followers: a file of what a model mostly says after each of its n-grams, for the suffix drafter.

`distill/followers.py` counts it; here it is written and read, as a .safetensors file.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt

from outrider.errors import ModelFileError
from outrider.kernels._drafting import Followers
from outrider.types import IntArray
from outrider.weights import safetensors
from outrider.weights.safetensors import SafeTensors

ORDERS: Mapping[int, int] = MappingProxyType({3: 3, 2: 4, 1: 8})
"""Lengths of the n-grams, longest first, and how many followers each has at most."""

BITS = 21
"""Of each token in the key of an n-gram; the last token is in the lowest."""

FORMAT = "outrider-followers"

Part = tuple[npt.NDArray[np.int64], IntArray, npt.NDArray[np.uint8]]


@dataclass(frozen=True, slots=True, eq=False)
class Table:
    """n -> (keys [n-grams], ascending; followers [n-grams, most], likeliest first; their chances in 256ths, 0 pads)."""

    parts: Mapping[int, Part]

    def native(self) -> Followers:
        """For the native tree."""
        followers = Followers()
        for order, (keys, tokens, chances) in self.parts.items():
            followers.add(order, keys, tokens, chances)
        return followers


def save(table: Table, path: Path, metadata: Mapping[str, str]) -> None:
    """Write the file; `metadata` go into it."""
    tensors: dict[str, tuple[str, npt.NDArray[Any]]] = {}
    for order, (keys, tokens, chances) in table.parts.items():
        tensors |= {
            f"{order}.keys": ("I64", keys),
            f"{order}.tokens": ("I32", tokens),
            f"{order}.chances": ("U8", chances),
        }
    safetensors.write(path, tensors, {**metadata, "format": FORMAT})


def load(path: Path, vocabulary: int) -> Table:
    """The table of a file, for a target with so many tokens.

    Raises ModelFileError, naming the tensor, if it is none, or names tokens that the target does not have.
    """
    file = SafeTensors.open(path)
    if file.metadata.get("format") != FORMAT:
        raise ModelFileError(
            f"{path}: its format is {file.metadata.get('format', 'not said')!r:.40}, expected {FORMAT!r}"
        )
    parts = {}
    for order in ORDERS:
        keys, tokens, chances = (
            _array(file, f"{order}.{name}", dtype, dimensions)
            for name, dtype, dimensions in (("keys", "I64", 1), ("tokens", "I32", 2), ("chances", "U8", 2))
        )
        if not len(keys) == len(tokens) == len(chances) or tokens.shape != chances.shape:
            raise ModelFileError(
                f"{path}: the shapes of {order}.keys, {order}.tokens and {order}.chances do not agree: "
                f"{list(keys.shape)}, {list(tokens.shape)}, {list(chances.shape)}"
            )
        if (np.diff(keys) <= 0).any():
            raise ModelFileError(f"{path}: tensor '{order}.keys' is not in ascending order")
        if tokens.size and not 0 <= tokens.min() <= tokens.max() < vocabulary:
            wrong = tokens.min() if tokens.min() < 0 else tokens.max()
            raise ModelFileError(f"{path}: tensor '{order}.tokens' holds {wrong}, expected 0 to {vocabulary - 1}")
        parts[order] = keys, tokens, chances
    return Table(parts)


def _array(file: SafeTensors, name: str, dtype: str, dimensions: int) -> npt.NDArray[Any]:
    tensor = file.tensors.get(name)
    if tensor is None:
        raise ModelFileError(f"{file.path}: tensor {name!r} is missing in a table of followers")
    if tensor.dtype != dtype or len(tensor.shape) != dimensions:
        raise ModelFileError(
            f"{file.path}: tensor {name!r} is {tensor.dtype} {list(tensor.shape)}, expected {dtype} of {dimensions} "
            "dimensions"
        )
    return np.array(file.array(name))  # aligned, and lying together in memory
