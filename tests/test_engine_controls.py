"""Negative controls: faults planted in the loop, each of which must give other text or trip an assertion."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from outrider.sampling import SamplingParams
from outrider.types import Outcome
from tests.scripted import ScriptedModel, accepted, generate, greedy_text, make_engine, noisy, scattered

LAW = noisy()


def path_not_moved(engine):
    def commit(sequence, end, path):
        sequence.length = end + len(path)
        engine.cache.trim(sequence)

    engine.cache.commit = commit


def not_rolled_back(engine):
    """Rejected nodes stay in the cache: its length is that of the whole proposal."""
    reserve, commit, ends = engine.cache.reserve, engine.cache.commit, {}

    def remember(work, proposals):
        ends.update({id(w.sequence): w.end + len(p) for w, p in zip(work, proposals, strict=True)})
        return reserve(work, proposals)

    def keep(sequence, end, path):
        commit(sequence, end, path)
        if sequence.length < (length := ends[id(sequence)]):
            sequence.length = length

    engine.cache.reserve, engine.cache.commit = remember, keep


def row_off_by_one(engine):
    """Every verified row is read from its successor."""
    forward = engine.target.forward

    def shifted(rows, cache):
        output = forward(rows, cache)
        return replace(output, logits=np.roll(output.logits, -1, axis=0))

    engine.target.forward = shifted


def chain_for_tree(engine):
    """Tree rows look along the positions instead of their own ancestors."""
    reserve = engine.cache.reserve

    def straight(work, proposals):
        rows = reserve(work, proposals)
        n = len(rows.tokens)
        return replace(
            rows,
            tail_starts=rows.positions + 1,
            tail_offsets=np.zeros(n + 1, np.int32),
            tail_slots=np.zeros(0, np.int32),
        )

    engine.cache.reserve = straight


def everything_accepted(engine):
    submit = engine.scheduler.submit

    def careless(request, detokeniser):
        submit(request, detokeniser)
        request.verify = lambda logits, proposal, params, noise, history, maxima: Outcome(
            tuple(range(len(proposal))) if set(proposal.parents) <= set(range(-1, len(proposal) - 1)) else (),
            int(logits[-1].argmax()),
        )

    engine.scheduler.submit = careless


FAULTS = [path_not_moved, not_rolled_back, row_off_by_one, chain_for_tree, everything_accepted]


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_noticed(fault):
    """Negative controls of the oracles of these tests: each fault gives other text or trips an assertion."""
    for draft in (accepted(LAW, lambda request: 1, 3), scattered(LAW)):
        engine = make_engine(ScriptedModel(LAW), draft)
        fault(engine)
        try:
            if generate(engine, [1, 2], SamplingParams(max_tokens=20)).output != greedy_text(LAW, [1, 2], 20):
                return
        except AssertionError:
            return
    pytest.fail("the fault went unnoticed")


def test_without_a_planted_fault_the_same_runs_pass():
    for draft in (accepted(LAW, lambda request: 1, 3), scattered(LAW)):
        request = generate(make_engine(ScriptedModel(LAW), draft), [1, 2], SamplingParams(max_tokens=20))
        assert request.output == greedy_text(LAW, [1, 2], 20)
