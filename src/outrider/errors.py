"""Every error that Outrider raises on purpose; catch `OutriderError` for all of them.

    OutriderError
    +-- ModelError                 a model cannot be used
    |   +-- ModelFileError         the file is broken, truncated or hostile
    |   +-- UnsupportedModelError  the file is sound, but needs something this version does not have
    |   +-- FetchError             the file could not be obtained
    +-- RequestError               a request asks for something impossible (also a ValueError)
    |   +-- ContextError           a text is too long for the model's context
    +-- NumericError               the model computed something that is not a number for a request
    +-- ConstraintError            a request's constraint, such as a grammar, cannot go on

Each message names the culprit, its value, and what would be accepted.
"""

from __future__ import annotations


class OutriderError(Exception):
    """Base of all errors that Outrider raises on purpose."""


class ModelError(OutriderError):
    """A model cannot be used."""


class ModelFileError(ModelError):
    """A model file is broken, truncated or hostile."""


class UnsupportedModelError(ModelError):
    """A model file is sound, but needs an architecture, type or tokenizer that this version lacks."""


class FetchError(ModelError):
    """A model file could not be obtained."""


class RequestError(OutriderError, ValueError):
    """A request asks for something impossible; nothing was computed for it.

    field  the parameter at fault, where it is a single one.
    """

    def __init__(self, message: str, field: str | None = None) -> None:
        super().__init__(message)
        self.field = field


class ContextError(RequestError):
    """A prompt, or a prediction, is too long for the model's context."""


class NumericError(OutriderError):
    """The model computed NaN or infinite logits for a request; that request alone fails."""


class ConstraintError(OutriderError):
    """A request's constraint leaves no token that could come, or cannot go on; that request alone fails."""
