"""The caller's prediction is followed, lost and found again."""

from __future__ import annotations

import pytest

from outrider.drafters.base import DraftRequest, RequestView
from outrider.drafters.prediction import PredictionDrafter, Uptake
from outrider.types import EMPTY, Proposal

PROMPT = [90, 91, 92]


class Follower:
    """One request with a prediction; `after(output)` is the proposal once that much has been committed."""

    def __init__(self, prediction: tuple[int, ...], k: int = 3) -> None:
        self.drafter = PredictionDrafter(k)
        self.prediction = prediction
        self.drafter.begin(RequestView(id=1, tokens=PROMPT, prompt_length=3, prediction=prediction))

    def after(self, *output: int, most: int = 9) -> Proposal:
        request = DraftRequest(id=1, tokens=[*PROMPT, *output], prompt_length=3, prediction=self.prediction, most=most)
        return self.drafter.propose([request])[0]


def test_it_begins_at_the_beginning_and_goes_on_while_it_holds() -> None:
    follower = Follower((1, 2, 3, 4, 5, 6))
    assert follower.after().tokens == (1, 2, 3)
    assert follower.after(1, 2).tokens == (3, 4, 5)
    assert follower.after(1, 2, 3, 4).tokens == (5, 6)
    assert follower.after(1, 2, 3, 4, 5, 6) is EMPTY
    assert follower.after(1, 2, 3, 4, 5, 6, 7) is EMPTY


def test_no_prediction_and_no_room_are_ordinary() -> None:
    assert Follower(()).after(1, 2) is EMPTY
    follower = Follower((1, 2, 3))
    assert follower.after(most=0) is EMPTY
    assert follower.after(most=1).tokens == (1,)


@pytest.mark.parametrize(
    ("output", "then"),
    [
        ((1, 2, 9), ()),  # departed
        ((1, 2, 9, 4), ()),  # one token is no evidence
        ((1, 2, 9, 4, 5), (6, 7)),  # a token replaced
        ((1, 2, 9, 9, 3, 4), (5, 6, 7)),  # tokens inserted
        ((1, 2, 5, 6), (7,)),  # tokens left out
        ((9, 9, 9), ()),
    ],
)
def test_after_a_departure_it_finds_its_place_again(output: tuple[int, ...], then: tuple[int, ...]) -> None:
    assert Follower((1, 2, 3, 4, 5, 6, 7)).after(*output).tokens == then
    stepwise = Follower((1, 2, 3, 4, 5, 6, 7))
    for length in range(len(output) + 1):
        proposal = stepwise.after(*output[:length])
    assert proposal.tokens == then


def test_of_equal_places_the_next_one_ahead_is_taken() -> None:
    text = (7, 8, 10, 7, 8, 11, 7, 8, 12, 5)
    follower = Follower(text)
    assert follower.after(7, 8, 10).tokens == (7, 8, 11)
    assert follower.after(7, 8, 10, 9, 7, 8).tokens == (11, 7, 8)
    follower = Follower(text)
    assert follower.after(7, 8, 10, 7, 8, 11).tokens == (7, 8, 12)
    assert follower.after(7, 8, 10, 7, 8, 11, 9, 7, 8).tokens == (12, 5)


def test_a_longer_match_beats_a_nearer_one_and_behind_is_better_than_nothing() -> None:
    assert Follower((1, 2, 3, 6, 7, 8, 5, 6, 7, 9)).after(0, 5, 6, 7).tokens == (9,)
    follower = Follower((1, 2, 3, 4, 5))
    assert follower.after(1, 2, 3, 4, 5).tokens == ()
    assert follower.after(1, 2, 3, 4, 5, 1, 2).tokens == (3, 4, 5)


def test_the_prompt_is_not_taken_for_output() -> None:
    follower = Follower((91, 92, 1, 2))
    assert follower.after().tokens == (91, 92, 1)
    assert follower.after(5) is EMPTY


def test_after_the_end_nothing_is_held() -> None:
    follower = Follower((1, 2, 3))
    follower.drafter.end(1)
    follower.drafter.end(1)
    assert not follower.drafter._places


@pytest.mark.parametrize(
    ("prediction", "output", "accepted"),
    [
        ([1, 2, 3], [1, 2, 3], 3),
        ([1, 2, 3], [1, 2, 3, 4, 5], 3),
        ([1, 2, 3, 4], [1, 2], 2),
        ([1, 2, 3], [7, 8, 9], 0),
        ([1, 2, 3, 4, 5, 6], [1, 2, 9, 4, 5, 6], 5),  # one token replaced
        ([1, 2, 3, 4, 5, 6], [9, 9, 4, 5, 6], 3),
        ([1, 2, 3], [1, 2, 3, 1, 2, 3], 3),  # no token is taken up twice
        ([1], [1], 1),
        ([], [1, 2], 0),
    ],
)
@pytest.mark.parametrize("run", [1, 2, 100])
def test_uptake_counts_the_predicted_tokens_in_the_output(prediction, output, accepted, run):
    uptake = Uptake(prediction)
    for begin in range(0, len(output), run):
        uptake.add(output[begin : begin + run])
    assert (uptake.accepted, uptake.rejected) == (accepted, len(prediction) - accepted)
