"""Constrained texts: exact under speculation, ended where the language ends, and nobody else's trouble."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from outrider.certify.statistics import fit
from outrider.constraints import legal_part
from outrider.drafters import create
from outrider.errors import ConstraintError, RequestError
from outrider.models.base import KVShape
from outrider.policy.controller import Controller
from outrider.request import Request
from outrider.sampling import History, SamplingParams
from outrider.types import EMPTY, ROOT, Proposal
from tests.constrained import Toy
from tests.scripted import (
    ScriptedModel,
    accepted,
    constant,
    drain,
    make_engine,
    noisy,
    nothing,
    perfect,
    run,
    scattered,
)
from tests.test_engine_law import LENGTH, PROMPT, TARGET, chosen_chain, drawn_chain, drawn_tree, logits, texts

LAW = noisy()
END = 15


def ups_and_downs(output):
    """Odd and even tokens in turn; 14 after 12 always; from the eighth on, END is possible, and then nothing."""
    if output and output[-1] == END:
        return ()
    if output and output[-1] == 12:
        return (14,)
    turn = [token for token in range(14) if token % 2 == len(output) % 2]
    return [*turn, END] if len(output) >= 8 else turn


def obedient(path, prompt_length):
    """The law of the target under the constraint: the oracle, and what a perfect drafter follows."""
    masked = np.full(16, -np.inf, np.float32)
    allowed = list(ups_and_downs(path[prompt_length:]))
    masked[allowed] = LAW(path)[allowed]
    return masked


def plain_text(prompt, count):
    """Greedy decoding without engine, cache or rows, and whether the language ended it."""
    tokens = list(prompt)
    while len(tokens) < len(prompt) + count and ups_and_downs(tuple(tokens[len(prompt) :])):
        tokens.append(int(obedient(tuple(tokens), len(prompt)).argmax()))
    return tokens[len(prompt) :]


PROMPTS = ([5], [1, 2, 3], list(range(13)) * 3)
OBEDIENT = lambda path: obedient(path, 3)  # noqa: E731  # for prompts of three tokens
DRAFTS = {
    "nothing": nothing,
    "perfect": lambda request: perfect(lambda path: obedient(path, request.prompt_length))(request),
    "half right": lambda request: accepted(
        lambda path: obedient(path, request.prompt_length), lambda r: len(r.tokens) % 4, 5
    )(request),
    "what the target would say": perfect(LAW),
    "illegal": constant(1, 1, 1),
    "ended at once": constant(END, END, 3),
    "tree": scattered(LAW, 3),
    "out of range": lambda request: Proposal.chain([2, 99], "scripted"),
    "forced": lambda request: Proposal.chain(request.forced[: request.most], "scripted"),
}
SAMPLINGS = {
    "greedy": SamplingParams(max_tokens=30),
    "coupled": SamplingParams(max_tokens=30, temperature=1, seed=3),
    "penalties": SamplingParams(max_tokens=30, temperature=0.8, top_p=0.9, seed=3, frequency_penalty=0.7),
}


def constrained(engine, prompt, params):
    request = Request(prompt, params, constraint=Toy(ups_and_downs))
    run(engine, request)
    return request


@pytest.mark.parametrize("params", SAMPLINGS.values(), ids=SAMPLINGS)
@pytest.mark.parametrize("draft", DRAFTS.values(), ids=DRAFTS)
def test_a_constrained_text_does_not_depend_on_drafts(draft, params):
    """B65, B68: whatever is drafted, legal or not."""
    for prompt in PROMPTS:
        request = constrained(make_engine(ScriptedModel(LAW), draft), prompt, params)
        alone = constrained(make_engine(ScriptedModel(LAW)), prompt, params)
        assert (request.output, request.finish_reason) == (alone.output, alone.finish_reason)
        assert Toy(ups_and_downs).legal(request.output) == len(request.output)
        assert request.constraint.output == tuple(request.output), "it follows committed tokens, and only these"
        if params.temperature == 0:
            assert request.output == plain_text(prompt, 30)


def test_the_target_alone_would_not_keep_to_it():
    """Negative control: the constraint matters."""
    request = Request(PROMPTS[1], SAMPLINGS["greedy"])
    run(make_engine(ScriptedModel(LAW)), request)
    assert Toy(ups_and_downs).legal(request.output) < len(request.output)


def test_a_perfect_draft_is_accepted_under_a_constraint():
    engine = make_engine(ScriptedModel(LAW), perfect(OBEDIENT, 3))
    request = constrained(engine, PROMPTS[1], replace(SAMPLINGS["greedy"], max_tokens=9))
    assert request.stats.accepted == request.stats.drafted > 3


def test_the_end_of_the_language_ends_the_text():
    """It is neither asked for a mask nor fed a token afterwards (B65), and no pass is spent on it."""
    language = lambda output: [(3,), (4,), ()][min(len(output), 2)]  # noqa: E731
    for draft in (nothing, constant(3, 4, 5, 6), constant(3, 4, 4), constant(9)):
        request = Request([1, 2], constraint=Toy(language))
        run(make_engine(ScriptedModel(LAW), draft), request)
        assert (request.output, request.finish_reason) == ([3, 4], "stop")


def test_a_token_that_ends_texts_ends_a_constrained_one_where_it_is_allowed():
    texts = [
        constrained(
            make_engine(ScriptedModel(LAW), draft, eos_ids=[END]), [5], replace(SAMPLINGS["coupled"], seed=seed)
        )
        for draft in (nothing, constant(END))
        for seed in range(8)
    ]
    ended = [request for request in texts if request.finish_reason == "stop"]
    assert ended
    for request in ended:
        assert request.output[-1] == END
        assert len(request.output) > 8
        assert END not in request.output[:-1]


def test_no_row_is_spent_on_what_is_illegal():
    engine = make_engine(ScriptedModel(LAW), constant(4, 6, 6, 6))  # an even one is legal first, or nothing is
    request = constrained(engine, [5], SamplingParams(max_tokens=8))
    assert max(engine.target.row_counts) == 2
    assert request.stats.drafted <= 8


def test_forced_tokens_are_a_free_draft():
    language = lambda output: (len(output) + 1,) if len(output) < 10 else ()  # noqa: E731
    engine = make_engine(ScriptedModel(LAW), Controller([create("grammar")]), max_draft=4)
    request = Request([1], constraint=Toy(language))
    run(engine, request)
    assert request.output == list(range(1, 11))
    assert (request.stats.steps, request.stats.accepted, request.drafters) == (2, 8, ["grammar"])


@pytest.mark.parametrize("where", [0, 5])
def test_a_constraint_that_leaves_nothing_fails_its_request_alone(where):
    for draft in (nothing, constant(1, 2, 7)):
        dead_end = Toy(lambda output: (1, 2) if len(output) < where else (7,))
        victim = Request([1], SamplingParams(banned_token_ids=(7,)), constraint=dead_end)
        other = Request([1, 2], SamplingParams(max_tokens=12))
        run(make_engine(ScriptedModel(LAW), draft), victim, other)
        assert (victim.finish_reason, len(victim.output)) == ("error", where)
        assert isinstance(victim.error, ConstraintError)
        assert other.finish_reason == "length"


@pytest.mark.parametrize("method", ["allowed", "legal", "forced", "accept", "finished"])
def test_a_constraint_that_breaks_fails_its_request_alone(method):
    class Broken(Toy):
        def __getattribute__(self, name):
            if name == method and len(super().__getattribute__("output")) >= 3:
                raise ConstraintError("out of memory")
            return super().__getattribute__(name)

    victim = Request([1], SamplingParams(max_tokens=9), constraint=Broken(ups_and_downs))
    other = Request([1, 2], SamplingParams(max_tokens=12))
    run(make_engine(ScriptedModel(LAW), constant(2, 3)), victim, other)
    if method in ("allowed", "accept", "finished"):
        assert victim.finish_reason == "error"
        assert len(victim.output) == (2 if method == "finished" else 3)
    else:
        assert victim.finish_reason == "length", "drafts are spared, not needed"
    assert other.finish_reason == "length"


def test_a_preempted_request_goes_on_in_its_language():
    """B67: its drafts are dropped, its state is that of what is committed."""
    draft = DRAFTS["half right"]
    engine = make_engine(ScriptedModel(LAW), draft, blocks=2)
    requests = [Request([n] * 20, SamplingParams(max_tokens=20), constraint=Toy(ups_and_downs)) for n in range(3)]
    run(engine, *requests)
    assert sum(request.stats.preemptions for request in requests)
    for request in requests:
        assert request.output == plain_text(request.prompt, 20)


def test_min_tokens_is_refused_beside_a_constraint():
    with pytest.raises(RequestError, match="min_tokens is not possible with a constraint"):
        make_engine(ScriptedModel(LAW)).submit(
            Request([1], SamplingParams(min_tokens=2, max_tokens=5), constraint=Toy(ups_and_downs))
        )


def test_the_legal_part_of_a_tree_is_what_can_be_accepted():
    """
    root - 2 - 3*      * illegal: after 2 comes an odd token, and after that an even one
         \\ 4 - 5 - 7*
         \\ 1* - 2
    """
    tokens, parents = (2, 4, 1, 4, 5, 2, 7), (ROOT, ROOT, ROOT, 0, 1, 2, 4)
    tree = Proposal(tokens, parents, "t", tuple(n / 10 for n in range(7)), (None,) * 7)
    part = legal_part(tree, Toy(ups_and_downs))
    assert (part.tokens, part.parents, part.estimates) == ((2, 4, 5), (ROOT, ROOT, 1), (0.0, 0.1, 0.4))
    whole = Proposal.chain([2, 3, 4], "t")
    assert legal_part(whole, Toy(ups_and_downs)) is whole
    assert legal_part(EMPTY, Toy(ups_and_downs)) is EMPTY
    assert legal_part(Proposal.chain([1], "t"), Toy(ups_and_downs)) == Proposal((), (), "t", (), ())


def test_a_drawn_node_stays_where_it_is_illegal_and_ends_its_branch():
    q = np.full(16, 1 / 16)
    chain = Proposal.chain([2, 4, 6, 8], "t", q=[q] * 4)
    assert legal_part(chain, Toy(ups_and_downs)) == chain.cut(2)


def no_repeats(output):
    """Of three tokens, never the same twice in a row, and only 0 after 2."""
    if not output:
        return (0, 1, 2)
    return (0,) if output[-1] == 2 else [token for token in range(3) if token != output[-1]]


def probability(text):
    """Probability that an output begins with `text`: the target's, restricted at each place."""
    p = 1.0
    for i, token in enumerate(text):
        law = TARGET((*PROMPT, *text[:i]))
        p *= law[token] / sum(law[list(no_repeats(text[:i]))]) if token in no_repeats(text[:i]) else 0.0
    return p


def lawful(draft, acceptance, runs=1_500):
    """Whether constrained texts have the target's law, restricted; an honest count fails once in a million times."""
    model = ScriptedModel(logits, vocabulary=3, kv_shape=KVShape(1, 1, 2))
    engine = make_engine(model, draft(np.random.default_rng(5)), blocks=32, max_batch=32)
    params = SamplingParams(temperature=1.0, max_tokens=LENGTH + 1, acceptance=acceptance)
    counts: Counter[tuple[int, ...]] = Counter()
    for start in range(0, runs, 500):
        requests = [
            Request(PROMPT, replace(params, seed=seed), constraint=Toy(no_repeats, vocabulary=3))
            for seed in range(start, min(start + 500, runs))
        ]
        for request in requests:
            engine.submit(request)
        drain(engine)
        counts.update(tuple(request.output[:LENGTH]) for request in requests)
    return fit(counts, {text: probability(text) for text in texts("plain")}, level=1e-6).holds


@pytest.mark.parametrize(
    ("draft", "acceptance"),
    [
        (drawn_chain, "rejection"),
        (drawn_chain, "block"),
        (chosen_chain, "block"),
        (drawn_tree, "rejection"),
        (drawn_tree, "coupled"),
    ],
)
def test_constrained_texts_keep_the_law(draft, acceptance):
    assert lawful(draft, acceptance)


@pytest.mark.parametrize("acceptance", ["rejection", "coupled"])
def test_a_mask_once_a_step_breaks_the_law(acceptance, monkeypatch):
    """Negative control: all rows get the mask of the first."""
    allowed_after = History.allowed_after
    monkeypatch.setattr(History, "allowed_after", lambda self, drafted: allowed_after(self, ()))
    monkeypatch.setattr(Toy, "accept", lambda self, token: setattr(self, "output", (*self.output, token)))
    assert not lawful(drawn_chain, acceptance)


@pytest.mark.parametrize("acceptance", ["rejection", "block"])
def test_dropping_an_illegal_draw_breaks_the_law(acceptance, monkeypatch):
    """Negative control: the cut looks at the draw, and the token comes from p instead of what is left of p - q."""
    monkeypatch.setattr(
        "outrider.guard.legal_part", lambda proposal, constraint: proposal.cut(constraint.legal(proposal.tokens))
    )
    assert not lawful(drawn_chain, acceptance)
