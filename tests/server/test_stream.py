"""What reaches a client of what the steps commit: stop strings and characters that lie across steps, cuts and ends."""

from __future__ import annotations

import json

import pytest

from outrider.types import EMPTY
from tests.scripted import accepted, script

VOCABULARY = 269  # bytes, merges and control tokens of the tiny model
END = 268


def law_of(text, *, end=True):
    """A model that writes these bytes after a prompt of one token, and then ends the text."""
    return script([*text.encode(), *([END] if end else [])], VOCABULARY)


def draft_of(law, right, k=4):
    """Four drafted tokens a step, of which so many are right; none at all if `right` is None."""
    return (lambda request: EMPTY) if right is None else accepted(law, lambda request: right, k)


def stream(server, **body):
    """The choices' parts of a stream with one choice."""
    response = server.post("/v1/completions", prompt=[1], temperature=0, stream=True, **body)
    assert response.status_code == 200, response.text
    events = [line.removeprefix("data: ") for line in response.text.split("\n\n") if line]
    assert events.pop() == "[DONE]"
    return [json.loads(each)["choices"][0] for each in events]


def whole(server, **body):
    return server.post("/v1/completions", prompt=[1], temperature=0, **body).json()["choices"][0]


RIGHT = [None, 0, 1, 2, 3, 4]


@pytest.mark.parametrize("right", RIGHT)
@pytest.mark.parametrize(
    ("stop", "text"),
    [("of them", "three "), (" of", "three"), (["made", "them"], "three of "), ("e", "thr"), ("nothing", None),
     ("made it", None)],
)  # fmt: skip
def test_a_stop_string_ends_the_text_wherever_the_steps_fall(scripted, right, stop, text):
    """B47 to B51: in the middle of a step's run, across two steps, and as a beginning that comes to nothing."""
    law = law_of("three of them made")
    server = scripted(law, draft_of(law, right))
    expected = "three of them made" if text is None else text
    parts = stream(server, max_tokens=50, stop=stop)
    assert "".join(part["text"] for part in parts) == expected
    assert [part["finish_reason"] for part in parts] == [None] * (len(parts) - 1) + ["stop"]
    one = whole(server, max_tokens=50, stop=stop, logprobs=0)
    assert (one["text"], one["finish_reason"]) == (expected, "stop")
    assert "".join(one["logprobs"]["tokens"]).startswith(expected)


@pytest.mark.parametrize("right", RIGHT)
def test_no_half_character_reaches_a_client(scripted, right):
    """B52 to B54: the bytes of a character over several tokens and steps are one delta."""
    text = "né😀😀 世界!"
    law = law_of(text)
    parts = [part["text"] for part in stream(scripted(law, draft_of(law, right)), max_tokens=50)]
    assert "".join(parts) == text
    assert not any("\ufffd" in part for part in parts)
    assert len(parts) > 3


@pytest.mark.parametrize("right", [None, 4])
@pytest.mark.parametrize("limit", range(1, 7))
def test_a_character_that_is_cut_off_is_replaced_once(scripted, right, limit):
    law = law_of("a😀b")
    server = scripted(law, draft_of(law, right))
    expected = "a😀b".encode()[:limit].decode("utf-8", "replace")
    parts = stream(server, max_tokens=limit)
    assert "".join(part["text"] for part in parts) == expected == whole(server, max_tokens=limit)["text"]
    assert parts[-1]["finish_reason"] == "length"


def test_each_step_is_an_event_of_its_own(scripted):
    """A burst at the end would be no stream."""
    law = law_of("a" * 40, end=False)
    parts = stream(scripted(law, draft_of(law, 4)), max_tokens=41, return_sources=True)
    assert [len(part["text"]) for part in parts] == [*[5] * 8, 1, 0]
    assert parts[0]["sources"] == ["accepted"] * 4 + ["bonus"]


def test_the_letters_of_a_stop_string_are_held_back_only_while_it_may_come(scripted):
    law = law_of("of this")
    parts = [part["text"] for part in stream(scripted(law), max_tokens=50, stop="of them")]
    assert parts == ["of thi", "s", ""]
