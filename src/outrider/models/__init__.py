"""Model families: one short file each, named after the architecture that its model files declare."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Collection

from outrider.errors import UnsupportedModelError
from outrider.models.base import Recorded
from outrider.weights.gguf import GGUF


def record(gguf: GGUF, taps: Collection[int] = ()) -> Recorded:
    """The program of a model file, recorded by the file of this folder that its architecture names.

    taps  layers (0-based) whose inputs are outputs of the program, "tap.N" each.

    Raises UnsupportedModelError where there is no such file, RequestError for a tap that is no layer.
    """
    architecture = gguf.text("general.architecture")
    known = sorted(module.name for module in pkgutil.iter_modules(__path__) if module.name != "base")
    if architecture not in known:
        raise UnsupportedModelError(
            f"{gguf.path}: field 'general.architecture' is {architecture[:60]!r}, this version supports "
            f"{', '.join(known)}"
        )
    recorded: Recorded = importlib.import_module(f"outrider.models.{architecture}").record(gguf, taps)
    return recorded
