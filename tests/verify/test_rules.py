"""The file name is the registry of acceptance rules."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.errors import NumericError, RequestError
from outrider.randomness import Noise, Purpose
from outrider.sampling import History, SamplingParams, distribution
from outrider.types import ROOT, FloatArray, Outcome, Proposal
from outrider.verify import available, greedy, rule
from tests.constrained import Toy
from tests.verify.laws import NEW, cases


def test_rules_are_found_by_file_name() -> None:
    assert available() == ["block", "coupled", "greedy", "rejection"]
    assert rule("greedy") is greedy.verify


@pytest.mark.parametrize("name", ["typical", "base", "", "../greedy"])
def test_an_unknown_rule_names_those_that_exist(name: str) -> None:
    with pytest.raises(RequestError, match="block, coupled, greedy, rejection"):
        rule(name)


COLD = {"temperature": 1e-6}
RULES = ["greedy", "rejection", "block", "coupled"]


def params(name: str, **values: Any) -> SamplingParams:
    """Parameters that the rule can serve."""
    return SamplingParams(**({} if name == "greedy" else {"temperature": 1.0} | values))


@pytest.mark.parametrize("name", RULES)
@given(case=cases(), seed=st.integers(0, 2**63 - 1))
def test_a_vocabulary_of_one_accepts_the_first_path_there_is(
    name: str, case: tuple[FloatArray, Proposal], seed: int
) -> None:
    proposal = replace(
        case[1], tokens=(0,) * len(case[1]), q=tuple(None if q is None else np.ones(1) for q in case[1].q)
    )
    outcome = rule(name)(np.zeros((1 + len(proposal), 1), np.float32), proposal, params(name), Noise(seed), NEW)
    path, node = [], ROOT
    while children := proposal.children(node):
        node = children[0]
        path.append(node)
    assert outcome == Outcome(tuple(path), 0)


@pytest.mark.parametrize("name", RULES)
@given(seed=st.integers(0, 10**6))
def test_in_the_cold_every_rule_is_greedy(name: str, seed: int) -> None:
    rng = np.random.default_rng(seed)
    logits = rng.normal(0, 3, (4, 6)).astype(np.float32)
    q = rng.dirichlet(np.ones(6))
    tokens = [int(row.argmax()) if rng.random() < 0.7 else int(rng.integers(6)) for row in logits[:3]]
    proposal = Proposal.chain(tokens, "n", q=[q, None, q])
    expected = rule("greedy")(logits, proposal, SamplingParams(), Noise(0), NEW)
    assert rule(name)(logits, proposal, params(name, **COLD), Noise(seed), NEW) == expected


@pytest.mark.parametrize("name", RULES)
@pytest.mark.parametrize("row", [[0, np.nan], [np.inf, 0], [-np.inf, -np.inf]])
def test_a_row_that_is_no_law_is_a_clear_error(name: str, row: list[float]) -> None:
    for proposal in (Proposal(), Proposal.chain([1], "n", q=[np.array([0.5, 0.5])])):
        logits = np.array([row] + [[0, 0]] * len(proposal), np.float32)
        with pytest.raises(NumericError, match=r"logits: the largest is \S+ \(token \d\); it must be a finite number"):
            rule(name)(logits, proposal, params(name), Noise(3), NEW)


@pytest.mark.parametrize("name", RULES)
@given(case=cases(), seed=st.integers(0, 2**63 - 1), allowed=st.lists(st.booleans(), min_size=5, max_size=5))
def test_no_rule_emits_what_is_not_allowed(
    name: str, case: tuple[FloatArray, Proposal], seed: int, allowed: list[bool]
) -> None:
    """The mask of a grammar holds on every row, whatever was drafted (B63, B65)."""
    logits = np.where(np.isinf(case[0]), np.float32(-9), case[0])
    mask = np.array(allowed[: logits.shape[1]])
    mask[0] |= not mask.any()
    history = History((0,), 1, constraint=Toy(lambda output: np.flatnonzero(mask).tolist(), vocabulary=len(mask)))
    outcome = rule(name)(logits, case[1], params(name), Noise(seed), history)
    assert all(mask[token] for token in (*(case[1].tokens[node] for node in outcome.path), outcome.token))


@pytest.mark.parametrize("name", RULES)
def test_penalties_see_the_drafts_on_the_path_and_no_others(name: str) -> None:  # B60
    logits = np.zeros((4, 2), np.float32)
    values = {"presence_penalty": 2.0, "temperature": 0.01}
    penalised = SamplingParams(presence_penalty=2.0) if name == "greedy" else SamplingParams(**values)
    tree = Proposal((0, 1, 0), (ROOT, ROOT, 1), "n", (0.5,) * 3, (None,) * 3)
    start = History((0, 0), 1)  # the output holds a 0: 1 is next, then both are equal
    path = rule(name)(logits, tree, penalised, Noise(1), start).path
    assert path[:1] == (1,)
    plain = SamplingParams(temperature=penalised.temperature)
    assert any(rule(name)(logits, tree, plain, Noise(seed), start).path[:1] != (1,) for seed in range(20))


@pytest.mark.parametrize("name", ["rejection", "block"])
@pytest.mark.parametrize("values", [{}, {"top_k": 5}, {"top_p": 0.8}, {"min_p": 0.2}], ids=str)
@pytest.mark.parametrize("accepted", [0, 2])
def test_a_token_of_which_nothing_was_drafted_is_won_in_a_race_of_its_own(
    name: str, values: dict[str, float], accepted: int
) -> None:
    logits = np.random.default_rng(0).normal(0, 1, (accepted + 1, 100)).astype(np.float32)
    laws = [distribution(row, params(name, **values)) for row in logits]
    certain = [law.dense(100) for law in laws[:accepted]]  # p = q: accepted whatever the noise
    proposal = Proposal.chain([int(q.argmax()) for q in certain], "n", q=certain)
    found: dict[Purpose, int] = dict.fromkeys(Purpose, 0)
    for seed in range(100):
        noise = Noise(seed, 1, 4, 3)
        path, token = rule(name)(logits, proposal, params(name, **values), noise, NEW)
        assert path == tuple(range(accepted))
        for purpose in Purpose:
            arrivals = noise.ahead(accepted).exponentials(purpose, laws[-1].ids) / laws[-1].p
            found[purpose] += token == laws[-1].ids[arrivals.argmin()]
    assert found[Purpose.UNDRAFTED] == 100
    assert all(count < 60 for purpose, count in found.items() if purpose != Purpose.UNDRAFTED)
