"""Stop strings: the cut is a function of the text, and what goes out is never taken back."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from outrider.stops import StopMatcher


def let_out(pieces, stops):
    """What a matcher lets out of a text in pieces, and whether it stopped."""
    matcher = StopMatcher(stops)
    out = []
    for piece in pieces:
        out.append(matcher.push(piece))
        if matcher.stopped:
            break
    else:
        out.append(matcher.flush())
    return out, matcher.stopped


def cut(text, stops):
    """The oracle: the text up to the stop string that is complete first, character by character."""
    for end in range(len(text) + 1):
        complete = [len(stop) for stop in stops if text[:end].endswith(stop)]
        if complete:
            return text[: end - max(complete)], True
    return text, False


def check(text, stops, cuts):
    edges = sorted({0, len(text), *(edge % (len(text) + 1) for edge in cuts)})
    out, stopped = let_out([text[a:b] for a, b in itertools.pairwise(edges)], stops)
    assert ("".join(out), stopped) == cut(text, stops)


STOPS = st.lists(st.text("ab ", min_size=1, max_size=4), max_size=3)


@given(st.text("ab ", max_size=30), STOPS, st.lists(st.integers(0, 30)))
@example("abcd", ["abcd", "bc"], [])
@example("abcd", ["abcd", "bc"], [2])
def test_the_cut_does_not_depend_on_the_pieces(text, stops, cuts):
    """B47, B49: in the middle of a piece, over several, at the end, several stops at once."""
    check(text, stops, cuts)


def test_a_window_of_one_piece_would_be_seen(monkeypatch):
    """B47, negative control: a matcher that looks only at the newest piece."""
    monkeypatch.setattr(StopMatcher, "_begun", lambda self, text: 0)
    with pytest.raises(AssertionError):
        check("xxabxx", ["ab"], [3])


def test_text_comes_out_in_order_and_only_what_may_be_a_stop_is_kept_back():
    """B51: the stop "of them" and the text "three of them made"."""
    matcher = StopMatcher(["of them"])
    assert [matcher.push(piece) for piece in ("three of", " th", "is", " o", "f the")] == [
        "three ",
        "",
        "of this",
        " ",
        "",
    ]
    assert matcher.push("m made") == ""
    assert matcher.stopped
    assert let_out(["three", " of", " them", " made"], ["of them"]) == (["three", " ", ""], True)


def test_what_was_kept_back_comes_out_at_the_end():
    assert let_out(["wait o"], ["of"]) == (["wait ", "o"], False)


def test_without_stops_everything_goes_out_at_once():
    assert let_out(["a", "", "b"], []) == (["a", "", "b", ""], False)
