"""Outrider: speculative decoding for people who host models themselves.

The text, or when sampling its distribution, is exactly the target model's own; it just comes sooner.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from outrider.errors import (
    ConstraintError,
    FetchError,
    ModelError,
    ModelFileError,
    NumericError,
    OutriderError,
    RequestError,
    UnsupportedModelError,
)

if TYPE_CHECKING:
    from outrider.llm import LLM, Completion
    from outrider.request import Emitted, Piece, Request
    from outrider.sampling import SamplingParams
    from outrider.tokenizer import Message

__all__ = [
    "LLM",
    "Completion",
    "ConstraintError",
    "Emitted",
    "FetchError",
    "Message",
    "ModelError",
    "ModelFileError",
    "NumericError",
    "OutriderError",
    "Piece",
    "Request",
    "RequestError",
    "SamplingParams",
    "UnsupportedModelError",
]

_HOMES = {
    "LLM": "outrider.llm",
    "Completion": "outrider.llm",
    "Emitted": "outrider.request",
    "Message": "outrider.tokenizer",
    "Piece": "outrider.request",
    "Request": "outrider.request",
    "SamplingParams": "outrider.sampling",
}


def __getattr__(name: str) -> object:
    """Imports what needs NumPy when it is first used, so that `outrider --help` need not wait for it."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(_HOMES[name]), name)
    return value
