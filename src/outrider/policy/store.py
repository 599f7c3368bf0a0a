"""Measured costs on disk, in the cache folder: one small JSON file per model, machine, threads, kernels and version.

store = CostStore.of(path, model)
costs = store.load() or store.save(measure(model))
"""

from __future__ import annotations

import hashlib
import json
import logging
import math
import os
import platform
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from outrider import machine
from outrider.kernels.native import NativeModel
from outrider.policy.costs import Costs
from outrider.weights import hub

log = logging.getLogger(__name__)

_HEADER = 2**20


def folder() -> Path:
    """Where all costs are."""
    return hub.cache_folder() / "costs"


@dataclass(frozen=True, slots=True)
class CostStore:
    """The place of one model's costs."""

    path: Path

    @classmethod
    def of(cls, model_path: Path, model: NativeModel) -> CostStore:
        """The place for a model as it was loaded here. Raises FetchError, OSError where there can be none."""
        digest = hashlib.blake2b(digest_size=12)
        with model_path.open("rb") as file:  # the header describes all tensors; hashing the rest would take longer
            digest.update(file.read(_HEADER))
        threads, kernels, context = model.threads, model.kernels, model.context_length
        here = (platform.node(), machine.processor(), machine.processors(), machine.version())
        identity = (model_path.stat().st_size, threads, kernels, context, *here)
        digest.update(repr(identity).encode())
        return cls(folder() / f"{digest.hexdigest()}.json")

    def load(self) -> Costs | None:
        """What is stored; None where nothing is, or nothing that makes sense."""
        try:
            return _checked(json.loads(self.path.read_text("utf-8")))
        except FileNotFoundError:
            return None
        except (OSError, ValueError, TypeError, KeyError, OverflowError, RecursionError) as error:
            log.warning("%s cannot be used, costs are measured again: %s", self.path, error)
            return None

    def save(self, costs: Costs) -> Costs:
        """Store them, all or nothing; a folder that cannot be written costs a measurement at each start, no more."""
        part = self.path.with_suffix(f".{os.getpid()}.part")
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            part.write_text(json.dumps(asdict(costs)), "utf-8")
            os.replace(part, self.path)
        except OSError as error:
            log.warning("costs cannot be stored: %s", error)
            with suppress(OSError):
                part.unlink()
        return costs


def _checked(stored: dict[str, list[object]]) -> Costs:
    """Raises ValueError, TypeError, KeyError or OverflowError for what cannot have been measured."""
    rows = tuple(int(n) for n in stored["rows"])  # type: ignore[call-overload]  # it raises for what is no number
    contexts = tuple(int(n) for n in stored["contexts"])  # type: ignore[call-overload]
    seconds = tuple(tuple(float(s) for s in column) for column in stored["seconds"])  # type: ignore[attr-defined]
    sizes = len(contexts) == len(seconds) > 0 and all(len(column) == len(rows) > 1 for column in seconds)
    ascending = rows[:1] == (1,) and all(list(each) == sorted(each) for each in (rows, contexts, *seconds))
    if not (sizes and ascending and all(0 < s < math.inf for column in seconds for s in column)):
        raise ValueError("these are no costs")
    return Costs(rows, contexts, seconds)
