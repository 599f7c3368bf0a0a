"""A draft model's prefix cache: what it finds of a text is, bit for bit, what a fresh prefill gives."""

from __future__ import annotations

import numpy as np
import pytest

from outrider.cache import BLOCK, KVCache
from outrider.drafters.model import ModelDrafter
from outrider.request import Request
from tests.drafters.test_model import GREEDY, LAW, VOCABULARY, ByHand, Spy, drafter_of, entries, fresh
from tests.scripted import ScriptedModel, make_engine, run

PROMPT = [n * 5 % 16 for n in range(70)]


def leave(drafter: ModelDrafter, prompt: list[int] = PROMPT) -> list[int]:
    """A text that is over; its tokens."""
    by_hand = ByHand(drafter, prompt)
    for accepted in (4, 0, 2, 1):
        by_hand.commit(by_hand.propose(), accepted)
    drafter.end(7)
    drafter._cache.check({})
    return by_hand.tokens


def assert_like_fresh(by_hand: ByHand, model: ScriptedModel) -> None:
    """Proposals and KV of the committed text are those of a drafter that computes everything."""
    proposal = by_hand.propose()
    assert proposal == ByHand(drafter_of(model), by_hand.tokens).propose()
    mine = entries(by_hand.drafter._cache, by_hand.kv, len(by_hand.tokens))
    for found, expected in zip(mine, fresh(model, by_hand.tokens), strict=True):
        np.testing.assert_array_equal(found, expected)


def test_the_next_turn_computes_only_what_is_new() -> None:
    spy = Spy(ScriptedModel(LAW))
    drafter = drafter_of(spy)
    text = leave(drafter)
    spy.passes.clear()
    by_hand = ByHand(drafter, [*text, 1, 2, 3])
    assert_like_fresh(by_hand, spy.model)
    assert spy.passes[0] == list(range(len(text) - 1, len(text) + 3))


@pytest.mark.parametrize("common", [1, BLOCK - 1, BLOCK, BLOCK + 1, 2 * BLOCK, 69])
def test_a_text_that_departs_computes_the_rest(common: int) -> None:
    spy = Spy(ScriptedModel(LAW))
    drafter = drafter_of(spy)
    text = leave(drafter)
    spy.passes.clear()
    by_hand = ByHand(drafter, [*text[:common], *(15 - token for token in text[common:])])
    assert_like_fresh(by_hand, spy.model)
    assert spy.passes[0][0] == common
    by_hand.commit(by_hand.propose(), 3)
    assert_like_fresh(by_hand, spy.model)


def test_the_same_text_computes_its_last_token_for_the_logits() -> None:
    spy = Spy(ScriptedModel(LAW))
    drafter = drafter_of(spy)
    text = leave(drafter)
    spy.passes.clear()
    assert_like_fresh(ByHand(drafter, text), spy.model)
    assert spy.passes[0] == [len(text) - 1]


@pytest.mark.parametrize(("first", "second"), [(True, False), (False, True), (False, False)])
def test_a_request_may_neither_use_nor_leave_anything(first: bool, second: bool) -> None:
    spy = Spy(ScriptedModel(LAW))
    drafter = drafter_of(spy)
    for reuse in (first, second):
        spy.passes.clear()
        run(make_engine(ScriptedModel(LAW), drafter), Request(PROMPT, GREEDY, reuse=reuse))
        assert spy.passes[0] == list(range(71)), "the prompt and the first token"
    assert (drafter._cache.pool.idle > 0) == (first or second)
    assert drafter._cache.pool.used == 0


def test_the_oldest_is_forgotten_first_and_the_pool_grows_no_larger() -> None:
    drafter = drafter_of(ScriptedModel(LAW), blocks=8)
    texts = [leave(drafter, [number, *PROMPT]) for number in range(6)]
    assert (drafter._cache.pool.used, drafter._cache.pool.size) == (0, 8)
    known = [drafter._cache.known(text) for text in texts]
    assert known == [0, 0, 0, known[3], len(texts[4]) - 1, len(texts[5]) - 1]
    assert known[3] < len(texts[3]) - 1


class Careless(ModelDrafter):
    """The planted fault: what was drafted last is taken for committed when the text ends."""

    def _let_go(self, text) -> None:
        text.tail.clear()
        self._cache.release(text.kv, text.keys)


def test_a_planted_fault_is_noticed() -> None:
    model = ScriptedModel(LAW)
    drafter = Careless(model, KVCache(model.kv_shape, 64), vocabulary=VOCABULARY)
    text = leave(drafter)
    with pytest.raises(AssertionError):
        assert_like_fresh(ByHand(drafter, [*text, 1, 2, 3]), model)
