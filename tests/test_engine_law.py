"""The law of sampled texts, by exact enumeration: all 27 strings of three tokens from a vocabulary of three, counted
through the real engine (its cache and its rollback included) and compared with the law.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from dataclasses import replace
from functools import cache, partial

import numpy as np
import pytest

from outrider.cache import KVCache
from outrider.certify.statistics import fit
from outrider.drafters.model import ModelDrafter
from outrider.models.base import KVShape
from outrider.policy.controller import Controller
from outrider.randomness import Purpose
from outrider.request import Request
from outrider.sampling import Distribution, SamplingParams, distribution
from outrider.speculation import AUTO, Speculation
from outrider.types import ROOT, Outcome, Proposal
from outrider.verify import block
from tests.scripted import ScriptedModel, drain, make_engine

VOCABULARY, LENGTH, PROMPT = 3, 3, (1,)
RUNS, FEW_RUNS = 20_000, 2_500
SETTINGS = {
    "plain": {},
    "top-k": {"top_k": 2, "temperature": 1.3},
    "penalties": {
        "repetition_penalty": 1.4,
        "presence_penalty": 0.3,
        "frequency_penalty": 0.8,
        "logit_bias": {0: 0.5},
        "stop_token_ids": (2,),
        "min_tokens": 2,
    },
}


def random_law(seed):
    """A distribution per path, skewed enough that target and drafter disagree."""

    @cache
    def law(path):
        return np.random.default_rng([seed, *path]).dirichlet([0.8] * VOCABULARY)

    return law


TARGET, DRAFTER = random_law(1), random_law(2)


@cache
def logits(path):
    return np.log(TARGET(path)).astype(np.float32)


@cache
def asked_for(setting, output):
    """The documented rules, word for word, on one list of probabilities: the oracle of the engine's laws."""
    params = SETTINGS[setting]
    path = (*PROMPT, *output)
    scores = [math.log(p) for p in TARGET(path)]
    for token in range(VOCABULARY):
        scores[token] += params.get("logit_bias", {}).get(token, 0)
        if token in params.get("stop_token_ids", ()) and len(output) < params.get("min_tokens", 0):
            scores[token] = -math.inf
        if token in path:
            penalty = params.get("repetition_penalty", 1)
            scores[token] *= penalty if scores[token] < 0 else 1 / penalty
        if token in output:
            scores[token] -= params.get("presence_penalty", 0)
        scores[token] -= params.get("frequency_penalty", 0) * output.count(token)
    best = sorted(range(VOCABULARY), key=lambda token: -scores[token])[: params.get("top_k", VOCABULARY)]
    weights = [
        math.exp(scores[token] / params.get("temperature", 1)) if token in best else 0.0 for token in range(VOCABULARY)
    ]
    return [weight / sum(weights) for weight in weights]


def probability(setting, text):
    """Probability that an output begins with `text`, which may end early at a stop token."""
    p = 1.0
    for i, token in enumerate(text):
        p *= asked_for(setting, text[:i])[token]
    return p


def texts(setting):
    """All strings of LENGTH tokens, or fewer where a stop token ends them."""
    stops = SETTINGS[setting].get("stop_token_ids", ())
    cut = set()
    for text in itertools.product(range(VOCABULARY), repeat=LENGTH):
        end = next((i + 1 for i, token in enumerate(text) if token in stops), LENGTH)
        cut.add(text[:end])
    return sorted(cut)


def drawn_chain(rng, k=2):
    """Two tokens, each drawn from q after the one before."""

    def draft(request):
        tokens, laws = [], []
        for _ in range(min(k, request.most)):
            laws.append(DRAFTER((*request.tokens, *tokens)))
            tokens.append(int(rng.choice(VOCABULARY, p=laws[-1])))
        return Proposal.chain(tokens, "scripted", q=laws)

    return draft


def keyed_chain(rng):
    """The same, drawn with the noise that a drafter is given."""

    def draft(request):
        tokens, laws = [], []
        for depth in range(min(2, request.most)):
            laws.append(DRAFTER((*request.tokens, *tokens)))
            law = Distribution(np.arange(VOCABULARY, dtype=np.int32), laws[-1])
            tokens.append(law.draw(request.noise.ahead(depth).uniform(Purpose.DRAFT)))
        return Proposal.chain(tokens, "scripted", q=laws)

    return draft


def chosen_chain(rng):
    """Two tokens without chance: the drafter's most probable ones (B01)."""

    def draft(request):
        tokens = []
        for _ in range(min(2, request.most)):
            tokens.append(int(DRAFTER((*request.tokens, *tokens)).argmax()))
        return Proposal.chain(tokens, "scripted")

    return draft


def chosen_as_if_drawn(rng):
    """The fault B01: chosen tokens with the softmax they were the most probable ones of as q."""
    chosen = chosen_chain(rng)

    def draft(request):
        tokens = chosen(request).tokens
        laws = [DRAFTER((*request.tokens, *tokens[:i])) for i in range(len(tokens))]
        return Proposal.chain(tokens, "scripted", q=laws)

    return draft


def drawn_tree(rng):
    """Two siblings drawn without replacement, stored before the child of the second."""

    def draft(request):
        q = DRAFTER(tuple(request.tokens))
        first = int(rng.choice(VOCABULARY, p=q))
        rest = np.where(np.arange(VOCABULARY) == first, 0.0, q)
        rest /= rest.sum()
        second = int(rng.choice(VOCABULARY, p=rest))
        child_law = DRAFTER((*request.tokens, second))
        child = int(rng.choice(VOCABULARY, p=child_law))
        tree = Proposal((first, second, child), (ROOT, ROOT, 1), "scripted", (1.0,) * 3, (q, rest, child_law))
        return tree.cut(request.most)

    return draft


def drawn_by_a_model(rng):
    """Two tokens of a draft model, under the request's own rules."""
    model = ScriptedModel(lambda path: np.log(DRAFTER(path)).astype(np.float32), vocabulary=VOCABULARY)
    return ModelDrafter(model, KVCache(model.kv_shape, 64), vocabulary=VOCABULARY, k=2)


def drawn_by_a_broken_model(rng):
    """Two tokens of a draft model that has no law after a drafted token 1, with a policy in between."""

    def law(path):
        broken = len(path) > len(PROMPT) and path[-1] == 1
        return np.full(VOCABULARY, np.nan if broken else 0, np.float32)

    model = ScriptedModel(law, vocabulary=VOCABULARY)
    return Controller([ModelDrafter(model, KVCache(model.kv_shape, 64), vocabulary=VOCABULARY, k=2)])


def cautious_chain(rng):
    """A legal policy: it stops before a law that is too flat, and goes on longer after a token 0."""

    def draft(request):
        tokens, laws = [], []
        while len(tokens) < min(3, request.most):
            q = DRAFTER((*request.tokens, *tokens))
            if q.max() < (0.5 if tokens and tokens[-1] == 0 else 0.6):
                break
            laws.append(q)
            tokens.append(int(rng.choice(VOCABULARY, p=q)))
        return Proposal.chain(tokens, "scripted", q=laws)

    return draft


def peeking_chain(rng):
    """A policy that looks at the draw it cuts: it keeps a token only if its q(x) is large."""

    def draft(request):
        tokens, laws = [], []
        while len(tokens) < min(3, request.most):
            q = DRAFTER((*request.tokens, *tokens))
            token = int(rng.choice(VOCABULARY, p=q))
            if q[token] < 0.5:
                break
            laws.append(q)
            tokens.append(token)
        return Proposal.chain(tokens, "scripted", q=laws)

    return draft


def lawful(draft, acceptance="rejection", setting="plain", fault=None, runs=FEW_RUNS, speculation=AUTO):
    """Whether the texts of `runs` requests have their law; honest ones fail once in a million times."""
    model = ScriptedModel(logits, vocabulary=VOCABULARY, kv_shape=KVShape(1, 1, 2))
    engine = make_engine(model, draft(np.random.default_rng(5)), blocks=32, max_batch=32)
    params = SamplingParams(
        **{"temperature": 1.0, "max_tokens": LENGTH + 1, "acceptance": acceptance} | SETTINGS[setting]
    )
    requests = [Request(PROMPT, replace(params, seed=seed), speculation=speculation) for seed in range(runs)]
    for start in range(0, runs, 500):  # a short queue, since every step checks all of it
        for request in requests[start : start + 500]:
            engine.submit(request)
            if fault is not None:
                request.verify = fault(request.verify)
        drain(engine)
    counts = Counter(tuple(request.output[:LENGTH]) for request in requests)
    return fit(counts, {text: probability(setting, text) for text in texts(setting)}, level=1e-6).holds


@pytest.mark.parametrize("draft", [drawn_chain, chosen_chain, drawn_tree])
def test_rejection_keeps_the_targets_law(draft):
    """B01, B08, B11, B15: a chain that is drawn, one that is chosen, and a tree."""
    assert lawful(draft, runs=RUNS)


def test_coupled_keeps_the_targets_law():
    """B08: the draw that was compared is the one that is emitted."""
    assert lawful(chosen_chain, acceptance="coupled", runs=RUNS)


@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("draft", [drawn_chain, chosen_chain, drawn_tree, drawn_by_a_model])
@pytest.mark.parametrize("acceptance", ["rejection", "block", "coupled"])
def test_every_rule_keeps_the_law_that_was_asked_for(acceptance, draft, setting):
    """B04, B14, B59, B60: the sampling rules hold on every row, with the tokens before that row."""
    assert lawful(draft, acceptance, setting)


@pytest.mark.parametrize("acceptance", ["rejection", "block"])
@pytest.mark.parametrize("draft", [keyed_chain, cautious_chain])
def test_a_legal_policy_and_keyed_draws_keep_the_law(acceptance, draft):
    assert lawful(draft, acceptance)


@pytest.mark.parametrize("acceptance", ["rejection", "block"])
def test_a_draft_model_that_fails_after_a_token_keeps_what_it_drew(acceptance):
    assert lawful(drawn_by_a_broken_model, acceptance, speculation=Speculation("model", 2))


@pytest.mark.parametrize("acceptance", ["rejection", "block"])
def test_a_cut_that_looks_at_the_draw_breaks_the_law(acceptance):
    """Negative control of the legal policy, and the reason for the duty in `Drafter.propose`."""
    assert not lawful(peeking_chain, acceptance)


def test_coupled_may_be_cut_freely():
    assert lawful(peeking_chain, "coupled")


def rows_off_by_one(verify):
    """The rejected row's successor decides (B11)."""
    return lambda logits, *rest: verify(np.roll(logits, -1, axis=0), *rest)


def redrawn_from_p(verify):
    """After a rejection the token is drawn from p, not from what q left of it (B08)."""

    def faulty(logits, proposal, params, noise, history, maxima):
        outcome = verify(logits, proposal, params, noise, history)
        node = outcome.path[-1] if outcome.path else ROOT
        if not proposal.children(node):
            return outcome
        law = distribution(logits[1 + node], params)
        return Outcome(outcome.path, law.draw(np.random.default_rng(noise.seed).random()))

    return faulty


def draws_used_again(verify):
    """A later step settles with the numbers that an earlier one looked at."""
    return lambda logits, proposal, params, noise, history, maxima: verify(
        logits, proposal, params, replace(noise, committed=0), history
    )


def unfiltered(verify):
    """The request's rules are forgotten at verification (B04)."""
    return lambda logits, proposal, params, noise, history, maxima: verify(
        logits, proposal, SamplingParams(temperature=1.0), noise, history
    )


def penalised_once_a_step(verify):
    """Every row is judged by the committed tokens alone (B59)."""

    def faulty(logits, proposal, params, noise, history, maxima):
        tokens_to = Proposal.tokens_to
        try:
            Proposal.tokens_to = lambda self, node: []
            return verify(logits, proposal, params, noise, history)
        finally:
            Proposal.tokens_to = tokens_to

    return faulty


def judged_by_its_own_share(verify):
    """Block without its look at what comes after: h_i = p_i for every i (B14)."""

    def faulty(*arguments):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(block, "_keep", lambda excess, share: share)
            return verify(*arguments)

    return faulty


@pytest.mark.parametrize(
    ("draft", "acceptance", "setting", "fault"),
    [
        (drawn_chain, "rejection", "plain", rows_off_by_one),
        (drawn_chain, "rejection", "plain", redrawn_from_p),
        (chosen_as_if_drawn, "rejection", "plain", None),
        (chosen_as_if_drawn, "block", "plain", None),
        (drawn_chain, "block", "plain", judged_by_its_own_share),
        (drawn_chain, "coupled", "top-k", unfiltered),
        (drawn_chain, "rejection", "penalties", penalised_once_a_step),
        (drawn_tree, "rejection", "penalties", penalised_once_a_step),
        (chosen_chain, "coupled", "penalties", penalised_once_a_step),
    ],
)
def test_a_planted_fault_breaks_the_law(draft, acceptance, setting, fault):
    """Negative controls: each is seen with as few runs as the cells above have."""
    assert not lawful(draft, acceptance, setting, fault)


def test_draws_that_are_used_again_break_the_law():
    """Negative control of the committed length in the keys: block looks at later numbers before earlier ones."""
    assert not lawful(partial(drawn_chain, k=3), "block", fault=draws_used_again, runs=RUNS // 2)
