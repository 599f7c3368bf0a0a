"""What an EAGLE drafter knows of a text is what a fresh one would know of it, bit for bit, whatever was accepted."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from outrider.cache import KVCache
from outrider.drafters.base import DraftRequest, Observation
from outrider.drafters.eagle import CATCH_UP, EagleDrafter
from outrider.heads import DraftHead
from outrider.randomness import Noise, Purpose
from outrider.sampling import Distribution, SamplingParams
from outrider.types import EMPTY, FloatArray, IntArray, Proposal, Rows
from tests.drafters.eagle_rig import EMBEDDING, LAYERS, Session, draft_head, fresh, kept, state, taps
from tests.heads.tiny_head import VOCABULARY, TorchHead, tiny_head
from tests.kernels.workbench import assert_same_bits

PROMPT = [int(token) for token in np.random.default_rng(5).integers(0, VOCABULARY, 70)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_head(tmp_path_factory.mktemp("head"))


@pytest.fixture(scope="module")
def head(folder: Path) -> DraftHead:
    return draft_head(folder)


def eagle(head: DraftHead, positions: int = 1024, k: int = 5) -> EagleDrafter:
    return EagleDrafter(head, LAYERS, positions=positions, k=k)


def assert_like_fresh(head: DraftHead, session: Session, proposal: Proposal) -> None:
    assert isinstance(session.drafter, EagleDrafter)
    request = session.request(len(proposal))
    other, expected = fresh(head, session.tokens, taps(session.tokens, 0, len(session.tokens) - 1), request)
    assert proposal.tokens == expected.tokens
    assert proposal.estimates == expected.estimates
    for mine, wanted in zip(kept(session.drafter), kept(other), strict=True):
        assert len(mine) == len(session.tokens) - 1
        np.testing.assert_array_equal(mine, wanted)


def run_rounds(head: DraftHead, drafter: EagleDrafter, rounds: int = 50) -> None:
    session = Session(drafter, PROMPT)
    for number in range(rounds):
        proposal = drafter.propose([session.request()])[0]
        assert len(proposal) == 5
        assert_like_fresh(head, session, proposal)
        session.commit(proposal, number % 6, number)


def test_after_any_acceptances_the_draft_cache_is_that_of_a_fresh_prefill(head: DraftHead) -> None:
    """B29, B42: 0 to k accepted in a cycle, 50 rounds."""
    run_rounds(head, eagle(head))


class KeepsApproximations(EagleDrafter):
    """The fault B42: entries of accepted tokens stay as they were drafted."""

    def observe(self, observation: Observation) -> None:
        super().observe(observation)
        text = self._texts[observation.id]
        count = max(len(observation.path) - 1, 0)
        text.entries.extend(self._cache.pool.take(self._cache.missing(text.entries, text.computed + count)))
        text.read(count)


def test_kept_approximations_are_seen(head: DraftHead) -> None:
    """Negative control."""
    with pytest.raises(AssertionError):
        run_rounds(head, KeepsApproximations(head, LAYERS, positions=1024), 6)


@pytest.mark.parametrize("k", [1, 2, 5])
def test_chains_are_what_pytorch_drafts(folder: Path, head: DraftHead, k: int) -> None:
    reference = TorchHead(folder, torch.from_numpy(EMBEDDING.floats()))
    drafter = eagle(head, k=k)
    session = Session(drafter, PROMPT[:40])
    for number in range(6):
        proposal = drafter.propose([session.request()])[0]
        states = np.stack([state(tuple(session.tokens[: i + 1])).reshape(-1) for i in range(len(session.tokens) - 1)])
        assert list(proposal.tokens) == reference.draft(torch.from_numpy(states), torch.tensor(session.tokens), k)
        session.commit(proposal, number % (k + 1), 7)
    assert set(proposal.q) == {None}
    assert all(0 < estimate <= 1 for estimate in proposal.estimates)


@pytest.mark.parametrize("chunk", [1, 7, 32, 33, 70])
def test_a_prompt_may_come_in_any_pieces(head: DraftHead, chunk: int) -> None:
    session = Session(eagle(head), PROMPT, chunk=chunk)
    assert_like_fresh(head, session, session.drafter.propose([session.request()])[0])


def test_a_drafter_that_is_not_asked_catches_up(head: DraftHead) -> None:
    """Another drafter's proposals are accepted meanwhile."""
    session = Session(eagle(head), PROMPT[:3])
    for number in range(60):
        session.commit(Proposal.chain([number, number + 1, number + 2], "other"), number % 4, 9)
        if number % 20 == 19:
            assert_like_fresh(head, session, session.drafter.propose([session.request()])[0])


def test_a_request_that_never_drafts_costs_only_the_copy(head: DraftHead) -> None:
    drafter = eagle(head)
    passes = CountedPasses(drafter)
    session = Session(drafter, PROMPT)
    for _ in range(5):
        session.commit(EMPTY, 0, 3)
        assert drafter.propose([session.request(most=0)]) == [EMPTY]
    assert passes.count == 0
    assert drafter._cache.pool.free == drafter._cache.pool.size


def test_hidden_states_that_come_again_change_nothing(head: DraftHead) -> None:
    """After a preemption the target computes the text anew, in other pieces."""
    session = Session(eagle(head), PROMPT)
    proposal = session.drafter.propose([session.request()])[0]
    session.commit(proposal, 2, 8)
    for start in range(0, len(session.tokens) - 1, 16):
        session.tell(start, min(start + 16, len(session.tokens) - 1))
    assert_like_fresh(head, session, session.drafter.propose([session.request()])[0])


@pytest.mark.parametrize("before", [0, 20])
def test_what_the_prefix_cache_left_out_the_head_does_not_see(head: DraftHead, before: int) -> None:
    """It drafts as if the text began after it; a preemption may bring that about in the middle of a text."""
    session = Session(eagle(head), PROMPT[:before])
    if before:
        assert session.drafter.propose([session.request()])[0]
    session.tokens[:] = [*PROMPT, 1, 2, 3]
    session.tell(40, 50)
    session.tell(50, len(session.tokens) - 1)
    states = taps(session.tokens, 40, len(session.tokens) - 1)
    for accepted in (2, 5, 0):
        proposal = session.drafter.propose([session.request()])[0]
        seen = session.tokens[40:]
        _, expected = fresh(head, seen, replace(states, start=0), replace(session.request(), tokens=seen))
        assert (proposal.tokens, proposal.estimates) == (expected.tokens, expected.estimates)
        session.commit(proposal, accepted, 4)
        states = taps(session.tokens, 40, len(session.tokens) - 1)


def test_a_long_prompt_is_read_over_several_steps(head: DraftHead, tmp_path: Path) -> None:
    long = draft_head(tiny_head(tmp_path, context=2000))
    drafter = eagle(long, positions=4000)
    session = Session(drafter, PROMPT * 16)
    short = Session(drafter, PROMPT[:9], request_id=2)
    for step in range(2):
        first, second = drafter.propose([session.request(), short.request()])
        assert (len(first), len(second)) == (0, 5)
        assert drafter._texts[1].computed == CATCH_UP * (step + 1) - (9 + step)  # the other's come first
        session.commit(EMPTY, 0, 1)
        short.commit(EMPTY, 0, 1)
    proposal = drafter.propose([session.request()])[0]
    assert drafter.skipped == {"catching up": 2}
    other = eagle(long, positions=4000)
    again = Session(other, session.tokens[:-1])
    again.tokens[-1] = session.tokens[-1]
    while not (expected := other.propose([again.request()])[0]):
        pass
    assert proposal == expected


def test_many_requests_are_drafted_for_together(head: DraftHead) -> None:
    """Each as if alone, whatever the others want, and in passes that they share."""
    drafter, alone = eagle(head), [eagle(head) for _ in range(6)]
    prompts = [PROMPT[n : 2 * n + 3] for n in range(6)]
    together = [Session(drafter, prompt, request_id=n) for n, prompt in enumerate(prompts)]
    apart = [Session(alone[n], prompt, request_id=n) for n, prompt in enumerate(prompts)]
    passes = CountedPasses(drafter)
    for number in range(8):
        most = [(number + n) % 6 for n in range(6)]
        before = passes.count
        proposals = drafter.propose([s.request(m) for s, m in zip(together, most, strict=True)])
        assert passes.count - before == 5
        for n in range(6):
            expected = alone[n].propose([apart[n].request(most[n])])[0]
            assert proposals[n] == expected
            assert len(expected) == most[n]
            for session in (together[n], apart[n]):
                session.commit(expected, min(len(expected), number % 4), n)


class CountedPasses:
    """Counts the passes of a drafter's head, and notes the positions that are fed."""

    def __init__(self, drafter: EagleDrafter) -> None:
        self.count = 0
        self.positions: list[list[int]] = []
        head = drafter._head
        layer = head._layer

        class Watched:
            def run(_, rows: Rows, cache: object, inputs: dict[str, FloatArray]) -> dict[str, FloatArray]:  # noqa: N805
                self.count += 1
                self.positions.append(rows.positions.tolist())
                return layer.run(rows, cache, inputs)

            def draft(_, rows: Rows, cache: KVCache, ids: IntArray) -> list[tuple[list[int], list[float]]]:  # noqa: N805
                depths = [rows.positions[rows.requests == request] for request in range(len(rows.tables))]
                fed = [[int(at[depth]) for at in depths if depth < len(at)] for depth in range(max(map(len, depths)))]
                self.count += len(fed)
                self.positions += fed
                return layer.draft(rows, cache, ids)

        drafter._head = DraftHead.__new__(DraftHead)
        drafter._head.__dict__.update(head.__dict__, _layer=Watched())


def test_the_positions_that_are_fed_are_those_of_the_hidden_states(head: DraftHead) -> None:
    """B35."""
    drafter = eagle(head)
    session = Session(drafter, PROMPT[:4])
    passes = CountedPasses(drafter)
    session.commit(drafter.propose([session.request()])[0], 3, 5)
    drafter.propose([session.request(3)])
    assert passes.positions == [[0, 1, 2, 3], [4], [5], [6], [7], [4, 5, 6, 7], [8], [9]]


def test_at_the_end_of_its_context_drafting_stops(tmp_path: Path) -> None:
    """The last entry that fits is used; then the request is drafted for no more, and nothing is kept of it."""
    drafter = eagle(draft_head(tiny_head(tmp_path, context=80)))
    session = Session(drafter, PROMPT)
    lengths = []
    while len(session.tokens) < 90:
        proposal = drafter.propose([session.request()])[0]
        lengths.append((len(session.tokens), len(proposal)))
        session.commit(proposal, 0, 1)
    assert lengths == [(n, min(5, max(0, 82 - n))) for n in range(71, 90)]
    assert drafter.skipped == {"context": 1}
    assert drafter._cache.pool.free == drafter._cache.pool.size
    assert drafter.propose([session.request(0)]) == [EMPTY]


def test_a_prompt_longer_than_its_context_is_never_drafted_for(tmp_path: Path) -> None:
    drafter = eagle(draft_head(tiny_head(tmp_path, context=64)))
    session = Session(drafter, PROMPT)
    assert drafter.propose([session.request()]) == [EMPTY]
    session.commit(EMPTY, 0, 1)
    assert drafter.propose([session.request()]) == [EMPTY]
    assert drafter.skipped == {"context": 1}


def test_where_the_cache_is_full_the_others_are_still_drafted_for(head: DraftHead) -> None:
    drafter = eagle(head, positions=96)
    sessions = [Session(drafter, PROMPT[:length], request_id=n) for n, length in enumerate((20, 50, 20))]
    assert [len(p) for p in drafter.propose([s.request() for s in sessions])] == [5, 0, 5]
    assert drafter.skipped == {"room": 1}
    drafter.end(0)
    drafter.end(2)
    assert [len(p) for p in drafter.propose([sessions[1].request()])] == [5]
    drafter.end(1)
    drafter.end(1)
    assert drafter._cache.pool.free == 3
    assert not drafter._texts


def test_a_step_that_is_tried_again_is_drafted_for_without_harm(head: DraftHead) -> None:
    """The target failed, so nothing was observed since the last proposal."""
    session = Session(eagle(head), PROMPT)
    first = session.drafter.propose([session.request()])[0]
    assert session.drafter.propose([session.request()]) == [EMPTY]
    session.commit(first, 1, 4)
    assert_like_fresh(head, session, session.drafter.propose([session.request()])[0])


SAMPLED = SamplingParams(temperature=0.8, top_k=20, top_p=0.95, seed=3, acceptance="rejection")


def sampled(session: Session, params: SamplingParams, most: int = 5) -> DraftRequest:
    return replace(session.request(most), params=params, noise=Noise(3, position=2, committed=2))


def test_sampled_requests_are_drawn_for_under_their_own_rules(folder: Path, head: DraftHead) -> None:
    """B05, B06, B72: q is the law of the draw, zero outside the draft vocabulary, over the target's whole one."""
    drafter = eagle(head)
    session = Session(drafter, PROMPT[:20])
    proposal = drafter.propose([sampled(session, SAMPLED)])[0]
    reference = TorchHead(folder, torch.from_numpy(EMBEDDING.floats()))
    states = torch.from_numpy(np.stack([state(tuple(PROMPT[: i + 1])).reshape(-1) for i in range(20)]))
    logits, _ = reference.forward(reference.fuse(states), torch.tensor(session.tokens[1:]))
    for depth, (token, q) in enumerate(zip(proposal.tokens, proposal.q, strict=True)):
        assert q is not None
        assert q.dtype == np.float64
        assert q.shape == (VOCABULARY,)
        ids = np.flatnonzero(q)
        assert set(ids.tolist()) <= set(head.target_ids.tolist())
        assert len(ids) <= 20
        assert q.sum() == pytest.approx(1)
        noise = Noise(3, position=2, committed=2).ahead(depth)
        assert token == Distribution(ids.astype(np.int32), q[ids]).draw(noise.uniform(Purpose.DRAFT))
        assert proposal.estimates[depth] == pytest.approx(q.max())
    weights = (logits[-1].double() / 0.8).topk(20)
    p = weights.values.softmax(0)
    p = p[: int((p.cumsum(0) < 0.95).sum()) + 1]
    q = proposal.q[0]
    np.testing.assert_allclose(q[reference.target_ids[weights.indices[: len(p)]]], p / p.sum(), rtol=1e-3)


def test_coupled_requests_are_drawn_for_with_the_targets_noise(head: DraftHead) -> None:
    """The rule asks for no q, and the same noise under the same law gives the same token."""
    drafter = eagle(head)
    session = Session(drafter, PROMPT[:20])
    coupled = drafter.propose([sampled(session, replace(SAMPLED, acceptance="coupled"), 1)])[0]
    session.commit(EMPTY, 0, 0)
    session.tokens.pop()
    other = eagle(head)
    q = other.propose([sampled(Session(other, PROMPT[:20]), SAMPLED, 1)])[0].q[0]
    assert coupled.q == (None,)
    ids = np.flatnonzero(q).astype(np.int32)
    law = Distribution(ids, q[ids])
    assert coupled.tokens[0] == law.draw_coupled(Noise(3, position=2, committed=2))


def test_bias_masks_and_penalties_hold_for_drafts_too(head: DraftHead) -> None:
    """B68: a banned token is not proposed, and a wanted one is; for tokens outside the draft vocabulary nothing can come."""
    inside = [int(token) for token in head.target_ids[:3]]
    outside = next(token for token in range(VOCABULARY) if token not in head.target_ids)

    def first(temperature: float, **rules: object) -> Proposal:
        drafter = eagle(head)
        params = SamplingParams(temperature=temperature, **rules)
        return drafter.propose([sampled(Session(drafter, PROMPT[:20]), params, 2)])[0]

    for temperature in (0.0, 1.0):
        plain = first(temperature)
        assert first(temperature, banned_token_ids=plain.tokens[:1]).tokens[0] != plain.tokens[0]
        assert first(temperature, allowed_token_ids=(inside[1],)).tokens == (inside[1], inside[1])
        assert first(temperature, logit_bias={inside[2]: 100.0}).tokens == (inside[2], inside[2])
        assert first(temperature, allowed_token_ids=(outside,)) == EMPTY

    two = {"allowed_token_ids": tuple(inside[:2]), "acceptance": "rejection"}
    plain, penalised = first(1.0, **two), first(1.0, **two, presence_penalty=2.0)
    assert plain.tokens[0] == penalised.tokens[0]
    here, there = plain.tokens[0], sum(inside[:2]) - plain.tokens[0]
    odds = [chain.q[1][here] / chain.q[1][there] for chain in (plain, penalised)]
    assert odds[0] / odds[1] == pytest.approx(np.exp(2), rel=1e-4)


def test_a_head_that_computes_no_number_proposes_nothing(head: DraftHead) -> None:
    drafter = eagle(head)
    session = Session(drafter, PROMPT[:10])
    drafter._texts[1]._taps[:10] = np.nan
    assert drafter.propose([session.request()]) == [EMPTY]
    assert drafter.propose([sampled(session, SAMPLED)]) == [EMPTY]


def test_proposals_do_not_depend_on_threads(folder: Path) -> None:
    from outrider.heads.checkpoint import read_official
    from outrider.heads.model import record_fuser, record_layer
    from outrider.kernels.native import NativeProgram

    proposals = []
    for threads in (1, 2):
        weights = read_official(folder)
        fuser = NativeProgram(record_fuser(weights), threads=threads)
        drafter = eagle(DraftHead(weights, fuser, NativeProgram(record_layer(weights, EMBEDDING), beside=fuser)))
        session = Session(drafter, PROMPT)
        for number in range(4):
            proposals.append(drafter.propose([session.request()])[0])
            session.commit(proposals[-1], number, 2)
    assert proposals[:4] == proposals[4:]
    assert_same_bits(np.float32(proposals[0].estimates), np.float32(proposals[4].estimates))
