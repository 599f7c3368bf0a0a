"""Sampled texts keep the target's law with a head that draws from only a part of its vocabulary."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from outrider.cache import KVCache
from outrider.certify.statistics import fit
from outrider.drafters.base import DraftRequest
from outrider.drafters.eagle import EagleDrafter
from outrider.heads.checkpoint import read_official
from outrider.models.base import KVShape
from outrider.request import Request
from outrider.sampling import SamplingParams
from outrider.types import Output, Proposal, Rows
from tests.drafters.eagle_rig import LAYERS, on_kernels
from tests.heads.tiny_head import HIDDEN, tiny_head
from tests.kernels.workbench import random, weight
from tests.scripted import ScriptedModel, drain, make_engine
from tests.test_engine_law import LENGTH, PROMPT, SETTINGS, VOCABULARY, logits, probability, texts

RUNS = 2_500


class TappedModel(ScriptedModel):
    """The scripted target, with hidden states that tell token and position."""

    states = random(7, VOCABULARY, len(LAYERS), HIDDEN)

    def forward(self, rows: Rows, cache: KVCache) -> Output:
        states = self.states[rows.tokens] + np.float32(0.1) * rows.positions[:, None, None]
        return replace(super().forward(rows, cache), taps={layer: states[:, i] for i, layer in enumerate(LAYERS)})


class ArgmaxAsIfDrawn(EagleDrafter):
    """The fault B01: the likeliest token, with the law that it was not drawn from as q."""

    def propose(self, requests: Sequence[DraftRequest]) -> list[Proposal]:
        proposals = [proposal.cut(1) for proposal in super().propose(requests)]
        return [replace(p, tokens=tuple(int(q.argmax()) for q in p.q)) for p in proposals]


def run(
    folder: Path, acceptance: str, setting: str, draft_vocabulary: int, drafter_class: type[EagleDrafter] = EagleDrafter
) -> tuple[bool, float]:
    """Whether the texts have their law, and the share of drafts that was accepted."""
    model = TappedModel(logits, vocabulary=VOCABULARY, kv_shape=KVShape(1, 1, 2))
    weights = read_official(tiny_head(folder, seed=4, vocabulary=VOCABULARY, draft_vocabulary=draft_vocabulary))
    head = on_kernels(weights, weight("embedding", random(1, VOCABULARY, HIDDEN)))
    drafter = drafter_class(head, LAYERS, positions=32 * 32, k=2)
    engine = make_engine(model, drafter, blocks=32, max_batch=32)
    params = SamplingParams(
        **{"temperature": 1.0, "max_tokens": LENGTH + 1, "acceptance": acceptance} | SETTINGS[setting]
    )
    requests = [Request(PROMPT, replace(params, seed=seed)) for seed in range(RUNS)]
    for start in range(0, RUNS, 500):
        for request in requests[start : start + 500]:
            engine.submit(request)
        drain(engine)
    counts = Counter(tuple(request.output[:LENGTH]) for request in requests)
    drafted = sum(request.stats.drafted for request in requests)
    assert drafted > RUNS
    accepted = sum(request.stats.accepted for request in requests) / drafted
    return fit(counts, {text: probability(setting, text) for text in texts(setting)}, level=1e-6).holds, accepted


@pytest.mark.parametrize("setting", ["plain", "penalties"])
@pytest.mark.parametrize("acceptance", ["rejection", "block", "coupled"])
def test_drawn_chains_keep_the_law(tmp_path: Path, acceptance: str, setting: str) -> None:
    """B05, B06, B72: with all three tokens, and with two of them."""
    for draft_vocabulary in (3, 2):
        holds, accepted = run(tmp_path, acceptance, setting, draft_vocabulary)
        assert holds
        assert 0.1 < accepted < 0.9


@pytest.mark.parametrize("acceptance", ["rejection", "block"])
def test_tokens_that_were_not_drawn_from_their_law_are_seen(tmp_path: Path, acceptance: str) -> None:
    """Negative control."""
    assert not run(tmp_path, acceptance, "plain", 3, ArgmaxAsIfDrawn)[0]
