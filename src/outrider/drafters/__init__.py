"""Drafters, one per file; the file name is the registry: `ngram.py` holds `NgramDrafter`, made by `create("ngram")`.

Those that need weights are made by `open_draft(path, ...)`.
"""

from __future__ import annotations

import pkgutil
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from outrider.drafters.base import Drafter
from outrider.errors import RequestError

if TYPE_CHECKING:
    from outrider.kernels.native import NativeModel
    from outrider.tokenizer import Tokenizer
    from outrider.weights.weight import Weight

__all__ = ["Drafter", "available", "create", "draft_taps", "open_draft"]

_WITH_WEIGHTS = {"eagle", "model"}


def available() -> list[str]:
    """Names of the drafters that need nothing but the text."""
    names = {module.name for module in pkgutil.iter_modules(__path__)}
    return sorted(names - {"base"} - _WITH_WEIGHTS)


def create(name: str) -> Drafter:
    """A new drafter of that name. Raises RequestError if there is none."""
    if name not in available():
        raise RequestError(f"drafter {name!r} does not exist; available: {', '.join(available())}")
    drafter: Drafter = getattr(import_module(f"{__name__}.{name}"), f"{name.capitalize()}Drafter")()
    return drafter


def draft_taps(path: Path, layers: int) -> tuple[int, ...]:
    """The layers of a target whose inputs the drafter at `path` reads; a smaller model reads none."""
    from outrider.heads import tap_layers

    return () if path.suffix == ".gguf" else tap_layers(layers)


def open_draft(path: Path, target: NativeModel, embedding: Weight, tokenizer: Tokenizer, *, positions: int) -> Drafter:
    """The drafter of some weights: a .gguf is a smaller model, a folder or a .safetensors file an EAGLE-3 head.

    target     with the taps of `draft_taps`; `embedding` and `tokenizer` are the target's.
    positions  of KV that it may hold, of all requests together.

    Raises ModelError if it cannot be used, or not with this target.
    """
    from outrider.drafters import eagle, model

    if path.suffix == ".gguf":
        return model.load(path, target, tokenizer, positions=positions)
    return eagle.load(path, target, embedding, positions=positions)
