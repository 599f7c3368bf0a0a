"""JSON schemas as constraints, by the `llguidance` library (extra "grammar"): the text satisfies the schema.

grammars = Grammars(tokenizer, model.vocabulary_size)
constraint = grammars.json_schema({"type": "object"})     # any JSON object
"""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from outrider.errors import ConstraintError, RequestError
from outrider.tokenizer import Tokenizer

if TYPE_CHECKING:
    import llguidance

MAX_SCHEMA = 64 * 1024
"""Longest schema, in characters of JSON; `llguidance` bounds the work that follows from it."""

_WHITESPACE = r"[ ]|\n[ \t]{0,32}"
"""Between the parts of a JSON text: nothing, a space, or a line break and an indentation. A small model that may write
any amount of white space sometimes writes nothing else."""

_REMEMBERED = 32


class Grammars:
    """Compiles schemas for a tokenizer, and remembers the last ones. May be used by several threads.

    vocabulary  number of the model's logits: tokens that the tokenizer does not have are never allowed.
    """

    def __init__(self, tokenizer: Tokenizer, vocabulary: int) -> None:
        self._tokenizer = tokenizer
        self._vocabulary = vocabulary
        self._compiled: OrderedDict[str, llguidance.LLMatcher] = OrderedDict()

    def json_schema(self, schema: Mapping[str, Any]) -> GrammarConstraint:
        """A new constraint: the output is a JSON text that satisfies the schema.

        Raises RequestError for a schema that is too large, wrong, or uses what is not supported, with the reason, and
        where `llguidance` is not installed.
        """
        if not isinstance(schema, Mapping):
            raise RequestError(f"the JSON schema is {schema!r:.80}; expected an object", "json_schema")
        try:
            text = json.dumps(schema, allow_nan=False)
        except (TypeError, ValueError, RecursionError) as error:
            raise RequestError(f"the JSON schema is no JSON: {error}", "json_schema") from error
        if len(text) > MAX_SCHEMA:
            raise RequestError(f"the JSON schema has {len(text)} characters; allowed: {MAX_SCHEMA}", "json_schema")
        matcher = self._compiled.pop(text, None)
        if matcher is None:
            matcher = self._compile(text)
        self._compiled[text] = matcher
        while len(self._compiled) > _REMEMBERED:
            self._compiled.popitem(last=False)
        return GrammarConstraint(matcher.deep_copy(), self._vocabulary)

    def _compile(self, schema: str) -> llguidance.LLMatcher:
        tokenizer, make = self._for_library, self._library.LLMatcher
        try:
            grammar = make.grammar_from_json_schema(schema, overrides={"whitespace_pattern": _WHITESPACE})
        except ValueError as error:  # it is nested too deeply
            raise RequestError(f"the JSON schema cannot be used: {error}", "json_schema") from error
        matcher: llguidance.LLMatcher = make(tokenizer, grammar, log_level=0)
        if matcher.is_error():
            raise RequestError(f"the JSON schema cannot be used: {_reason(matcher)}", "json_schema")
        return matcher

    @cached_property
    def _library(self) -> Any:
        try:
            import llguidance
        except ImportError as error:
            message = "JSON schemas need the package llguidance: pip install 'outrider[grammar]'"
            raise RequestError(message, "json_schema") from error
        return llguidance

    @cached_property
    def _for_library(self) -> llguidance.LLTokenizer:
        """What `llguidance` must know of the tokenizer; it takes a second to make, so it is made when it is needed."""
        made: llguidance.LLTokenizer = self._library.LLTokenizer(
            _Wrapper(self._tokenizer), eos_token=list(self._tokenizer.eos_ids)
        )
        return made


class GrammarConstraint:
    """A `Constraint` by a matcher of `llguidance`, which it owns."""

    def __init__(self, matcher: llguidance.LLMatcher, vocabulary: int) -> None:
        self._matcher = matcher
        self._vocabulary = vocabulary

    @property
    def finished(self) -> bool:
        """Whether the output is complete, and nothing can follow."""
        return self._matcher.is_stopped()

    def allowed(self, drafted: Sequence[int]) -> npt.NDArray[np.bool_]:
        """Which tokens may come after the committed output and these; [vocabulary]. Raises ConstraintError."""
        matcher = self._matcher
        if drafted:
            matcher = matcher.deep_copy()
            matcher.consume_tokens(list(drafted))
        bits = np.frombuffer(matcher.compute_bitmask(), np.uint8)
        if matcher.is_error():
            raise ConstraintError(f"the grammar cannot go on: {_reason(matcher)}")
        mask = np.zeros(self._vocabulary, np.bool_)
        known = np.unpackbits(bits, bitorder="little")[: self._vocabulary]
        mask[: len(known)] = known
        return mask

    def legal(self, drafted: Sequence[int]) -> int:
        """How many of these tokens may come, one after another."""
        return self._matcher.validate_tokens(list(drafted))

    def forced(self) -> Sequence[int]:
        """The tokens of the text that must come next. Where there is such a text, it is spelt as usual: no other token
        is allowed."""
        return self._matcher.compute_ff_tokens()

    def accept(self, token: int) -> None:
        """A token was committed. Raises ConstraintError."""
        if not self._matcher.consume_token(token):
            raise ConstraintError(f"the grammar does not allow token {token}: {_reason(self._matcher)}")


class _Wrapper:
    """A tokenizer as `llguidance` wants it: the bytes of each token, and a function from text to tokens."""

    is_tokenizer_wrapper = True

    def __init__(self, tokenizer: Tokenizer) -> None:
        tokens = [tokenizer.token_bytes(token) for token in range(tokenizer.vocabulary_size)]
        self.eos_token_id = next(iter(tokenizer.eos_ids), 0)
        self.bos_token_id = tokenizer.bos_id
        self.special_token_ids = [token for token, text in enumerate(tokens) if not text]
        self.tokens = [text or b"<%d>" % token for token, text in enumerate(tokens)]
        self._encode: Callable[[str], list[int]] = lambda text: tokenizer.encode(text, add_special_tokens=False)

    def __call__(self, text: bytes | str) -> list[int]:
        return self._encode(text.decode() if isinstance(text, bytes) else text)


def _reason(matcher: llguidance.LLMatcher) -> str:
    """The first line of what is wrong."""
    return matcher.get_error().partition("\n")[0]
