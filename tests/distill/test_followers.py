"""The table holds what was counted: chances of followers, shorter n-grams' opinions mixed in, rare ones left out."""

from __future__ import annotations

import numpy as np
import pytest

from outrider.distill.followers import DISCOUNT, discounts, table
from outrider.distill.interview import Dialogue
from outrider.weights.followers import BITS, ORDERS


def said(*answers: list[int]) -> Dialogue:
    """A dialogue of a question, token 9, and these answers."""
    dialogue = Dialogue("chat", [9])
    for answer in answers:
        start = len(dialogue.tokens)
        dialogue.tokens += answer
        dialogue.answers.append((start, start + len(answer)))
    return dialogue


def chances(dialogues: list[Dialogue], *context: int) -> dict[int, float] | None:
    """What the table says after exactly this n-gram; None: it is not in it."""
    keys, tokens, parts = table(dialogues).parts[len(context)]
    key = 0
    for token in context:
        key = key << BITS | token
    if key not in keys.tolist():
        return None
    row = keys.tolist().index(key)
    return {int(t): int(c) / 256 for t, c in zip(tokens[row], parts[row], strict=True) if c}


def test_single_tokens_are_counted() -> None:
    dialogues = [said([1, 2, 1, 2, 1, 3, 1, 2])]
    assert chances(dialogues, 1) == {2: 0.75, 3: 0.25}
    assert chances(dialogues, 9) == {1: 255 / 256}  # a question's last token comes before an answer


def test_what_the_user_says_is_context_and_no_follower() -> None:
    dialogue = Dialogue("chat", [5, 6, 7, 8], [(3, 4)])
    assert chances([dialogue], 7) == {8: 255 / 256}
    assert chances([dialogue], 6) is chances([dialogue], 5) is None


def test_a_longer_context_doubts_itself_the_less_the_more_often_it_came() -> None:
    dialogues = [said([1, 2, 4], [1, 2, 4], [7, 2, 5], [7, 2, 5], [7, 2, 5], [7, 2, 5])]
    single = chances(dialogues, 2)
    assert single == {5: pytest.approx(4 / 6, abs=0.002), 4: pytest.approx(2 / 6, abs=0.002)}
    pair = chances(dialogues, 1, 2)
    assert pair is not None
    assert pair[4] == pytest.approx((2 - DISCOUNT + DISCOUNT * 2 / 6) / 2, abs=0.002)
    often = chances([said(*[[1, 2, 4]] * 50, *[[7, 2, 5]] * 50)], 1, 2)
    assert often is not None
    assert often[4] > 0.97


def test_discounts_follow_from_how_many_pairs_came_up_how_often() -> None:
    times = np.repeat([1, 2, 3, 4, 5, 40], [6000, 2000, 1000, 500, 100, 7])
    assert discounts(times) == pytest.approx([0, 0.6, 1.1, 1.8])  # y = 6 / (6 + 4)
    assert discounts(times[::50]).tolist() == [DISCOUNT] * 4  # too few to tell


def test_rare_ngrams_are_left_out_and_the_likeliest_followers_come_first() -> None:
    dialogues = [said([1, 2, 3]), said([4, 2, 3])]
    assert chances(dialogues, 1, 2) is None
    assert chances(dialogues, 2) == {3: 255 / 256}
    many = [said([7, t]) for t in range(20, 40) for _ in range(1 + t % 3)]
    row = list((chances(many, 7) or {}).values())
    assert len(row) == ORDERS[1]
    assert row == sorted(row, reverse=True)


def test_ngrams_do_not_run_from_one_dialogue_into_the_next() -> None:
    dialogues = [said([1, 2]), said([3, 4]), said([1, 2]), said([3, 4])]
    assert chances(dialogues, 2, 3) is chances(dialogues, 2, 9) is None
    assert all(part[0].tolist() == sorted(part[0].tolist()) for part in table(dialogues).parts.values())
    assert [len(part[0]) for part in table([]).parts.values()] == [0, 0, 0]
