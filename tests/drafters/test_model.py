"""A draft model follows the text, whatever became of its drafts; it draws as asked, and holds only what it must."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from outrider import LLM, SamplingParams
from outrider.cache import KVCache, KVSequence, key_places, value_places
from outrider.drafters.base import DraftRequest, RequestView
from outrider.drafters.model import ModelDrafter, load
from outrider.engine import Engine
from outrider.errors import RequestError, UnsupportedModelError
from outrider.models.base import CausalLM
from outrider.policy.costs import FREE
from outrider.randomness import Noise, Purpose
from outrider.request import Request
from outrider.sampling import Distribution
from outrider.tokenizer import Detokeniser
from outrider.types import EMPTY, Output, Proposal, Rows
from tests import tiny
from tests.scripted import ScriptedModel, drain, make_engine, noisy, one_hot, run
from tests.tiny import tiny_llama

VOCABULARY = 16
LAW = noisy(VOCABULARY)
GREEDY = SamplingParams(max_tokens=40)
RULES = {
    "greedy": GREEDY,
    "coupled": SamplingParams(temperature=1.0, seed=3, max_tokens=40),
    "rejection": SamplingParams(temperature=1.0, top_k=9, max_tokens=40, acceptance="rejection", seed=3),
    "block": SamplingParams(temperature=1.0, top_p=0.9, max_tokens=40, acceptance="block", seed=3),
    "penalties": SamplingParams(
        temperature=1.0, max_tokens=40, seed=3, frequency_penalty=0.7, min_tokens=9, banned_token_ids=(4,)
    ),
}


def drafter_of(model: CausalLM, *, blocks: int = 64, vocabulary: int = VOCABULARY, **settings: int) -> ModelDrafter:
    return ModelDrafter(model, KVCache(model.kv_shape, blocks), vocabulary=vocabulary, **settings)


class ByHand:
    """One request whose text the test itself writes."""

    def __init__(self, drafter: ModelDrafter, prompt: Sequence[int], params: SamplingParams = GREEDY) -> None:
        self.drafter = drafter
        self.tokens = list(prompt)
        self.prompt_length = len(prompt)
        self.params = params
        drafter.begin(RequestView(id=7, tokens=self.tokens, prompt_length=self.prompt_length))

    def propose(self, most: int = 9) -> Proposal:
        done = len(self.tokens) - self.prompt_length
        request = DraftRequest(
            id=7,
            tokens=self.tokens,
            prompt_length=self.prompt_length,
            most=most,
            params=self.params,
            noise=Noise(3, position=done, committed=done),
        )
        return self.drafter.propose([request])[0]

    @property
    def kv(self) -> KVSequence:
        text = self.drafter._texts[7]
        assert text is not None
        return text.kv

    def commit(self, proposal: Proposal, accepted: int) -> None:
        """So many drafted tokens, and another one than was drafted next; negative: so many that nobody drafted."""
        if accepted < 0:
            self.tokens += [(token + 1) % VOCABULARY for token in proposal.tokens[:-accepted]]
            return
        self.tokens += proposal.tokens[:accepted]
        rest = proposal.tokens[accepted : accepted + 1]
        self.tokens.append((rest[0] + 1 if rest else self.tokens[-1] + 1) % VOCABULARY)


def entries(cache: KVCache, sequence: KVSequence, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Keys and values at the first `count` positions."""
    slots = sequence.slots(range(count))
    return cache.keys[key_places(slots)], cache.values[value_places(slots)]


def fresh(model: CausalLM, tokens: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
    """The oracle: keys and values of these tokens, computed anew, one by one."""
    by_hand = ByHand(drafter_of(model, k=1), tokens[:1])
    for token in tokens[1:]:
        by_hand.propose()
        by_hand.tokens.append(token)
    by_hand.propose()
    return entries(by_hand.drafter._cache, by_hand.kv, len(tokens))


def follows(drafter: ModelDrafter, model: CausalLM, pattern: Sequence[int], prompt: Sequence[int]) -> bool:
    """Whether, after each step of the pattern, the drafter holds what a fresh prefill of the text gives."""
    by_hand = ByHand(drafter, prompt)
    for accepted in pattern:
        proposal = by_hand.propose()
        count = len(by_hand.tokens)
        mine, oracle = entries(drafter._cache, by_hand.kv, count), fresh(model, by_hand.tokens)
        if not all(np.array_equal(a, b) for a, b in zip(mine, oracle, strict=True)):
            return False
        by_hand.commit(proposal, accepted)
    return True


ORDERS = ((0, 1, -3, 2, 3, 4, -4), (4, 0), (4,), (3, 1, 4), (-2,))
PATTERNS = [list(itertools.islice(itertools.cycle(order), 15)) for order in ORDERS]


@pytest.mark.parametrize("pattern", PATTERNS, ids=str)
def test_after_any_acceptances_it_holds_what_a_fresh_prefill_gives(pattern: list[int]) -> None:  # B28, B29
    model = ScriptedModel(LAW)
    assert follows(drafter_of(model), model, pattern, [1, 2, 3])


class Careless(ModelDrafter):
    """Planted fault: takes all that it drafted for committed."""

    def _start(self, request):  # type: ignore[no-untyped-def]
        if text := self._texts[request.id]:
            text.tail.clear()
        return super()._start(request)


def test_the_oracle_sees_a_draft_cache_that_drifts() -> None:
    model = ScriptedModel(LAW)
    drafter = Careless(model, KVCache(model.kv_shape, 64), vocabulary=VOCABULARY)
    assert not follows(drafter, model, PATTERNS[0], [1, 2, 3])


class Spy:
    """Notes the positions of each pass."""

    def __init__(self, model: CausalLM) -> None:
        self.model = model
        self.vocabulary_size = model.vocabulary_size
        self.context_length = model.context_length
        self.kv_shape = model.kv_shape
        self.passes: list[list[int]] = []

    def forward(self, rows: Rows, cache: KVCache) -> Output:
        self.passes.append(rows.positions.tolist())
        return self.model.forward(rows, cache)


def test_each_token_is_computed_once_at_its_own_position() -> None:  # B35, B107
    spy = Spy(ScriptedModel(LAW))
    by_hand = ByHand(drafter_of(spy, k=3), [1, 2, 3])
    for accepted in (3, 1, 0, 2):
        by_hand.commit(by_hand.propose(), accepted)
    assert spy.passes == [
        [0, 1, 2], [3], [4],  # the prompt, then all drafted tokens but the last
        [5, 6], [7], [8],  # all accepted: the last drafted, the bonus
        [8], [9], [10],  # one accepted: it is known
        [9], [10], [11],  # none accepted
    ]  # fmt: skip


@pytest.mark.parametrize("prompt", [1, 7, 8, 9, 17, 33])
def test_a_long_prompt_is_taken_in_by_chunks_without_drafts(prompt: int) -> None:
    text = [int(token) for token in np.random.default_rng(1).integers(0, VOCABULARY, prompt)]
    spy = Spy(ScriptedModel(LAW))
    by_hand = ByHand(drafter_of(spy, chunk=8), text)
    silent = list(itertools.takewhile(lambda proposal: proposal is EMPTY, iter(by_hand.propose, None)))
    assert len(silent) == (prompt - 1) // 8
    assert max(map(len, spy.passes)) <= 8
    assert by_hand.propose() == ByHand(drafter_of(spy), text).propose()


def test_where_nothing_is_wanted_nothing_is_computed() -> None:
    spy = Spy(ScriptedModel(LAW))
    by_hand = ByHand(drafter_of(spy), [1, 2])
    assert by_hand.propose(most=0) is EMPTY
    assert spy.passes == []
    assert [len(by_hand.propose(most)) for most in (1, 2, 9)] == [1, 2, 4]


@pytest.mark.parametrize("rule", RULES)
def test_it_draws_as_the_request_asks_and_shows_the_law_it_drew_from(rule: str) -> None:  # B01, B05, B06
    params = RULES[rule]
    by_hand = ByHand(drafter_of(ScriptedModel(LAW)), [1, 2, 3], params)
    proposal = by_hand.propose()
    noise = Noise(3)
    assert len(proposal) == 4
    for depth, (token, q) in enumerate(zip(proposal.tokens, proposal.q, strict=True)):
        if params.rule in ("greedy", "coupled"):
            assert q is None
        else:
            assert q is not None
            law = Distribution(np.flatnonzero(q).astype(np.int32), q[q > 0])
            assert abs(q.sum() - 1) < 1e-12
            assert token == law.draw(noise.ahead(depth).uniform(Purpose.DRAFT))
    assert all(0 < estimate <= 1 for estimate in proposal.estimates)
    assert proposal.tokens == by_hand.propose().tokens


def self_drafting(rule: str, k: int) -> list[Request]:
    """Requests of several lengths, in a batch, with the target as its own draft."""
    engine = make_engine(ScriptedModel(LAW), drafter_of(ScriptedModel(LAW), k=k), blocks=64, max_batch=8, eos_ids=[])
    requests = [Request([1] * n, replace(RULES[rule], max_tokens=20 + n)) for n in range(1, 9)]
    run(engine, *requests)
    return requests


@pytest.mark.parametrize("k", [1, 2, 3, 4, 5, 8])
@pytest.mark.parametrize("rule", RULES)
def test_the_target_as_its_own_draft_accepts_everything(rule: str, k: int) -> None:  # B28, B84, B126
    for request in self_drafting(rule, k):
        assert request.stats.accepted == request.stats.drafted > 0
        assert request.stats.steps <= -(-request.completion_tokens // (k + 1)) + 1


def test_another_model_as_draft_is_not_always_right() -> None:
    engine = make_engine(ScriptedModel(LAW), drafter_of(ScriptedModel(noisy(VOCABULARY, seed=1))))
    request = Request([1], GREEDY)
    run(engine, request)
    assert request.stats.accepted < request.stats.drafted


@pytest.mark.parametrize("rule", ["greedy", "coupled", "penalties"])
def test_the_text_does_not_depend_on_the_draft_model(rule: str) -> None:
    texts = []
    for drafter in (None, *(drafter_of(ScriptedModel(noisy(VOCABULARY, seed=s))) for s in (0, 1))):
        request = Request([1, 2], RULES[rule])
        run(make_engine(ScriptedModel(LAW), drafter), request)
        texts.append(request.output)
    assert texts[0] == texts[1] == texts[2]


@pytest.mark.parametrize("room", [27, 28, 29, 32, 40])
def test_a_shorter_context_ends_drafting_for_that_request_alone(room: int) -> None:  # B94
    draft = drafter_of(ScriptedModel(LAW, context=room))
    engine = make_engine(ScriptedModel(LAW), draft)
    long, short = Request([1] * 28, replace(GREEDY, max_tokens=20)), Request([2], replace(GREEDY, max_tokens=20))
    plain = Request([1] * 28, replace(GREEDY, max_tokens=20))
    run(make_engine(ScriptedModel(LAW)), plain)
    run(engine, long, short)
    assert long.output == plain.output
    assert (long.stats.drafted > 0) == (room > 28)  # the first step is the prompt's, without drafts
    assert short.stats.accepted == short.stats.drafted > 0
    assert draft.stopped == {"context": 1}


def test_cancelled_and_preempted_requests_leave_nothing_and_disturb_nobody() -> None:
    draft = drafter_of(ScriptedModel(LAW), blocks=6)
    engine = make_engine(ScriptedModel(LAW), draft, blocks=6)
    requests = [Request([n] * 20, replace(GREEDY, max_tokens=40)) for n in range(1, 6)]
    for request in requests:
        engine.submit(request)
    for _ in range(3):
        engine.step()
    engine.cancel(requests[0])
    drain(engine)
    assert requests[0].finish_reason == "cancelled"
    assert sum(request.stats.preemptions for request in requests) > 0
    for request in requests[1:]:
        alone = Request(request.prompt, request.params)
        run(make_engine(ScriptedModel(LAW)), alone)
        assert request.output == alone.output
        assert request.stats.drafted == request.stats.accepted
    assert draft._cache.pool.free == draft._cache.pool.size
    assert not draft._texts


def test_a_full_cache_makes_some_wait_and_fails_nobody() -> None:  # B111
    draft = drafter_of(ScriptedModel(LAW), blocks=3)
    requests = [Request([n] * 20, replace(GREEDY, max_tokens=40)) for n in range(1, 6)]
    run(make_engine(ScriptedModel(LAW), draft), *requests)
    assert all(request.stats.drafted == request.stats.accepted for request in requests)
    assert any(request.stats.drafted for request in requests)
    assert draft._cache.pool.free == draft._cache.pool.size


def test_a_pass_that_fails_leaves_the_draft_as_it_was() -> None:
    model = ScriptedModel(LAW)
    drafter = drafter_of(model)
    by_hand = ByHand(drafter, [1, 2, 3])
    expected = by_hand.propose()
    forward, passes = model.forward, itertools.count()

    def failing(rows: Rows, cache: KVCache) -> Output:
        if next(passes) == 2:
            raise MemoryError
        return forward(rows, cache)

    model.forward = failing  # type: ignore[method-assign]
    with pytest.raises(MemoryError):
        by_hand.propose()
    assert by_hand.propose() == expected
    drafter.end(7)
    assert drafter._cache.pool.free == drafter._cache.pool.size


def forced(token: int, vocabulary: int) -> Callable[[tuple[int, ...]], np.ndarray]:
    return lambda path: one_hot(token, vocabulary) + np.linspace(0, 1, vocabulary, dtype=np.float32)


@pytest.mark.parametrize("width", [12, 16, 20])
def test_padded_vocabularies_may_differ_and_their_padding_is_never_drafted(width: int) -> None:  # B72, B76
    model = ScriptedModel(forced(width - 1, width), vocabulary=width)
    for params in (GREEDY, RULES["rejection"]):
        proposal = ByHand(drafter_of(model, shared=10), [1], params).propose()
        assert len(proposal) == 4
        assert max(proposal.tokens) < 10
        assert all(q is None or (q.shape == (VOCABULARY,) and not q[10:].any()) for q in proposal.q)


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_llama(tmp_path_factory.mktemp("model") / "target.gguf")


def test_a_file_drafts_and_changes_nothing(target: Path) -> None:
    params = SamplingParams(max_tokens=40, ignore_eos=True)
    prompts = ["Hello", "The thin line", "A"]
    plain = LLM(target, threads=1, costs=FREE, speculation="off").generate(prompts, params)
    other = tiny_llama(target.with_name("other.gguf"), seed=1, layers=1, context=32)
    texts = LLM(target, threads=1, costs=FREE, draft=other, speculation="model:4").generate(prompts, params)
    assert [text.token_ids for text in texts] == [text.token_ids for text in plain]
    assert all("model" in text.drafters for text in texts)


@pytest.mark.parametrize("rule", RULES)
def test_on_the_native_kernels_too_the_target_accepts_all_of_its_own_drafts(target: Path, rule: str) -> None:
    llm = LLM(target, threads=1, costs=FREE, speculation="off")
    draft = load(target, llm.model, llm.tokenizer, positions=512)
    engine = Engine(
        llm.model,
        KVCache(llm.model.kv_shape, 32),
        draft,
        eos_ids=[],
        make_detokeniser=lambda: Detokeniser(llm.tokenizer),
        debug=True,
    )
    requests = [Request(llm.encode("The thin line"[:n]), RULES[rule]) for n in range(1, 9)]
    run(engine, *requests)
    assert all(request.stats.accepted == request.stats.drafted > 0 for request in requests)


def test_a_draft_is_an_error_where_nothing_is_to_be_drafted(target: Path) -> None:  # B123
    with pytest.raises(RequestError, match=r"draft=.*of no use"):
        LLM(target, threads=1, draft=target, speculation="off")


def test_a_foreign_vocabulary_is_refused_with_its_first_difference(target: Path, monkeypatch) -> None:  # B73
    names = list(tiny.BYTE_TOKENS)
    names[258], names[259] = names[259], names[258]
    monkeypatch.setattr(tiny, "BYTE_TOKENS", tuple(names))
    foreign = tiny_llama(target.with_name("foreign.gguf"), seed=1)
    with pytest.raises(UnsupportedModelError, match=r"token 258 is .* in .*target.gguf and .* in .*foreign.gguf"):
        LLM(target, threads=1, costs=FREE, draft=foreign)


def test_unused_ids_are_no_difference(target: Path) -> None:
    padded = tiny_llama(target.with_name("padded.gguf"), vocab_size=300)
    llm = LLM(target, threads=1, costs=FREE, draft=padded, speculation="model:4")
    assert llm.generate("Hello", SamplingParams(max_tokens=8))[0].drafted > 0
