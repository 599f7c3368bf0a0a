"""Outrider: speculative decoding for people who host models themselves.

The text, or when sampling its distribution, is exactly the target model's own; it just comes sooner.
"""

from outrider.errors import (
    FetchError,
    ModelError,
    ModelFileError,
    NumericError,
    OutriderError,
    RequestError,
    UnsupportedModelError,
)
from outrider.llm import LLM, Completion
from outrider.request import Emitted, Piece, Request
from outrider.sampling import SamplingParams
from outrider.tokenizer import Message

__all__ = [
    "LLM",
    "Completion",
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
