"""Chat templates: Hugging Face's dialect, what messages are accepted, and what a hostile template cannot do."""

from __future__ import annotations

import re
import time
from typing import Any

import jinja2
import pytest

from outrider.errors import ModelError, ModelFileError, OutriderError, RequestError
from outrider.tokenizer.template import ChatTemplate, Message
from tests.tokenizer.small import TEMPLATE

HELLO: list[Message] = [{"role": "user", "content": "Hello"}]


def render(template: str, messages: list[Any] | None = None, **changes: bool) -> str:
    chat = ChatTemplate(template, "tiny.gguf", {"bos_token": "<s>", "eos_token": "</s>"})
    return chat.render(HELLO if messages is None else messages, **changes)


def test_a_conversation_is_rendered_turn_by_turn() -> None:
    messages = [*HELLO, {"role": "assistant", "content": "Hi"}]
    assert render(TEMPLATE, messages) == (
        "<|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\nHi<|im_end|>\n<|im_start|>assistant\n"
    )
    assert render(TEMPLATE, add_generation_prompt=False) == "<|im_start|>user\nHello<|im_end|>\n"


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        ("a\n  {% if true %}\nb\n  {% endif %}\nc", "a\nb\nc"),
        (
            "{% for i in range(8) %}{% if i == 2 %}{% continue %}{% elif i == 4 %}{% break %}{% endif %}{{ i }}{% endfor %}",
            "013",
        ),
        (
            "{% for c in 'abc' %}{{ c }}{{ loop.index }}{{ loop.length }}{{ ',' if not loop.last }}{% endfor %}",
            "a13,b23,c33",
        ),
        ("{{ messages[0] | tojson }}", '{"role": "user", "content": "Hello"}'),
        ("{{ {'b': '<é>', 'a': 1} | tojson(indent=1) }}", '{\n "b": "<é>",\n "a": 1\n}'),
        ("{{ bos_token + messages[0]['content'] | trim ~ eos_token }}", "<s>Hello</s>"),
        ("{{ tools is none and documents is none and not (pad_token is defined) }}", "True"),
        (
            "{% set ns = namespace(n=0) %}{% for m in messages %}{% set ns.n = ns.n + 1 %}{% endfor %}{{ ns.n * 2.5 }}",
            "2.5",
        ),
        ("{% macro f(x) %}[{{ x }}]{% endmacro %}{{ f('a') }}{{ messages | map(attribute='role') | join }}", "[a]user"),
        (
            "{{ 'n=%d' % 3 }} {{ 2 ** 10 }} {{ 0.5 * 1000000000 }} {{ '-' * 3 }} {{ [0] * 2 }}",
            "n=3 1024 500000000.0 --- [0, 0]",
        ),
        ("{{ strftime_now('%Y') | length }}", "4"),
    ],
)
def test_the_dialect_is_hugging_faces(template: str, expected: str) -> None:
    assert render(template) == expected


def test_a_template_may_refuse_a_conversation() -> None:
    with pytest.raises(
        RequestError, match=r"the chat template of tiny\.gguf refuses these messages: roles must alternate"
    ):
        render("{{ raise_exception('roles must alternate') }}")


@pytest.mark.parametrize(
    ("messages", "message"),
    [
        ([], "messages is empty"),
        ([{"role": "user"}], r"messages\[0\] has the keys \['role'\]; expected exactly role and content"),
        ([*HELLO, {**HELLO[0], "name": "x"}], r"messages\[1\] has the keys \['content', 'name', 'role'\]"),
        ([{"role": "user", "content": None}], r"messages\[0\]\.content is a NoneType; expected a string"),
        ([{"role": "user", "content": [{"type": "text"}]}], r"messages\[0\]\.content is a list"),
        ([{"role": 1, "content": ""}], r"messages\[0\]\.role is a int"),
    ],
)
def test_malformed_messages_are_refused(messages: list[Any], message: str) -> None:
    with pytest.raises(RequestError, match=message):
        render(TEMPLATE, messages)


@pytest.mark.parametrize(
    "template", ["{% if %}", "{{ 'open", "{% endfor %}", "{{ " + "(" * 100_000, "{{ x | nofilter }}"]
)
def test_an_invalid_template_is_refused(template: str) -> None:
    with pytest.raises(ModelFileError, match=r"tiny\.gguf: tokenizer\.chat_template is not valid"):
        render(template)


def test_a_huge_template_is_refused() -> None:
    with pytest.raises(ModelFileError, match="has 262145 characters; at most 262144"):
        render("x" * 262_145)


@pytest.mark.parametrize(
    "template", ["{{ 1 / 0 }}", "{{ messages[5].content }}", "{{ messages.nothing() }}", "{{ [] + 1 }}"]
)
def test_a_template_that_fails_is_reported(template: str) -> None:
    with pytest.raises(ModelError, match=r"tiny\.gguf: tokenizer\.chat_template failed: \w+Error"):
        render(template)


@pytest.mark.parametrize(
    "template",
    [
        "{{ ''.__class__ }}",
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ ''['__class__'] }}",
        "{{ '' | attr('__class__') }}",
        "{{ raise_exception.__globals__ }}",
        "{{ strftime_now.__globals__['json'] }}",
        "{{ self.__init__.__globals__ }}",
        "{{ cycler.__init__.__globals__.os }}",
        "{{ '{0.__class__}'.format(1) }}",
        "{% set x = messages.append(1) %}",
        "{% set x = messages[0].update(role='system') %}",
    ],
)
def test_a_template_cannot_reach_pythons_insides_or_change_its_input(template: str) -> None:
    """What it may not see is undefined: nothing if written out, an error if used."""
    try:
        text = render(template)
    except ModelError as refused:
        text = re.sub(".*(SecurityError|UndefinedError).*", "", str(refused), flags=re.DOTALL)
    assert text == ""


def test_jinja_without_a_sandbox_reaches_pythons_insides() -> None:
    """Negative control of the test above."""
    assert "class 'str'" in jinja2.Environment().from_string("{{ ''.__class__ }}").render()


@pytest.mark.parametrize(
    "template",
    [
        "{% for i in range(10 ** 9) %}{% endfor %}",
        "{% set r = range(9000) %}{% for a in r %}{% for b in r %}{% for c in r %}{% endfor %}{% endfor %}{% endfor %}",
        "{% set r = range(90000) %}{% for a in r if a > 5 %}{% for b in r if b < 0 %}{% endfor %}{% endfor %}",
        "{{ 'a' * 10 ** 9 }}",
        "{{ 1000000000 * 'a' }}",
        "{{ [0] * 10 ** 9 }}",
        "{{ 10 ** (10 ** 10) }}",
        "{% set ns = namespace(x=3) %}{% for i in range(99) %}{% set ns.x = ns.x * ns.x %}{% endfor %}",
        "{% set ns = namespace(x='a') %}{% for i in range(99) %}{% set ns.x = ns.x + ns.x %}{% endfor %}",
        "{% set ns = namespace(x='a') %}{% for i in range(99) %}{% set ns.x = ns.x ~ ns.x %}{% endfor %}",
        "{% set ns = namespace(x='a') %}{% for i in range(99) %}{% set ns.x = '%s%s' % (ns.x, ns.x) %}{% endfor %}",
        "{% set ns = namespace(x='a') %}{% for i in range(99) %}{% set ns.x = ns.x.replace('a', 'aa') %}{% endfor %}",
        "{% set ns = namespace(x='a') %}{% for i in range(99) %}{% set ns.x = ns.x | replace('a', 'aa') %}{% endfor %}",
        "{% set ns = namespace(x='a') %}{% for i in range(99) %}{% set ns.x %}{{ ns.x }}{{ ns.x }}{% endset %}{% endfor %}",
        "{{ 'a'.ljust(10 ** 9) }}",
        "{{ 'a' | center(1000000000) }}",
        "{{ [1] | batch(1000000000, 0) | list }}",
        "{{ [1] | slice(1000000000) | list }}",
        "{{ 'a' | indent(1000000000, true) }}",
        "{% macro f(n) %}{{ f(n - 1) if n }}{{ f(n - 1) if n }}{% endmacro %}{{ f(60) }}",
        "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
        "{% set x = 'a' * 1000000 %}{% for i in range(90000) %}{{ x }}{% endfor %}",
        "{% set x = 'a' * 1000000 %}{% set y %}{% for i in range(90000) %}{{ x }}{% endfor %}{% endset %}",
        "{% for x in [messages] recursive %}{{ loop(range(90000)) }}{% endfor %}",
        "{{ lipsum(1000000) }}",
    ],
)
def test_a_template_cannot_run_for_long_or_grow_without_bound(template: str) -> None:
    start = time.perf_counter()
    with pytest.raises(OutriderError, match=r"tiny\.gguf: tokenizer\.chat_template"):
        render(template)
    assert time.perf_counter() - start < 20  # a few seconds at most in quiet; unbounded ones take hours


def test_without_the_budget_growth_would_go_unnoticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Negative control of the test above."""
    monkeypatch.setattr("outrider.tokenizer.template._Sandbox.spend", lambda self, cost: None)
    assert len(render("{{ 'a' * 60000000 }}")) == 60_000_000


def test_long_conversations_fit_the_budget() -> None:
    """Even if a template rebuilds the whole text at each message, as some do."""
    template = (
        "{% set ns = namespace(t='') %}{% for m in messages %}{% set ns.t = ns.t + m.content %}{% endfor %}{{ ns.t }}"
    )
    messages = [{"role": "user", "content": "word " * 200}] * 300
    assert len(render(template, messages)) == 300_000


def test_renderings_do_not_share_a_budget() -> None:
    chat = ChatTemplate("{{ 'a' * 10000000 }}", "tiny.gguf", {})
    assert len({len(chat.render(HELLO)) for _ in range(4)}) == 1
