"""Acceptance rules, one pure function `verify` per file; the file name is the registry.

`rule("greedy")(logits, proposal, params, noise, history)` says which drafted tokens stand, and which token follows.
"""

from __future__ import annotations

import pkgutil
from functools import cache
from importlib import import_module

from outrider.errors import RequestError
from outrider.verify.base import Verify

__all__ = ["Verify", "available", "rule"]


def available() -> list[str]:
    """Names of the acceptance rules."""
    return sorted(module.name for module in pkgutil.iter_modules(__path__) if module.name != "base")


@cache  # each request asks, and looking up modules takes longer than a step of a tiny model
def rule(name: str) -> Verify:
    """The acceptance rule of that name. Raises RequestError if there is none."""
    if name not in available():
        raise RequestError(f"acceptance rule {name!r} does not exist; available: {', '.join(available())}")
    verify: Verify = import_module(f"{__name__}.{name}").verify
    return verify
