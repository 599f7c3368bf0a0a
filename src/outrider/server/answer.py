"""What an answer looks like: the events of a stream and the whole, for chats and for completions.

Both are made of the same additions, so a stream's deltas join to the whole; usage counts committed tokens.
"""

from __future__ import annotations

import time
import uuid
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

from outrider.drafters.prediction import Uptake
from outrider.request import Emitted, Request
from outrider.sampling import Logprobs
from outrider.server.errors import encode
from outrider.server.schemas import Common
from outrider.tokenizer import Tokenizer
from outrider.types import FinishReason, Source

DONE = b"data: [DONE]\n\n"

_VERY_UNLIKELY = -9999.0
"""OpenAI's word for a log-probability that JSON cannot hold."""


@dataclass(frozen=True, slots=True)
class Token:
    """A committed token as a client sees it. top: id and log-probability of the most probable ones."""

    id: int
    logprob: float
    top: tuple[tuple[int, float], ...]


@dataclass(frozen=True, slots=True)
class Addition:
    """What a step added to a text, or all of them: its log-probabilities only if they were asked for."""

    text: str
    tokens: tuple[Token, ...]
    sources: tuple[Source, ...]
    finish_reason: FinishReason | None


@dataclass(slots=True)
class _Choice:
    """One text on its way to the client."""

    index: int
    request: Request
    uptake: Uptake
    tokens: int = 0
    characters: int = 0
    opened: bool = False

    def take(self, emitted: Sequence[Emitted]) -> Addition:
        """The next additions as one."""
        ids = [token for each in emitted for token in each.token_ids]
        entries: Sequence[Logprobs] = self.request.logprobs[self.tokens : self.tokens + len(ids)]
        self.tokens += len(ids)
        self.uptake.add(ids)
        return Addition(
            "".join(each.text for each in emitted),
            tuple(Token(id, entry.chosen, entry.top) for id, entry in zip(ids, entries, strict=False)),
            tuple(chain.from_iterable(each.sources for each in emitted)),
            emitted[-1].finish_reason,
        )


class Answer(ABC):
    """The answer to one API call.

    whole_object, chunk_object, prefix   OpenAI's names for the whole and its pieces, and the beginning of its id.
    """

    whole_object: str
    chunk_object: str
    prefix: str

    def __init__(self, body: Common, model: str, tokenizer: Tokenizer, requests: Sequence[Request]) -> None:
        self._body = body
        self._tokenizer = tokenizer
        self._head = {"id": f"{self.prefix}-{uuid.uuid4().hex}", "created": int(time.time()), "model": model}
        self._choices = {
            request.id: _Choice(index, request, Uptake(request.prediction)) for index, request in enumerate(requests)
        }

    def events(self, additions: Iterable[Emitted]) -> bytes:
        """The events of a stream that say what was added, one or more for each step."""
        return b"".join(
            self._event([choice])
            for emitted in additions
            for choice in self._deltas(self._choices[emitted.request.id], emitted)
        )

    def ending(self) -> bytes:
        """The events after those of the texts."""
        return (self._event([], self.usage()) if self._body.includes_usage else b"") + DONE

    def whole(self, additions: Sequence[Emitted]) -> bytes:
        """The answer that does not stream."""
        choices = []
        for choice in self._choices.values():
            mine = [emitted for emitted in additions if emitted.request is choice.request]
            choices.append(self._complete(choice, choice.take(mine)))
        return encode({**self._head, "object": self.whole_object, "choices": choices, "usage": self.usage()})

    def usage(self) -> dict[str, Any]:
        """Tokens of prompts, each counted once, and of all texts."""
        first = [each.request for each in self._choices.values() if each.request.choice == 0]
        prompt = sum(len(request.prompt) for request in first)
        completion = sum(choice.tokens for choice in self._choices.values())
        return {
            "prompt_tokens": prompt,
            "completion_tokens": completion,
            "total_tokens": prompt + completion,
            "prompt_tokens_details": {"cached_tokens": sum(request.stats.cached for request in first)},
            "completion_tokens_details": {
                "accepted_prediction_tokens": sum(choice.uptake.accepted for choice in self._choices.values()),
                "rejected_prediction_tokens": sum(choice.uptake.rejected for choice in self._choices.values()),
                "reasoning_tokens": 0,
                "audio_tokens": 0,
            },
        }

    def _event(self, choices: list[dict[str, Any]], usage: dict[str, Any] | None = None) -> bytes:
        chunk = {**self._head, "object": self.chunk_object, "choices": choices}
        if self._body.includes_usage:
            chunk["usage"] = usage
        return event(chunk)

    def _deltas(self, choice: _Choice, emitted: Emitted) -> Iterable[dict[str, Any]]:
        if not choice.opened:
            choice.opened = True
            yield from self._opening(choice)
        addition = choice.take([emitted])
        if addition.text or addition.tokens or (addition.sources and self._body.return_sources):
            yield self._delta(choice, addition)
        if addition.finish_reason:
            yield self._end(choice, addition.finish_reason)

    def _with_sources(self, payload: dict[str, Any], addition: Addition) -> dict[str, Any]:
        if self._body.return_sources:
            payload["sources"] = addition.sources
        return payload

    def _text(self, token: int) -> str:
        """A token in writing, as OpenAI does it where it is no whole number of characters; control tokens by name."""
        written = self._tokenizer.token_bytes(token)
        if not written:
            return self._tokenizer.token_name(token)
        try:
            return written.decode()
        except UnicodeDecodeError:
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in written)

    @abstractmethod
    def _opening(self, choice: _Choice) -> Iterable[dict[str, Any]]:
        """What is told of a choice before its text."""

    @abstractmethod
    def _delta(self, choice: _Choice, addition: Addition) -> dict[str, Any]:
        """A choice's part in an event, when its text grows."""

    @abstractmethod
    def _end(self, choice: _Choice, reason: FinishReason) -> dict[str, Any]:
        """The same when it ends."""

    @abstractmethod
    def _complete(self, choice: _Choice, addition: Addition) -> dict[str, Any]:
        """A whole choice."""


class ChatAnswer(Answer):
    """The answer of /v1/chat/completions."""

    whole_object = "chat.completion"
    chunk_object = "chat.completion.chunk"
    prefix = "chatcmpl"

    def _opening(self, choice: _Choice) -> Iterable[dict[str, Any]]:
        yield self._part(choice, {"role": "assistant", "content": ""})

    def _delta(self, choice: _Choice, addition: Addition) -> dict[str, Any]:
        part = self._part(choice, {"content": addition.text}, logprobs=self._logprobs(choice, addition))
        return self._with_sources(part, addition)

    def _end(self, choice: _Choice, reason: FinishReason) -> dict[str, Any]:
        return self._part(choice, {}, reason)

    def _complete(self, choice: _Choice, addition: Addition) -> dict[str, Any]:
        whole = {
            "index": choice.index,
            "message": {"role": "assistant", "content": addition.text, "refusal": None},
            "logprobs": self._logprobs(choice, addition),
            "finish_reason": addition.finish_reason,
        }
        return self._with_sources(whole, addition)

    def _part(
        self, choice: _Choice, delta: dict[str, Any], reason: FinishReason | None = None, logprobs: object = None
    ) -> dict[str, Any]:
        return {"index": choice.index, "delta": delta, "logprobs": logprobs, "finish_reason": reason}

    def _logprobs(self, choice: _Choice, addition: Addition) -> dict[str, Any] | None:
        if choice.request.params.logprobs is None:
            return None
        content = [
            {**self._entry(token.id, token.logprob), "top_logprobs": [self._entry(*each) for each in token.top]}
            for token in addition.tokens
        ]
        return {"content": content, "refusal": None}

    def _entry(self, token: int, logprob: float) -> dict[str, Any]:
        written = self._tokenizer.token_bytes(token)
        return {"token": self._text(token), "logprob": max(logprob, _VERY_UNLIKELY), "bytes": list(written)}


class CompletionAnswer(Answer):
    """The answer of /v1/completions."""

    whole_object = "text_completion"
    chunk_object = "text_completion"
    prefix = "cmpl"

    def _opening(self, choice: _Choice) -> Iterable[dict[str, Any]]:
        return ()

    def _delta(self, choice: _Choice, addition: Addition) -> dict[str, Any]:
        return self._complete(choice, addition, ended=False)

    def _end(self, choice: _Choice, reason: FinishReason) -> dict[str, Any]:
        return {"index": choice.index, "text": "", "logprobs": None, "finish_reason": reason}

    def _complete(self, choice: _Choice, addition: Addition, *, ended: bool = True) -> dict[str, Any]:
        whole = {
            "index": choice.index,
            "text": addition.text,
            "logprobs": self._logprobs(choice, addition),
            "finish_reason": addition.finish_reason if ended else None,
        }
        return self._with_sources(whole, addition)

    def _logprobs(self, choice: _Choice, addition: Addition) -> dict[str, Any] | None:
        if choice.request.params.logprobs is None:
            return None
        texts = [self._text(token.id) for token in addition.tokens]
        offsets = []
        for token in addition.tokens:
            offsets.append(choice.characters)
            choice.characters += len(self._tokenizer.token_bytes(token.id).decode("utf-8", "ignore"))
        return {
            "tokens": texts,
            "token_logprobs": [max(token.logprob, _VERY_UNLIKELY) for token in addition.tokens],
            "top_logprobs": [
                {self._text(id): max(logprob, _VERY_UNLIKELY) for id, logprob in token.top} for token in addition.tokens
            ],
            "text_offset": offsets,
        }


def event(body: object) -> bytes:
    """One server-sent event."""
    return b"data: " + encode(body) + b"\n\n"
