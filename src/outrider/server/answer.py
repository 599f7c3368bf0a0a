"""What an answer looks like: the events of a stream and the whole, for chats and for completions.

Both are made of the same additions, so a stream's deltas join to the whole; usage counts committed tokens.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from outrider.drafters.prediction import Uptake
from outrider.request import Emitted, Request
from outrider.sampling import Logprobs
from outrider.server.errors import encode
from outrider.server.generation import AT_ONCE
from outrider.server.schemas import Common
from outrider.tokenizer import Detokeniser, Tokenizer
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
    detokeniser: Detokeniser
    tokens: int = 0
    characters: int = 0
    opened: bool = False

    def take(self, emitted: Emitted) -> Addition:
        """The next addition."""
        ids = emitted.token_ids
        entries: Sequence[Logprobs] = self.request.logprobs[self.tokens : self.tokens + len(ids)]
        self.tokens += len(ids)
        self.uptake.add(ids)
        tokens = tuple(Token(id, entry.chosen, entry.top) for id, entry in zip(ids, entries, strict=False))
        return Addition(emitted.text, tokens, emitted.sources, emitted.finish_reason)


@dataclass(slots=True)
class _Whole:
    """The additions of a choice that does not stream: log-probabilities encoded, as pieces of lists."""

    text: list[str] = field(default_factory=list)
    sources: list[Source] = field(default_factory=list)
    logprobs: dict[str, list[bytes]] = field(default_factory=dict)
    finish_reason: FinishReason | None = None

    def add(self, addition: Addition, logprobs: Mapping[str, Sequence[Any]]) -> None:
        self.text.append(addition.text)
        self.sources += addition.sources
        self.finish_reason = addition.finish_reason
        for name, entries in logprobs.items():
            self.logprobs.setdefault(name, [])
            if entries:
                self.logprobs[name].append(encode(entries)[1:-1])


class Answer(ABC):
    """The answer to one API call.

    whole_object, chunk_object, prefix   OpenAI's names for the whole and its pieces, and the beginning of its id.
    beside_logprobs                      what stands beside the lists of log-probabilities.
    """

    whole_object: str
    chunk_object: str
    prefix: str
    beside_logprobs: Mapping[str, object] = MappingProxyType({})

    def __init__(self, body: Common, model: str, tokenizer: Tokenizer, requests: Sequence[Request]) -> None:
        self._body = body
        self._tokenizer = tokenizer
        self._head = {"id": f"{self.prefix}-{uuid.uuid4().hex}", "created": int(time.time()), "model": model}
        self._choices = {
            request.id: _Choice(index, request, Uptake(request.prediction), Detokeniser(tokenizer))
            for index, request in enumerate(requests)
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

    async def whole(self, additions: Sequence[Emitted]) -> bytes:
        """The answer that does not stream. Log-probabilities take a while, so others have the event loop in between."""
        wholes = {each: _Whole() for each in self._choices}
        for place, emitted in enumerate(additions):
            if place % AT_ONCE == 0:
                await asyncio.sleep(0)
            choice = self._choices[emitted.request.id]
            addition = choice.take(emitted)
            wholes[emitted.request.id].add(addition, self._lists(choice, addition) if self._asked(choice) else {})
        choices = [self._encoded(choice, wholes[each]) for each, choice in self._choices.items()]
        head = {**self._head, "object": self.whole_object, "usage": self.usage()}
        return _object(head, {"choices": _list(choices)})

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
        addition = choice.take(emitted)
        if addition.text or addition.tokens or (addition.sources and self._body.return_sources):
            yield self._delta(choice, addition)
        if addition.finish_reason:
            yield self._end(choice, addition.finish_reason)

    def _with_sources(self, payload: dict[str, Any], addition: Addition) -> dict[str, Any]:
        if self._body.return_sources:
            payload["sources"] = addition.sources
        return payload

    def _asked(self, choice: _Choice) -> bool:
        return choice.request.params.logprobs is not None

    def _logprobs(self, choice: _Choice, addition: Addition) -> dict[str, Any] | None:
        return {**self._lists(choice, addition), **self.beside_logprobs} if self._asked(choice) else None

    def _encoded(self, choice: _Choice, whole: _Whole) -> bytes:
        addition = Addition("".join(whole.text), (), tuple(whole.sources), whole.finish_reason)
        logprobs = b"null"
        if self._asked(choice):
            logprobs = _object(self.beside_logprobs, {name: _list(each) for name, each in whole.logprobs.items()})
        return _object(self._with_sources(self._complete(choice, addition), addition), {"logprobs": logprobs})

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
        """A whole choice, but for its log-probabilities and sources."""

    @abstractmethod
    def _lists(self, choice: _Choice, addition: Addition) -> dict[str, list[Any]]:
        """The log-probabilities of an addition, one entry per token."""


class ChatAnswer(Answer):
    """The answer of /v1/chat/completions."""

    whole_object = "chat.completion"
    chunk_object = "chat.completion.chunk"
    prefix = "chatcmpl"
    beside_logprobs = MappingProxyType({"refusal": None})

    def _opening(self, choice: _Choice) -> Iterable[dict[str, Any]]:
        yield self._part(choice, {"role": "assistant", "content": ""})

    def _delta(self, choice: _Choice, addition: Addition) -> dict[str, Any]:
        part = self._part(choice, {"content": addition.text}, logprobs=self._logprobs(choice, addition))
        return self._with_sources(part, addition)

    def _end(self, choice: _Choice, reason: FinishReason) -> dict[str, Any]:
        return self._part(choice, {}, reason)

    def _complete(self, choice: _Choice, addition: Addition) -> dict[str, Any]:
        message = {"role": "assistant", "content": addition.text, "refusal": None}
        return {"index": choice.index, "message": message, "finish_reason": addition.finish_reason}

    def _part(
        self, choice: _Choice, delta: dict[str, Any], reason: FinishReason | None = None, logprobs: object = None
    ) -> dict[str, Any]:
        return {"index": choice.index, "delta": delta, "logprobs": logprobs, "finish_reason": reason}

    def _lists(self, choice: _Choice, addition: Addition) -> dict[str, list[Any]]:
        content = [
            {**self._entry(token.id, token.logprob), "top_logprobs": [self._entry(*each) for each in token.top]}
            for token in addition.tokens
        ]
        return {"content": content}

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
        part = {"text": addition.text, "logprobs": self._logprobs(choice, addition), "finish_reason": None}
        return self._with_sources({"index": choice.index, **part}, addition)

    def _end(self, choice: _Choice, reason: FinishReason) -> dict[str, Any]:
        return {"index": choice.index, "text": "", "logprobs": None, "finish_reason": reason}

    def _complete(self, choice: _Choice, addition: Addition) -> dict[str, Any]:
        return {"index": choice.index, "text": addition.text, "finish_reason": addition.finish_reason}

    def _lists(self, choice: _Choice, addition: Addition) -> dict[str, list[Any]]:
        offsets = []
        for token in addition.tokens:
            offsets.append(choice.characters)
            choice.characters += len(choice.detokeniser.push(token.id))
        return {
            "tokens": [self._text(token.id) for token in addition.tokens],
            "token_logprobs": [max(token.logprob, _VERY_UNLIKELY) for token in addition.tokens],
            "top_logprobs": [
                {
                    self._text(id): max(logprob, _VERY_UNLIKELY)
                    for id, logprob in (*token.top, (token.id, token.logprob))
                }
                for token in addition.tokens
            ],
            "text_offset": offsets,
        }


def event(body: object) -> bytes:
    """One server-sent event."""
    return b"data: " + encode(body) + b"\n\n"


def _object(body: Mapping[str, object], encoded: dict[str, bytes]) -> bytes:
    """A JSON object, of which some fields are encoded already."""
    fields = {name: encode(value) for name, value in body.items()} | encoded
    return b"{" + b",".join(b'"%s":%s' % (name.encode(), value) for name, value in fields.items()) + b"}"


def _list(encoded: Sequence[bytes]) -> bytes:
    return b"[" + b",".join(encoded) + b"]"
