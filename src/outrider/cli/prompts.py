"""Where prompts come from: stdin, and files of many prompts as text, as JSON lines, or in Spec-Bench's format."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from outrider.errors import RequestError

if TYPE_CHECKING:
    from outrider.llm import Prompt
    from outrider.tokenizer import Message

    Content = str | list[Message]
    _Parsed = tuple[Content, Mapping[str, object]]

FORMS = ("prompt", "messages", "turns")
KEPT = ("question_id", "category")


@dataclass(frozen=True, slots=True)
class Entry:
    """One prompt of a file, and the fields to repeat beside its answer."""

    prompt: Prompt
    fields: Mapping[str, object]


def to_prompt(content: Content, *, raw: bool, system: str | None) -> Prompt:
    """What the model gets: the text itself if raw, else a conversation, opened by the system message.

    Raises RequestError where the two do not go together.
    """
    if isinstance(content, str):
        if raw:
            return content
        if not content:
            raise RequestError("the prompt is empty")
        messages: list[Message] = [{"role": "user", "content": content}]
    elif raw:
        raise RequestError('"messages" need the chat template, which --raw leaves out')
    else:
        messages = content
    if system is None:
        return messages
    if messages[0]["role"] == "system":
        raise RequestError("the messages begin with a system message, and there is --system")
    opening: Message = {"role": "system", "content": system}
    return [opening, *messages]


def read_stdin() -> str:
    """All of stdin, without the end of its last line."""
    return _decode(sys.stdin.buffer.read(), "stdin").removesuffix("\n").removesuffix("\r")


def read_text(path: Path) -> str:
    """A whole file. Raises RequestError if it is not UTF-8."""
    return _decode(path.read_bytes(), str(path))


def read_prompts(path: Path, *, raw: bool, system: str | None) -> list[Entry]:
    """The prompts of a file ("-": of stdin); blank lines are skipped.

    A name that ends in .txt means text, one in .jsonl, .ndjson or .json means JSON lines; otherwise the first line
    that is not blank decides. Raises RequestError naming file and line.
    """
    name = "stdin" if str(path) == "-" else str(path)
    text = _decode(sys.stdin.buffer.read(), name) if str(path) == "-" else read_text(path)
    lines = [(number, line) for number, line in enumerate(text.split("\n"), start=1) if line.strip()]
    if not lines:
        raise RequestError(f"{name}: there are no prompts in it")
    parse = _parser(path.suffix.lower(), lines[0][1])
    entries = []
    for number, line in lines:
        try:
            content, kept = parse(line.removesuffix("\r"))
            entries.append(Entry(to_prompt(content, raw=raw, system=system), kept))
        except RequestError as error:
            raise RequestError(f"{name}, line {number}: {error}") from error
    return entries


def _parser(suffix: str, first_line: str) -> Callable[[str], _Parsed]:
    if suffix == ".txt":
        return _parse_text
    if suffix in (".jsonl", ".ndjson", ".json"):
        return _parse_json
    try:
        return _parse_json if isinstance(json.loads(first_line), dict | str) else _parse_text
    except (ValueError, RecursionError):
        return _parse_text


def _parse_text(line: str) -> _Parsed:
    return line, {}


def _parse_json(line: str) -> _Parsed:
    """A JSON string, or an object with one of FORMS."""
    try:
        value = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise RequestError(f"this is not JSON: {error}") from error
    if isinstance(value, str):
        return value, {}
    if not isinstance(value, dict):
        raise RequestError(f"{line:.40} is {_kind(value)}; expected an object or a string")
    found = [form for form in FORMS if form in value]
    if len(found) != 1:
        have = " and ".join(f'"{form}"' for form in found) or f"the keys {', '.join(sorted(value)) or '(none)'}"
        raise RequestError(f'the object has {have}; expected exactly one of "prompt", "messages", "turns"')
    from outrider.sampling import SamplingParams

    # Keys that would change the answer are options of the command; to skip them silently would be wrong.
    options = {"model", "prediction", "system", *(option.name for option in fields(SamplingParams))}
    if refused := sorted(options & value.keys()):
        option = "--" + refused[0].replace("_", "-").replace("token-ids", "token-id")
        raise RequestError(f'"{refused[0]}" cannot be set for one prompt; use {option} for all of them')
    return _content(found[0], value[found[0]]), {key: value[key] for key in KEPT if key in value}


def _content(form: str, value: Any) -> Content:
    match form:
        case "prompt":
            if not isinstance(value, str):
                raise RequestError(f'"prompt" is {_kind(value)}; expected a string')
            return value
        case "turns":
            if not (isinstance(value, list) and value and all(isinstance(turn, str) for turn in value)):
                raise RequestError(f'"turns" is {json.dumps(value):.40}; expected a list of at least one string')
            return str(value[0])
        case _:
            if not (isinstance(value, list) and value):
                raise RequestError(f'"messages" is {json.dumps(value):.40}; expected a list of at least one message')
            return list(_messages(value))


def _messages(values: list[Any]) -> Iterator[Message]:
    for index, value in enumerate(values):
        match value:
            case {"role": str(role), "content": str(content), **others} if not others:
                yield {"role": role, "content": content}
            case _:
                found = json.dumps(value)
                raise RequestError(f'messages[{index}] is {found:.60}; expected {{"role": ..., "content": ...}}')


def _kind(value: object) -> str:
    names = {bool: "true or false", type(None): "null", int: "a number", float: "a number", list: "a list"}
    return names.get(type(value), "an object")


def _decode(data: bytes, name: str) -> str:
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data[: error.start].count(b"\n") + 1
        raise RequestError(f"{name}, line {line}: byte 0x{data[error.start]:02x} is not UTF-8 text") from error
