"""Small tables of followers."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np

from outrider.drafts import FOLLOWERS
from outrider.weights import followers
from outrider.weights.followers import ORDERS, Table


def table(last: dict[int, int] | None = None) -> Table:
    """After token t comes last[t], with a chance of 200 / 256."""
    last = dict(sorted((last or {}).items()))
    parts = {order: _part([], [], most) for order, most in ORDERS.items()}
    return Table({**parts, 1: _part(list(last), list(last.values()), ORDERS[1])})


def table_folder(folder: Path, text: Sequence[int]) -> Path:
    """A new folder for `draft`, with a table of what follows each token of a text, where it came last."""
    folder.mkdir()
    followers.save(table(dict(pairwise(text))), folder / FOLLOWERS, {})
    return folder


def _part(keys: list[int], tokens: list[int], most: int) -> followers.Part:
    chances = np.zeros((len(keys), most), np.uint8)
    chances[:, :1] = 200
    wide = np.zeros((len(keys), most), np.int32)
    wide[:, 0] = tokens
    return np.array(keys, np.int64), wide, chances
