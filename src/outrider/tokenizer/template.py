"""A model's chat template: Jinja from a model file, thus foreign code, run in a sandbox with a budget.

What the sandbox stops: access to Python's insides and changes to values (jinja2's own), endless or huge loops and
recursion, and growth of text by operators, calls, filters or output. What remains possible for a hostile template: one
single step that takes gigabytes or minutes (`replace` on long texts, `%` with a huge width, writing out lists that hold
each other many times over), and any text it likes as the prompt. Trust it no further than the model it came with.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from functools import wraps
from typing import Any, NoReturn, TypedDict

from jinja2 import TemplateSyntaxError, nodes
from jinja2.compiler import CodeGenerator, Frame
from jinja2.exceptions import SecurityError
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment

from outrider.errors import ModelError, ModelFileError, RequestError

_LONGEST_TEMPLATE = 1 << 18  # characters; the longest known are about a tenth of it

# The budget counts characters made; a step (one turn of a loop, one call) counts as many as take about as long.
_STEP = 100
_BUDGET = 50_000_000
_BUDGET_PER_CHARACTER = 200  # of the messages; room for templates that rebuild the whole text at every message


class Message(TypedDict):
    """One turn of a conversation. Which roles exist is the template's business: mostly system, user, assistant."""

    role: str
    content: str


class ChatTemplate:
    """Renders conversations as Hugging Face's `apply_chat_template` does, with the same globals and filters."""

    def __init__(self, text: str, source: str, special_tokens: Mapping[str, str]) -> None:
        """Compile `text`, the template of the file `source`; `special_tokens`: "bos_token" -> its text, and so on.

        Raises ModelFileError if the template is too long or not valid Jinja.
        """
        self._source = source
        self._special_tokens = special_tokens
        if len(text) > _LONGEST_TEMPLATE:
            raise self._broken(f"has {len(text)} characters; at most {_LONGEST_TEMPLATE} are accepted")
        try:
            self._code = _Sandbox(_BUDGET).compile(text)
        except Exception as error:  # foreign text can fail anywhere between lexer and Python's compiler
            raise self._broken(f"is not valid: {_describe(error)}") from error

    def render(self, messages: Sequence[Message], *, add_generation_prompt: bool = True) -> str:
        """The prompt for `messages`, special tokens in writing; ends with the opening of the assistant's turn if asked.

        Raises RequestError if a message is malformed or the template refuses the conversation, ModelError if the
        template fails or exceeds its budget of work.
        """
        for index, message in enumerate(messages):
            _check(index, message)
        if not messages:
            raise RequestError("messages is empty; at least one message is needed")
        characters = sum(len(message["content"]) for message in messages)
        sandbox = _Sandbox(_BUDGET + _BUDGET_PER_CHARACTER * characters)
        template = sandbox.template_class.from_code(sandbox, self._code, sandbox.globals)
        pieces: list[str] = []
        try:
            for piece in template.generate(
                messages=[dict(message) for message in messages],
                add_generation_prompt=add_generation_prompt,
                tools=None,
                documents=None,
                **self._special_tokens,
            ):
                sandbox.spend(len(piece))
                pieces.append(piece)
        except _RefusedError as refusal:
            raise RequestError(f"the chat template of {self._source} refuses these messages: {refusal}") from refusal
        except Exception as error:  # foreign code may raise anything
            raise ModelError(f"{self._source}: tokenizer.chat_template failed: {_describe(error)}") from error
        return "".join(pieces)

    def _broken(self, what: str) -> ModelFileError:
        return ModelFileError(f"{self._source}: tokenizer.chat_template {what}")


def _check(index: int, message: Mapping[str, object]) -> None:
    if set(message) != {"role", "content"}:
        raise RequestError(f"messages[{index}] has the keys {sorted(message)}; expected exactly role and content")
    for key, value in message.items():
        if not isinstance(value, str):
            raise RequestError(f"messages[{index}].{key} is a {type(value).__name__}; expected a string")


def _describe(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"[:500]


class _RefusedError(Exception):
    """The template called raise_exception: it does not accept these messages."""


class _Generator(CodeGenerator):
    """jinja2's compiler, but `a ~ b` asks the sandbox; it has hooks for other operators, not for this one."""

    def visit_Concat(self, node: nodes.Concat, frame: Frame) -> None:
        self.write("environment.concatenate((")
        for operand in node.nodes:
            self.visit(operand, frame)
            self.write(", ")
        self.write("))")


class _Sandbox(ImmutableSandboxedEnvironment):
    """The environment of one rendering, with the budget that is left of it."""

    code_generator_class = _Generator
    intercepted_binops = frozenset({"+", "*", "**", "%"})

    def __init__(self, budget: int) -> None:
        super().__init__(
            trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"], finalize=self._output
        )
        self._budget = budget
        self.filters["tojson"] = _to_json
        self.filters = {name: self._metered(function) for name, function in self.filters.items()}
        self.filters[_LOOP] = self._turns
        del self.globals["lipsum"]
        self.globals |= {"raise_exception": _refuse, "strftime_now": _strftime_now}

    def spend(self, cost: int) -> None:
        """Take `cost` from the budget. Raises SecurityError if it is exhausted."""
        self._budget -= cost
        if self._budget < 0:
            raise SecurityError("the template exceeds its budget of work")

    def concatenate(self, operands: Iterable[object]) -> str:
        """`a ~ b ~ ...`"""
        texts = [str(operand) for operand in operands]
        self.spend(sum(map(len, texts)))
        return "".join(texts)

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        """The operators of `intercepted_binops`; those whose result can be huge are paid for first."""
        match operator:
            case "*":
                self.spend(_size_of_product(left, right))
            case "**":
                self.spend(_size(left) * abs(right) if isinstance(left, int) and isinstance(right, int) else _STEP)
            case _:
                self.spend(_size(left) + _size(right))
        result = super().call_binop(context, operator, left, right)
        self.spend(_size(result) if operator == "%" else 0)
        return result

    def call(self, context: Context, function: Any, /, *args: Any, **kwargs: Any) -> Any:
        """Any call in a template: functions, methods, macros. Numbers count for what they ask: range(n), ljust(n)."""
        self.spend(_STEP + sum(abs(arg) for arg in (*args, *kwargs.values()) if isinstance(arg, int)))
        result = super().call(context, function, *args, **kwargs)
        self.spend(_size(result))
        return result

    def _metered(self, function: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(function)
        def metered(*args: Any, **kwargs: Any) -> Any:
            self.spend(_STEP + sum(abs(arg) for arg in (*args[1:], *kwargs.values()) if isinstance(arg, int)))
            result = function(*args, **kwargs)
            self.spend(_size(result))
            return result

        return metered

    def _turns(self, values: Iterable[object]) -> Iterator[object]:
        for value in values:
            self.spend(_STEP)
            yield value

    def _output(self, value: object) -> str:
        text = str(value)
        self.spend(len(text))
        return text

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        template = super()._parse(source, name, filename)
        for loop in template.find_all(nodes.For):
            if loop.recursive:
                raise TemplateSyntaxError("recursive loops are not supported", loop.lineno)
            metered = nodes.Filter(loop.iter, _LOOP, [], [], None, None, lineno=loop.lineno)
            loop.iter = metered.set_environment(self)
        return template


_LOOP = "turns of a loop"  # not a name that a template can write


def _size(value: object) -> int:
    """How much a value holds: characters, items, bits."""
    if isinstance(value, int):
        return value.bit_length()
    return len(value) if isinstance(value, (str, list, tuple, dict)) else 1


def _size_of_product(left: object, right: object) -> int:
    for sequence, count in ((left, right), (right, left)):
        if isinstance(sequence, (str, list, tuple)) and isinstance(count, int):
            return len(sequence) * max(count, 0)
    return _size(left) * _size(right)


def _refuse(message: str) -> NoReturn:
    raise _RefusedError(message)


def _strftime_now(form: str) -> str:
    return datetime.now().strftime(form)


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Hugging Face's `tojson`: jinja2's own escapes HTML, which a prompt must not."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)
