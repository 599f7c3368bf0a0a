"""The EAGLE drafter in the real loop: the target's hidden states reach it whole, and the text is the plain one."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from outrider.cache import KVCache
from outrider.drafters.base import Drafter, DraftRequest
from outrider.drafters.eagle import EagleDrafter
from outrider.engine import Engine
from outrider.heads import DraftHead, load, tap_layers
from outrider.heads.checkpoint import Head, read_official
from outrider.kernels.native import NativeModel
from outrider.models import record
from outrider.models.base import KVShape, Recorded
from outrider.policy.controller import Controller
from outrider.program import Program
from outrider.request import Request
from outrider.sampling import SamplingParams
from outrider.tokenizer.detokeniser import Detokeniser
from outrider.types import Proposal
from outrider.weights.gguf import GGUF
from outrider.weights.tensor_types import TensorType
from outrider.weights.weight import Weight
from tests.drafters.eagle_rig import Audited
from tests.heads.tiny_head import tiny_head
from tests.kernels.workbench import weight
from tests.scripted import Letters, drain
from tests.tiny import tiny_llama

LAYERS = tap_layers(7)
PROMPTS = [
    [int(t) for t in np.random.default_rng(n).integers(0, 256, size)] for n, size in enumerate((5, 40, 1, 23, 64))
]


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> tuple[NativeModel, Recorded]:
    path = tiny_llama(tmp_path_factory.mktemp("target") / "t.gguf", layers=7, hidden=64, weight_type=TensorType.Q4_1)
    recorded = record(GGUF.open(path), LAYERS)
    return native(recorded), recorded


def native(recorded: Recorded) -> NativeModel:
    return NativeModel(recorded.program, context_length=recorded.context_length, kv_shape=recorded.kv_shape, threads=1)


@pytest.fixture(scope="module")
def head(target: tuple[NativeModel, Recorded], tmp_path_factory: pytest.TempPathFactory) -> DraftHead:
    model, recorded = target
    return DraftHead.beside(model, recorded.embedding, load(tiny_head(tmp_path_factory.mktemp("head"))))


def engine(
    model: NativeModel, drafter: Drafter | None, *, blocks: int = 64, chunk: int = 256, batch: int = 8
) -> Engine:
    return Engine(
        model,
        KVCache(model.kv_shape, blocks),
        drafter or Controller(()),
        eos_ids=(),
        make_detokeniser=lambda: Detokeniser(Letters((b"x",) * 300)),
        max_batch=batch,
        chunk=chunk,
        debug=True,
    )


def texts(engine: Engine, params: Sequence[SamplingParams]) -> list[list[int]]:
    requests = [Request(prompt, each) for prompt, each in zip(PROMPTS, params, strict=True)]
    for request in requests:
        engine.submit(request)
    drain(engine)
    return [request.output for request in requests]


GREEDY = [SamplingParams(max_tokens=40)] * len(PROMPTS)
SEEDED = [SamplingParams(max_tokens=40, temperature=0.9, top_p=0.95, seed=seed) for seed in range(len(PROMPTS))]
MIXED = [SamplingParams(max_tokens=40, temperature=n % 2, seed=n if n % 2 else None) for n in range(len(PROMPTS))]


@pytest.mark.parametrize("params", [GREEDY, SEEDED, MIXED], ids=["greedy", "coupled", "mixed"])
@pytest.mark.parametrize("blocks", [64, 5], ids=["room", "preemptions"])
@pytest.mark.parametrize("chunk", [256, 9])
def test_texts_are_the_plain_ones_and_each_draft_a_fresh_ones(
    target: tuple[NativeModel, Recorded],
    head: DraftHead,
    params: list[SamplingParams],
    blocks: int,
    chunk: int,
) -> None:
    """Prompts in pieces, many requests, too little room: the hidden states come whole, and again where KV was dropped."""
    model, _ = target
    audited = Audited(EagleDrafter(head, LAYERS, positions=1024), head, LAYERS)
    drafted = texts(engine(model, audited, blocks=blocks, chunk=chunk), params)
    assert drafted == texts(engine(model, None), params)
    assert not audited.faults
    assert audited.proposals > 50
    assert (audited.again > 0) == (blocks == 5)


def test_requests_that_are_cancelled_leave_nothing(target: tuple[NativeModel, Recorded], head: DraftHead) -> None:
    model, _ = target
    drafter = EagleDrafter(head, LAYERS, positions=1024)
    run = engine(model, drafter)
    requests = [Request(prompt, SamplingParams(max_tokens=30)) for prompt in PROMPTS]
    for request in requests:
        run.submit(request)
    for step in range(12):
        run.step()
        if step % 3 == 2:
            run.cancel(requests[step // 3])
    drain(run)
    assert not drafter._texts
    assert drafter._cache.pool.free == drafter._cache.pool.size


class Diary(EagleDrafter):
    """Notes each proposal, and where the head's view of the text begins."""

    def __init__(self, head: DraftHead) -> None:
        super().__init__(head, LAYERS, positions=1024)
        self.notes: list[tuple[int, Proposal]] = []

    def propose(self, requests: Sequence[DraftRequest]) -> list[Proposal]:
        proposals = super().propose(requests)
        self.notes += [(self._texts[r.id].origin, p) for r, p in zip(requests, proposals, strict=True)]
        return proposals


def converse(run: Engine, params: SamplingParams, reuse: bool = True) -> list[list[int]]:
    """Four turns, each going on from the text of the one before, or from some place in it."""
    outputs, prompt = [], [int(t) for t in np.random.default_rng(3).integers(0, 256, 45)]
    for turn in range(4):
        request = Request(prompt, params, reuse=reuse)
        run.submit(request)
        drain(run)
        outputs.append(request.output)
        prompt = [*request.tokens[: len(request.tokens) - turn % 2 * 7], *range(turn, turn + 9)]
    return outputs


@pytest.mark.parametrize("params", [GREEDY[0], SEEDED[4]], ids=["greedy", "coupled"])
def test_a_conversation_is_drafted_for_as_if_nothing_were_known(
    target: tuple[NativeModel, Recorded], head: DraftHead, params: SamplingParams
) -> None:
    """The texts are the plain ones, and each proposal is that of a drafter that computes everything."""
    model, _ = target
    warm, cold = Diary(head), Diary(head)
    texts = converse(engine(model, warm), params)
    assert texts == converse(engine(model, cold), params, reuse=False)
    assert texts == converse(engine(model, None), params)
    assert warm.notes == cold.notes
    assert {origin for origin, _ in warm.notes} == {0}
    assert sum(len(proposal) for _, proposal in warm.notes) > 100
    assert warm._cache.pool.idle > cold._cache.pool.idle == 0


def test_a_conversation_loses_the_head_if_the_target_tells_it_too_little(
    target: tuple[NativeModel, Recorded], head: DraftHead
) -> None:
    """Negative control: without the hidden states of the last common position the head cannot go on from there."""
    drafter = Diary(head)
    drafter.taps = False
    converse(engine(target[0], drafter), GREEDY[0])
    assert {origin for origin, _ in drafter.notes} != {0}


def test_choices_of_one_prompt_are_all_drafted_for_from_its_beginning(
    target: tuple[NativeModel, Recorded], head: DraftHead
) -> None:
    """The target computes the prompt once, and so does the head."""
    model, _ = target
    drafter = Diary(head)
    outputs = []
    for run in (engine(model, drafter, chunk=40), engine(model, None)):
        requests = [Request(PROMPTS[4] * 2, SEEDED[1], choice=choice) for choice in range(3)]
        for request in requests:
            run.submit(request)
        drain(run)
        outputs.append([request.output for request in requests])
    assert outputs[0] == outputs[1]
    assert {origin for origin, proposal in drafter.notes if proposal} == {0}
    assert len({tuple(output) for output in outputs[0]}) == 3


def cycle(token: int) -> int:
    """The only text that the target below knows: 16, 21, 26, 31, 20, ..."""
    return 16 + (token - 16 + 5) % 16


def bigram_target() -> tuple[NativeModel, Weight]:
    """Each token is followed by its successor; all hidden states are embeddings, one-hot beside a constant."""
    rows = np.zeros((32, 64), np.float32)
    rows[np.arange(32), np.arange(32)] = rows[:, 63] = 1
    embedding = weight("embedding", rows)
    program = Program()
    x = program.embed(embedding)
    for layer in LAYERS:
        program.output(f"tap.{layer}", x)
    follows = np.zeros((32, 64), np.float32)
    follows[[cycle(token) for token in range(16, 32)], np.arange(16, 32)] = 10
    program.output("logits", program.linear(program.select(x), weight("follows", follows)))
    return NativeModel(program, context_length=300, kv_shape=KVShape(1, 1, 16), threads=1), embedding


def bigram_head(folder: Path) -> Head:
    """A head that knows it too: its attention sees the last token alone, and puts it in the place of the one before.

    Queries and keys are constant before rotation, so that the nearest position has by far the largest score. The draft
    vocabulary is the upper half of the target's (B77).
    """
    import torch
    from safetensors.torch import load_file, save_file

    tiny_head(folder, heads=1, kv_heads=1, head_dim=64, vocabulary=32, draft_vocabulary=16, context=300)
    tensors = {name: torch.zeros_like(tensor) for name, tensor in load_file(folder / "model.safetensors").items()}
    for name in tensors:
        if "norm" in name:
            tensors[name] += 1
    for part in "qk":
        tensors[f"midlayer.self_attn.{part}_proj.weight"][:32, 63] = 5
    tensors["midlayer.self_attn.v_proj.weight"][range(32), range(32)] = 1
    tensors["midlayer.self_attn.v_proj.weight"][range(32), range(64, 96)] = -(0.5**0.5)  # takes the last but one away
    tensors["midlayer.self_attn.o_proj.weight"] += torch.eye(64)
    for token in range(16, 32):
        tensors["lm_head.weight"][cycle(token) - 16, token] = 10
    tensors["d2t"] += 16
    tensors["t2d"][16:] = True
    save_file(tensors, folder / "model.safetensors")
    return read_official(folder)


def run_bigram(folder: Path, drafter_class: type[EagleDrafter] = EagleDrafter) -> list[Request]:
    model, embedding = bigram_target()
    head = DraftHead.beside(model, embedding, bigram_head(folder))
    run = engine(model, drafter_class(head, LAYERS, positions=1024), chunk=20)
    requests = [Request([16 + n, 20, 30, 17][: 1 + n], SamplingParams(max_tokens=150 + n)) for n in range(4)]
    for request in requests:
        run.submit(request)
    drain(run)
    for request in requests:
        assert all(cycle(a) == b for a, b in zip(request.output, request.output[1:], strict=False))
    return requests


def test_a_head_that_knows_the_target_is_always_right(tmp_path: Path) -> None:
    """B28: every draft of every step is accepted, whatever is shared with other requests."""
    for request in run_bigram(tmp_path):
        assert request.stats.drafted == request.stats.accepted
        assert request.stats.steps <= request.completion_tokens / 4


class OneTokenLate(EagleDrafter):
    """The head sees the token of the hidden state's own position, not the next one."""

    def _chains(self, requests):
        chains = super()._chains(requests)
        for chain in chains:
            chain.request = type("Late", (), {"tokens": [0, *chain.request.tokens], "params": chain.request.params})
        return chains


class Untranslated(EagleDrafter):
    """Draft ids go out as if they were the target's (B76)."""

    def __init__(self, head: DraftHead, layers: Sequence[int], *, positions: int) -> None:
        super().__init__(head, layers, positions=positions)
        head.target_ids = head.target_ids - 16


@pytest.mark.parametrize("drafter_class", [OneTokenLate, Untranslated])
def test_a_wrong_token_or_id_is_seen(tmp_path: Path, drafter_class: type[EagleDrafter]) -> None:
    """Negative controls."""
    requests = run_bigram(tmp_path, drafter_class)
    assert sum(request.stats.accepted for request in requests) < sum(request.stats.drafted for request in requests) / 4
