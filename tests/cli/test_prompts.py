"""Files of prompts: three formats, and errors that name file and line."""

from __future__ import annotations

import json

import pytest

from outrider.cli.prompts import Entry, read_prompts, to_prompt
from outrider.errors import RequestError

SPEC_BENCH = {"question_id": 81, "category": "writing", "turns": ["First", "Second"]}


def user(text):
    return [{"role": "user", "content": text}]


@pytest.fixture
def read(tmp_path):
    """Read a file of that content."""

    def run(content, name="prompts", *, raw=False, system=None):
        path = tmp_path / name
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return read_prompts(path, raw=raw, system=system)

    return run


def test_text_is_one_prompt_a_line(read):
    assert [entry.prompt for entry in read("One\n\n  Two \r\nThree")] == [user("One"), user("  Two "), user("Three")]


def test_json_lines_hold_prompts_conversations_and_strings(read):
    conversation = [*user("One"), {"role": "assistant", "content": "1"}, *user("Two")]
    lines = [{"prompt": "A", "id": 7}, "B\nC", {"messages": conversation, "category": "chat"}]
    assert read("\n".join(map(json.dumps, lines))) == [
        Entry(user("A"), {}),
        Entry(user("B\nC"), {}),
        Entry(conversation, {"category": "chat"}),
    ]


def test_of_spec_bench_the_first_turn_is_asked_and_the_labels_are_kept(read):
    assert read(json.dumps(SPEC_BENCH)) == [Entry(user("First"), {"question_id": 81, "category": "writing"})]


def test_lines_end_at_line_feeds_only(read):
    """U+2028 and a form feed are ordinary characters in JSON and in text."""
    assert [entry.prompt for entry in read('"a\u2028b"\n"c\u0085d"')] == [user("a\u2028b"), user("c\u0085d")]
    assert [entry.prompt for entry in read("a\fb\nc")] == [user("a\fb"), user("c")]


def test_a_byte_order_mark_is_no_text(read):
    assert read("\ufeffHello")[0].prompt == user("Hello")


@pytest.mark.parametrize(
    ("name", "expected"), [("a.txt", '"A"'), ("a.jsonl", "A"), ("a.NDJSON", "A"), ("a", "A"), ("a.csv", "A")]
)
def test_the_name_decides_on_the_format_and_otherwise_the_first_line(read, name, expected):
    assert read('"A"', name)[0].prompt == user(expected)


def test_text_that_only_looks_like_json_is_text(read):
    for line in ('"Stop!" he said.', "{x} is a set", "42", "null", "[1, 2]"):
        assert read(line)[0].prompt == user(line)


def test_the_system_message_comes_first(read):
    opening = {"role": "system", "content": "Be brief."}
    assert read("Hello", system="Be brief.")[0].prompt == [opening, *user("Hello")]
    assert read(json.dumps({"messages": user("Hello")}), system="Be brief.")[0].prompt == [opening, *user("Hello")]


def test_raw_prompts_are_texts(read):
    assert read("  Hello", raw=True)[0].prompt == "  Hello"
    assert read(json.dumps(SPEC_BENCH), raw=True)[0].prompt == "First"


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "not JSON"),
        ("plain text", "not JSON"),
        ("[" * 100_000, "not JSON"),
        ("42", "42 is a number; expected an object or a string"),
        ("[1]", "a list"),
        ("{}", "the keys (none)"),
        ('{"text": "A", "id": 1}', "the keys id, text"),
        ('{"prompt": "A", "turns": ["B"]}', 'has "prompt" and "turns"'),
        ('{"prompt": 5}', '"prompt" is a number'),
        ('{"prompt": null}', '"prompt" is null'),
        ('{"prompt": ""}', "the prompt is empty"),
        ('{"turns": []}', '"turns" is []'),
        ('{"turns": [1]}', '"turns" is [1]'),
        ('{"turns": "A"}', '"turns" is "A"'),
        ('{"messages": []}', '"messages" is []'),
        ('{"messages": ["A"]}', 'messages[0] is "A"'),
        ('{"messages": [{"role": "user"}]}', 'messages[0] is {"role": "user"}'),
        ('{"messages": [{"role": "user", "content": "A", "name": "B"}]}', "messages[0]"),
        ('{"messages": [{"role": "user", "content": ["A"]}]}', "messages[0]"),
        ('{"prompt": "A", "temperature": 1}', '"temperature" cannot be set for one prompt; use --temperature'),
        ('{"prompt": "A", "stop_token_ids": [1]}', "use --stop-token-id "),
        ('{"prompt": "A", "prediction": "B"}', "use --prediction"),
        (b'"\xff"', "byte 0xff is not UTF-8"),
    ],
)
def test_a_bad_line_is_named(read, line, message):
    with pytest.raises(RequestError) as error:
        read(b'"fine"\n\n' + (line if isinstance(line, bytes) else line.encode()) + b"\n", "my.jsonl")
    assert "my.jsonl, line 3: " in str(error.value)
    assert message in str(error.value)


@pytest.mark.parametrize("content", ["", "\n \n"])
def test_a_file_without_prompts_is_an_error(read, content):
    with pytest.raises(RequestError, match="there are no prompts in it"):
        read(content)


def test_messages_do_not_go_with_raw_nor_with_two_system_messages(read):
    line = json.dumps({"messages": [{"role": "system", "content": "A"}, *user("B")]})
    with pytest.raises(RequestError, match=r"line 1: .*--raw"):
        read(line, raw=True)
    with pytest.raises(RequestError, match=r"line 1: .*--system"):
        read(line, system="C")


def test_a_prompt_is_left_as_it_is():
    assert to_prompt(" \n", raw=True, system=None) == " \n"
    assert to_prompt(" \n", raw=False, system=None) == user(" \n")
