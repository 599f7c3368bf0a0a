"""What is written is what was trained: read back, it computes the same on our own kernels."""

from __future__ import annotations

from dataclasses import dataclass

import gguf
import numpy as np
import pytest
import torch

from outrider.cache import KVCache, KVSequence
from outrider.distill.batches import Batch, make
from outrider.distill.draft import Draft
from outrider.distill.export import export
from outrider.distill.features import Features
from outrider.distill.head import Head
from outrider.drafts import MODEL
from outrider.heads import DraftHead, tap_layers
from outrider.heads.checkpoint import read_official
from outrider.kernels.native import NativeProgram
from outrider.llm import LLM
from outrider.models import record
from outrider.sampling import SamplingParams
from outrider.types import EMPTY
from tests.models.loading import logits, native

CPU = torch.device("cpu")


@dataclass
class Stretch:
    sequence: KVSequence
    tokens: list[int]
    wanted: bool


@pytest.fixture(scope="module")
def features(target, dialogues, tmp_path_factory):
    made = Features(tmp_path_factory.mktemp("features"), target, tap_layers(8), dialogues[:2], 2**30)
    list(made.compute())
    return made


def in_half_precision(student):
    """Its weights rounded to bfloat16, as they are written."""
    with torch.no_grad():
        for p in student.parameters():
            p.copy_(p.bfloat16().float())
    return student


@torch.no_grad()
def test_a_head_drafts_on_our_kernels_as_it_did_in_training(target, features, tmp_path):
    torch.manual_seed(2)
    head = in_half_precision(Head.of(target, torch.arange(3, 269, 3)))
    head.embedding = torch.from_numpy(target.embedding)
    export(head, target, tmp_path)
    found = make(features, [0], CPU)
    start = int(found.starts[0, 4])
    batch = Batch(found.tokens, found.taps.float(), torch.tensor([[start]]), found.goal)
    chains = head.chains(batch)
    expected = [(chains.advance() @ head.lm_head.weight.T)[0, 0].numpy() for _ in range(3)]

    recorded = record(target.gguf)
    beside = NativeProgram(recorded.program, threads=1)
    native_head = DraftHead.beside(beside, recorded.embedding, read_official(tmp_path))
    assert native_head.target_ids.tolist() == head.target_ids.tolist()
    cache, sequence = KVCache(native_head.kv_shape, 16), KVSequence()
    tokens, hidden = batch.tokens[0].tolist(), None
    for step in range(3):
        begin = 0 if step == 0 else start + step
        rows = cache.reserve([Stretch(sequence, tokens[begin + 1 : start + 2 + step], True)], [EMPTY])
        if step == 0:
            hidden = native_head.fuse(rows, cache, batch.taps[0, : start + 1].numpy())
        found_logits, hidden = native_head.forward(rows, cache, hidden)
        np.testing.assert_allclose(found_logits[0], expected[step], atol=0.02, rtol=0.02)
        sequence.length = start + 1 + step
        hidden = hidden.copy()


@torch.no_grad()
def test_a_draft_model_reads_texts_as_it_did_in_training(target, dialogues, tmp_path):
    torch.manual_seed(2)
    draft = Draft.of(target)
    for p in draft.parameters():  # what Q8_0 can hold
        if p.ndim == 2:
            kind = gguf.GGMLQuantizationType.Q8_0
            p.copy_(torch.from_numpy(gguf.quants.dequantize(gguf.quants.quantize(p.numpy(), kind), kind)))
    for layer in draft.layers:  # attention that means something
        layer.attn_q.weight.mul_(3)
    export(draft, target, tmp_path)
    tokens = dialogues[0].tokens[:40]
    expected = draft(torch.tensor([tokens]))[0] @ draft.output().T
    found = logits(native(tmp_path / MODEL), tokens)
    scale = float(expected.abs().max())
    np.testing.assert_allclose(found, expected.numpy(), atol=0.05 * scale)
    assert np.corrcoef(found.reshape(-1), expected.numpy().reshape(-1))[0, 1] > 0.999


def test_a_draft_model_is_a_model_with_the_targets_tokenizer(target, model, tmp_path):
    export(Draft.of(target), target, tmp_path)
    draft, own = LLM(tmp_path / MODEL, threads=1), LLM(model, threads=1)
    messages = [{"role": "user", "content": "Hé, 世界"}]
    assert draft.encode(messages) == own.encode(messages)
    assert draft.tokenizer.eos_ids == own.tokenizer.eos_ids
    assert len(draft.chat(messages, SamplingParams(max_tokens=5, ignore_eos=True)).token_ids) == 5
