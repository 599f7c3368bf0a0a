"""The head's prefix cache: what it finds of a text is, bit for bit, what a fresh one computes, and drafts stay the same."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from outrider.cache import BLOCK
from outrider.drafters.base import RequestView
from outrider.drafters.eagle import EagleDrafter, _Text
from outrider.heads import DraftHead
from outrider.types import EMPTY
from tests.drafters.eagle_rig import LAYERS, Session, draft_head, fresh, kept, taps
from tests.drafters.test_eagle import PROMPT, CountedPasses
from tests.heads.tiny_head import tiny_head

REST = [n * 3 % 200 for n in range(40)]


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> DraftHead:
    """A head without a target."""
    return draft_head(tiny_head(tmp_path_factory.mktemp("alone")))


class Warm(Session):
    """A request whose first `start` positions the target did not compute."""

    def __init__(
        self, drafter: EagleDrafter, prompt: Sequence[int], start: int, *, request_id: int = 2, reuse: bool = True
    ) -> None:
        self.id, self.drafter, self.tokens = request_id, drafter, list(prompt)
        self.prompt_length = len(prompt)
        drafter.begin(RequestView(id=request_id, tokens=self.tokens, prompt_length=len(prompt), reuse=reuse))
        self.tell(start, len(prompt))
        self.tokens.append(0)


def run(session: Session, rounds: int = 7) -> None:
    """Some steps, of which the last one commits what the head has not read when the text ends."""
    for number in range(rounds):
        session.commit(session.drafter.propose([session.request()])[0], number % 6, number)


def check(drafter: EagleDrafter) -> None:
    drafter._cache.check({text.entries: text.keys for text in drafter._texts.values()})


def leave(drafter: EagleDrafter, prompt: Sequence[int] = PROMPT, request_id: int = 1) -> list[int]:
    """A text that is over; its tokens."""
    session = Session(drafter, prompt, request_id=request_id)
    run(session)
    drafter.end(request_id)
    check(drafter)
    return session.tokens


def assert_like_fresh(head: DraftHead, session: Session) -> None:
    """Proposals and KV of the whole text are those of a drafter that was there from the beginning."""
    assert isinstance(session.drafter, EagleDrafter)
    proposal = session.drafter.propose([session.request()])[0]
    whole = taps(session.tokens, 0, len(session.tokens) - 1)
    other, expected = fresh(head, session.tokens, whole, session.request())
    assert (proposal.tokens, proposal.estimates) == (expected.tokens, expected.estimates)
    assert len(proposal) == 5
    check(session.drafter)
    for mine, wanted in zip(kept(session.drafter, session.id), kept(other, session.id), strict=True):
        assert len(mine) == len(session.tokens) - 1
        np.testing.assert_array_equal(mine, wanted)


def test_the_next_turn_finds_the_whole_text_before(alone: DraftHead) -> None:
    """To its last position: the target will not compute it again, so nobody else could make the head's entry."""
    drafter = EagleDrafter(alone, LAYERS, positions=1024)
    text = leave(drafter)
    session = Warm(drafter, [*text, *REST], len(text) - 2)
    passes = CountedPasses(drafter)
    assert_like_fresh(alone, session)
    assert passes.positions[0] == list(range(len(text) - 1, len(text) + len(REST)))
    session.commit(EMPTY, 0, 9)
    run(session)
    assert_like_fresh(alone, session)


@pytest.mark.parametrize("common", [1, 2, BLOCK - 1, BLOCK, BLOCK + 1, BLOCK + 2, 50, 2 * BLOCK, 69])
def test_a_text_that_departs_finds_what_they_have_in_common(alone: DraftHead, common: int) -> None:
    """But for the entry of the last common token, which depends on the next: its hidden states come anew."""
    drafter = EagleDrafter(alone, LAYERS, positions=1024)
    text = leave(drafter)
    session = Warm(drafter, [*text[:common], *(268 - token for token in text[common:]), 1, 2, 3], common - 1)
    passes = CountedPasses(drafter)
    assert_like_fresh(alone, session)
    assert passes.positions[0][0] == common - 1
    run(session)
    assert_like_fresh(alone, session)


def test_texts_that_run_together_share_their_beginning(alone: DraftHead) -> None:
    drafter = EagleDrafter(alone, LAYERS, positions=1024)
    first = Session(drafter, PROMPT)
    run(first)
    second = Warm(drafter, [*PROMPT, *REST], len(PROMPT) - 7)
    assert_like_fresh(alone, second)
    assert_like_fresh(alone, first)
    shared = len(PROMPT) // BLOCK
    assert drafter._texts[1].entries.blocks[:shared] == drafter._texts[2].entries.blocks[:shared]
    for session in (first, second):
        session.commit(EMPTY, 0, 9)
        run(session)
        assert_like_fresh(alone, session)


def test_several_choices_wait_until_the_first_has_read_their_prompt(alone: DraftHead) -> None:
    """The target computes the full blocks of a prompt once for all of them, before anybody drafts."""
    start = 2 * BLOCK - 1
    drafter = EagleDrafter(alone, LAYERS, positions=1024)
    first = Session(drafter, PROMPT)
    others = [Warm(drafter, PROMPT, start, request_id=n) for n in (2, 3)]
    own = Warm(drafter, PROMPT, start, request_id=4, reuse=False)
    other = Warm(drafter, [1, *PROMPT], start, request_id=5)
    sessions = [*others, first, own, other]
    lengths = [len(proposal) for proposal in drafter.propose([session.request() for session in sessions])]
    assert lengths == [0, 0, 5, 5, 5]
    assert drafter.skipped == {"catching up": 2}
    for session in sessions:
        session.commit(EMPTY, 0, 9)
    for session in (*others, first):
        assert_like_fresh(alone, session)
    assert [drafter._texts[n].origin for n in (4, 5)] == [start] * 2


def test_nobody_waits_for_one_that_is_not_drafted_for(alone: DraftHead) -> None:
    drafter = EagleDrafter(alone, LAYERS, positions=1024)
    first, second = Session(drafter, PROMPT), Warm(drafter, PROMPT, 2 * BLOCK - 1)
    lengths = [len(proposal) for proposal in drafter.propose([first.request(0), second.request()])]
    assert lengths == [0, 5]


def test_what_the_head_knows_it_does_not_read_again_though_the_target_did(alone: DraftHead) -> None:
    drafter = EagleDrafter(alone, LAYERS, positions=1024)
    text = leave(drafter)
    session = Warm(drafter, [*text, 1, 2, 3], 0)
    passes = CountedPasses(drafter)
    assert_like_fresh(alone, session)
    assert len(passes.positions[0]) == 4


def test_the_last_position_is_read_again_for_its_logits(alone: DraftHead) -> None:
    drafter = EagleDrafter(alone, LAYERS, positions=1024)
    text = leave(drafter)
    session = Warm(drafter, text[:-1], 30)
    session.tokens[-1] = text[-1]
    passes = CountedPasses(drafter)
    assert_like_fresh(alone, session)
    assert len(passes.positions[0]) == 1


def test_where_something_is_missing_in_between_the_head_sees_the_rest_alone(alone: DraftHead) -> None:
    """As without a cache of its own; what it computes then is not the whole text's, and nobody else's."""
    drafter = EagleDrafter(alone, LAYERS, positions=1024)
    text = leave(drafter)
    session = Warm(drafter, [*text[:50], *REST], 50)  # the last common position is gone
    run(session, 3)
    assert drafter._texts[2].origin == 50
    seen = session.tokens[50:]
    states = taps(session.tokens, 50, len(session.tokens) - 1)
    proposal = drafter.propose([session.request()])[0]
    _, expected = fresh(alone, seen, replace(states, start=0), replace(session.request(), tokens=seen))
    assert (proposal.tokens, proposal.estimates) == (expected.tokens, expected.estimates)
    idle = drafter._cache.pool.idle
    drafter.end(2)
    assert drafter._cache.pool.idle == idle
    check(drafter)


def test_a_text_that_gave_way_finds_its_own_again(alone: DraftHead) -> None:
    """The target takes more from others, after a preemption, than it had computed of this text itself."""
    drafter = EagleDrafter(alone, LAYERS, positions=1024)
    session = Session(drafter, PROMPT[:40])
    session.tokens[:] = PROMPT[:41]
    assert drafter.propose([session.request()])[0]
    text = leave(drafter, request_id=2)
    session.tokens[:] = [*text[:70], 1, 2]
    session.tell(69, 71)
    assert_like_fresh(alone, session)
    assert drafter._texts[1].origin == 0


@pytest.mark.parametrize(("first", "second"), [(True, False), (False, True), (False, False)])
def test_a_request_may_neither_use_nor_leave_anything(alone: DraftHead, first: bool, second: bool) -> None:
    drafter = EagleDrafter(alone, LAYERS, positions=1024)
    session = Warm(drafter, PROMPT, 0, request_id=1, reuse=first)
    run(session)
    drafter.end(1)
    assert (drafter._cache.pool.idle > 0) == first
    passes = CountedPasses(drafter)
    again = Warm(drafter, [*session.tokens, 1, 2, 3], 0, reuse=second)
    assert_like_fresh(alone, again)
    assert len(passes.positions[0]) == len(session.tokens) + 3
    drafter.end(2)
    assert (drafter._cache.pool.idle > 0) == (first or second)


def test_a_text_that_was_never_drafted_for_leaves_nothing_and_costs_nothing(alone: DraftHead) -> None:
    drafter = EagleDrafter(alone, LAYERS, positions=1024)
    leave(drafter)
    passes = CountedPasses(drafter)
    used = drafter._cache.pool.idle
    session = Session(drafter, PROMPT, request_id=2)
    session.commit(EMPTY, 0, 3)
    drafter.end(2)
    assert (passes.count, drafter._cache.pool.idle) == (0, used)


def test_the_oldest_is_forgotten_first_and_the_pool_grows_no_larger(alone: DraftHead) -> None:
    drafter = EagleDrafter(alone, LAYERS, positions=8 * BLOCK)
    texts = []
    for number in range(6):
        texts.append(leave(drafter, [number, *PROMPT], request_id=number))
        assert drafter._cache.pool.used == 0
        assert drafter._cache.pool.idle <= drafter._cache.pool.size == 8
    whole = [drafter._cache.known(list(pairwise(text))) == len(text) - 1 for text in texts]
    assert whole == [False] * 4 + [True] * 2
    session = Warm(drafter, [*texts[4], *REST], len(texts[4]) - 2, request_id=9)  # is used once more
    run(session, 1)
    drafter.end(9)
    leave(drafter, [9, *PROMPT], request_id=10)
    known = [drafter._cache.known(list(pairwise(text))) for text in texts[4:]]
    assert known[0] > known[1]


def test_a_text_that_ended_with_an_error_does_no_harm(alone: DraftHead) -> None:
    """It has hidden states of its last token, too, after which there is none."""
    drafter = EagleDrafter(alone, LAYERS, positions=1024)
    session = Session(drafter, PROMPT)
    run(session, 2)
    session.tell(len(session.tokens) - 1, len(session.tokens))
    drafter.end(1)
    check(drafter)
    again = Warm(drafter, [*session.tokens, *REST], len(session.tokens) - 2)
    assert_like_fresh(alone, again)


class TokensAlone(EagleDrafter):
    """The planted fault: entries are known by their own token, whatever follows it."""

    def begin(self, request: RequestView) -> None:
        super().begin(request)
        self._texts[request.id] = _Alone(3 * self._head.config.target_hidden, request)


class _Alone(_Text):
    def read(self, rows: int) -> None:
        super().read(rows)
        self.keys = [(a, 0) for a, _ in self.keys]


class Unread(EagleDrafter):
    """The planted fault: what is left when a text ends is taken for read."""

    def _read_rest(self, text: _Text) -> None:
        rest = text.known - text.computed
        text.entries.extend(self._cache.pool.take(self._cache.missing(text.entries, text.known)))
        text.read(rest)


@pytest.mark.parametrize(("fault", "common"), [(TokensAlone, 50), (Unread, 1000)])
def test_planted_faults_are_noticed(
    alone: DraftHead, monkeypatch: pytest.MonkeyPatch, fault: type[EagleDrafter], common: int
) -> None:
    if fault is TokensAlone:
        monkeypatch.setattr("outrider.drafters.eagle.pairwise", lambda tokens: [(a, 0) for a in tokens[:-1]])
    drafter = fault(alone, LAYERS, positions=1024)
    text = leave(drafter)
    session = Warm(
        drafter, [*text[:common], *(268 - token for token in text[common:]), *REST], min(common, len(text) - 1)
    )
    with pytest.raises(AssertionError):
        assert_like_fresh(alone, session)
