"""Drafters, one per file; the file name is the registry: `ngram.py` holds `NgramDrafter`, made by `create("ngram")`."""

from __future__ import annotations

import pkgutil
from importlib import import_module

from outrider.drafters.base import Drafter
from outrider.errors import RequestError

__all__ = ["Drafter", "available", "create"]


def available() -> list[str]:
    """Names of the drafters."""
    return sorted(module.name for module in pkgutil.iter_modules(__path__) if module.name != "base")


def create(name: str) -> Drafter:
    """A new drafter of that name. Raises RequestError if there is none."""
    if name not in available():
        raise RequestError(f"drafter {name!r} does not exist; available: {', '.join(available())}")
    drafter: Drafter = getattr(import_module(f"{__name__}.{name}"), f"{name.capitalize()}Drafter")()
    return drafter
