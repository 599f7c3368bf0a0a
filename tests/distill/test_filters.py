from __future__ import annotations

from outrider.distill.filters import OVERLAP, Filter, degenerate


def test_a_question_is_kept_once():
    known = Filter()
    assert known.keeps("text", ["Why is the sky blue?"], [[1, 2, 3]])
    assert not known.keeps("text", ["why is  the SKY blue?"], [[4, 5, 6]])
    assert known.keeps("text", ["Why is the sea blue?"], [[1, 2, 3]])


def test_questions_of_earlier_sittings_are_known():
    known = Filter()
    known.remember(["Why?"])
    assert not known.keeps("text", ["why?"], [[1]])


def test_no_thirteen_words_of_a_text_kept_aside_come_in():
    words = [f"w{i}" for i in range(40)]
    known = Filter([" ".join(words)])
    assert not known.keeps("x " + " ".join(words[7 : 7 + OVERLAP]).upper() + " y", [], [[1]])
    assert known.keeps("x " + " ".join(words[7 : 6 + OVERLAP]) + " y", [], [[1]])


def test_loops_are_degenerate_and_mild_repetition_is_not():
    assert degenerate([1, 2, 3] * 20)
    assert not degenerate([*range(60), *range(60)])
    assert not degenerate([])
    assert not Filter().keeps("text", [], [[1, 2, 3], [5] * 50])
