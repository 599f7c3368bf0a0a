"""Hidden states that reach a drafter are those of the committed tokens, each position once, whatever was drafted."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from outrider.cache import KVCache, KVSequence
from outrider.drafters.base import Drafter, DraftRequest, Observation, RequestView
from outrider.engine import Engine
from outrider.errors import RequestError
from outrider.kernels.native import NativeModel
from outrider.models import record
from outrider.request import Request
from outrider.sampling import SamplingParams
from outrider.tokenizer.detokeniser import Detokeniser
from outrider.types import EMPTY, FloatArray, Proposal
from outrider.weights.gguf import GGUF
from tests.kernels.workbench import Stretch, assert_same_bits, lay_out
from tests.scripted import Letters, drain, nothing, scattered
from tests.tiny import tiny_llama

TAPS = (0, 2)
PROMPTS = [list(range(n, n + size)) for n, size in ((3, 4), (50, 37), (9, 1))]


def native(path: Path, taps: Sequence[int]) -> NativeModel:
    recorded = record(GGUF.open(path), taps)
    return NativeModel(recorded.program, context_length=recorded.context_length, kv_shape=recorded.kv_shape, threads=1)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_llama(tmp_path_factory.mktemp("taps") / "t.gguf", layers=3)


class Collector(Drafter):
    """Proposes what a function says, and keeps all hidden states by position."""

    name = "collector"

    def __init__(self, draft) -> None:
        self.draft = draft
        self.states: dict[int, dict[int, dict[int, FloatArray]]] = {}
        self.observed: list[Observation] = []

    def begin(self, request: RequestView) -> None:
        self.states[request.id] = {layer: {} for layer in TAPS}

    def propose(self, requests: Sequence[DraftRequest]) -> list[Proposal]:
        return [self.draft(request) for request in requests]

    def observe(self, observation: Observation) -> None:
        self.observed.append(observation)
        if observation.taps:
            for layer, values in observation.taps.layers.items():
                for row, state in enumerate(values):
                    self.states[observation.id][layer][observation.taps.start + row] = state.copy()

    def end(self, request_id: int) -> None:
        pass


def run(model: NativeModel, drafter: Drafter, chunk: int, blocks: int) -> list[Request]:
    engine = Engine(
        model,
        KVCache(model.kv_shape, blocks),
        drafter,
        eos_ids=(),
        make_detokeniser=lambda: Detokeniser(Letters((b"x",) * 300)),
        chunk=chunk,
        debug=True,
    )
    requests = [Request(prompt, SamplingParams(max_tokens=30)) for prompt in PROMPTS]
    for request in requests:
        engine.submit(request)
    drain(engine)
    return requests


def expected(model: NativeModel, tokens: Sequence[int]) -> dict[int, FloatArray]:
    cache = KVCache(model.kv_shape, KVCache.blocks_for(len(tokens)))
    rows = lay_out(cache, [Stretch(KVSequence(), tokens)])
    return {layer: values.copy() for layer, values in model.forward(rows, cache).taps.items()}


@pytest.mark.parametrize(("chunk", "blocks"), [(256, 64), (5, 64), (256, 4)], ids=["whole", "pieces", "preemptions"])
@pytest.mark.parametrize("shape", ["plain", "chains", "trees"])
def test_each_committed_position_is_observed_with_its_own_hidden_state(
    path: Path, shape: str, chunk: int, blocks: int
) -> None:
    model = native(path, TAPS)
    plain = [tuple(request.tokens) for request in run(native(path, ()), Collector(nothing), 256, 64)]

    def law(tokens: tuple[int, ...]) -> FloatArray:
        text = next(text for text in plain if text[: len(tokens)] == tokens)
        return np.eye(269, dtype=np.float32)[text[len(tokens)] if len(tokens) < len(text) else 0]

    def half_right(request: DraftRequest) -> Proposal:
        text = next(text for text in plain if list(text[: len(request.tokens)]) == request.tokens)
        coming = list(text[len(request.tokens) :])[: request.most]
        return Proposal.chain([*coming[: len(request.tokens) % 4], 1, 2][: request.most], "test")

    def tree(request: DraftRequest) -> Proposal:
        known = next(text for text in plain if list(text[: len(request.tokens)]) == request.tokens)
        if len(known) - len(request.tokens) < 3:
            return EMPTY
        return scattered(law, 2)(request)

    drafter = Collector({"plain": nothing, "chains": half_right, "trees": tree}[shape])
    requests = run(model, drafter, chunk, blocks)
    assert [tuple(request.tokens) for request in requests] == plain
    if shape == "plain":
        assert any(request.stats.preemptions for request in requests) == (blocks == 4)
    assert any(request.stats.accepted for request in requests) == (shape != "plain")
    for request in requests:
        states = expected(model, request.tokens[:-1])
        for layer in TAPS:
            found = drafter.states[request.id][layer]
            assert sorted(found) == list(range(len(request.tokens) - 1))
            assert_same_bits(np.stack([found[p] for p in sorted(found)]), states[layer])


def test_without_taps_pieces_of_a_prompt_are_not_observed(path: Path) -> None:
    drafter = Collector(nothing)
    run(native(path, ()), drafter, 5, 64)
    assert all(observation.taps is None and observation.committed for observation in drafter.observed)
    drafter = Collector(nothing)
    run(native(path, TAPS), drafter, 5, 64)
    assert sum(not observation.committed for observation in drafter.observed) >= 7


def test_taps_do_not_change_the_logits(path: Path) -> None:
    cache = KVCache(native(path, ()).kv_shape, 4)
    rows = lay_out(cache, [Stretch(KVSequence(), PROMPTS[1])])
    plain = native(path, ()).forward(rows, cache)
    tapped = native(path, (0, 1, 2)).forward(rows, cache)
    assert not plain.taps
    assert_same_bits(tapped.logits, plain.logits)


@pytest.mark.parametrize("tap", [-1, 3])
def test_a_tap_that_is_no_layer_is_refused(path: Path, tap: int) -> None:
    with pytest.raises(RequestError, match=f"tap {tap} is not possible; the model has layers 0 to 2"):
        record(GGUF.open(path), [tap])
