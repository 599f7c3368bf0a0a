"""How many drafted tokens each acceptance rule accepts, side by side on the same prompts, drafts and temperatures.

    python benchmarks/acceptance.py              # about five minutes; --prompts FILE for other prompts

The drafter is a stand-in for a small draft model: the target itself, its logits disturbed by noise that depends on the
context alone. It drafts chains of four, each token drawn from its q, or the most probable one (one-hot).
"""

from __future__ import annotations

import argparse
import statistics
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import common
import numpy as np

from outrider import LLM, SamplingParams
from outrider.cache import KVCache, KVSequence
from outrider.certify.rig import Parts, Rig
from outrider.cli.prompts import read_prompts
from outrider.drafters.base import Drafter, DraftRequest, Observation, RequestView
from outrider.policy.controller import Controller
from outrider.randomness import Purpose
from outrider.request import Request
from outrider.sampling import distribution
from outrider.tokenizer import Detokeniser
from outrider.types import EMPTY, DoubleArray, FloatArray, Proposal
from outrider.verify import available

PROMPTS = (
    "Water boils at",
    "The capital of France is",
    "Once upon a time",
    "def fibonacci(n):\n",
    "Monday, Tuesday, Wednesday,",
    "Q: What is two and two?\nA:",
    "Shopping list:\n- eggs\n- milk\n",
    "Dear Sir or Madam, I am writing to",
    " ".join(str(number) for number in range(1, 31)),
)
K, BATCH, TEXTS, TOKENS, CONTEXT = 4, 8, 8, 48, 512
TEMPERATURES = (0.6, 1.0)
SPREADS = (1.0, 2.0)
"""Standard deviations of the noise on the logits: a drafter that is near the target, and one that is farther."""


@dataclass(frozen=True)
class Stretch:
    """Tokens that a sequence computes next."""

    sequence: KVSequence
    tokens: Sequence[int]
    wanted: bool = True


class NoisyTarget(Drafter):
    """Drafts with the target's weights, a KV cache of its own, and noise; keeps what it observes."""

    name = "noisy target"
    draws = True

    def __init__(self, llm: LLM, spread: float, *, drawn: bool) -> None:
        self._model = llm.model
        self._cache = KVCache(llm.model.kv_shape, BATCH * KVCache.blocks_for(CONTEXT))
        self._spread = spread
        self._drawn = drawn
        self._sequences: dict[int, KVSequence] = {}
        self.accepted: dict[int, list[int]] = defaultdict(list)
        """Accepted tokens of each chain of K, by text."""

    def begin(self, request: RequestView) -> None:
        self._sequences[request.id] = KVSequence()

    def propose(self, requests: Sequence[DraftRequest]) -> list[Proposal]:
        texts = {request.id: list(request.tokens) for request in requests}
        q: dict[int, list[DoubleArray | None]] = defaultdict(list)
        for depth in range(K):
            drafting = [request for request in requests if request.most > depth]
            if not drafting:
                break
            for request, logits in zip(drafting, self._logits([texts[r.id] for r in drafting], drafting), strict=True):
                text = texts[request.id]
                law = distribution(logits, request.params)
                noise = request.noise.ahead(depth)
                if not self._drawn:
                    token = int(law.ids[law.weights.argmax()])
                elif request.params.rule == "coupled":
                    token = law.draw_coupled(noise)
                else:
                    token = law.draw(noise.uniform(Purpose.DRAFT))
                text.append(token)
                q[request.id].append(law.dense(len(logits)) if self._drawn else None)
        for request in requests:  # what was drafted is not committed yet
            sequence = self._sequences[request.id]
            self._cache.commit(sequence, min(sequence.length, len(request.tokens)), ())
        return [Proposal.chain(texts[r.id][len(r.tokens) :], self.name, q=q[r.id]) for r in requests]

    def observe(self, observation: Observation) -> None:
        if len(observation.proposal) == K:
            self.accepted[observation.id].append(len(observation.path))

    def end(self, request_id: int) -> None:
        self._cache.release(self._sequences.pop(request_id))

    def _logits(self, texts: Sequence[list[int]], requests: Sequence[DraftRequest]) -> Iterator[FloatArray]:
        """Disturbed logits after each text."""
        sequences = [self._sequences[request.id] for request in requests]
        work = [Stretch(s, text[s.length :]) for s, text in zip(sequences, texts, strict=True)]
        rows = self._cache.reserve(work, [EMPTY] * len(work))
        logits = self._model.forward(rows, self._cache).logits
        for sequence, text, row in zip(sequences, texts, logits, strict=True):
            self._cache.commit(sequence, len(text), ())
            noise = np.random.default_rng([len(text), *text[-4:]]).standard_normal(len(row), np.float32)
            yield row + np.float32(self._spread) * noise


def measure(llm: LLM, prompts: Sequence[list[int]], params: SamplingParams, drafter: NoisyTarget) -> list[str]:
    """Chains of K in TEXTS texts of each prompt, how often their first and last tokens were accepted, tokens per step.

    The error is that of the mean over texts: chains of one text are alike.
    """
    rig = Rig(
        Parts(llm.model, Controller([drafter])),
        blocks=BATCH * KVCache.blocks_for(CONTEXT),
        make_detokeniser=lambda: Detokeniser(llm.tokenizer),
        eos_ids=llm.tokenizer.eos_ids,
        max_batch=BATCH,
        max_draft=K,
    )
    rig.run([Request(prompt, params, choice) for prompt in prompts for choice in range(TEXTS)])
    texts = list(drafter.accepted.values())
    chains = [accepted for text in texts for accepted in text]
    first, last = (f"{statistics.fmean(accepted >= place for accepted in chains):.1%}" for place in (1, K))
    error = statistics.stdev(statistics.fmean(text) for text in texts) / len(texts) ** 0.5
    return [f"{len(chains):,}", first, last, f"{1 + statistics.fmean(chains):.2f} ± {error:.2f}"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--prompts", type=Path, help="one a line, or JSON lines")
    arguments = parser.parse_args()
    llm = LLM(arguments.model, speculation="off")
    if arguments.prompts:
        prompts = [llm.encode(entry.prompt) for entry in read_prompts(arguments.prompts, raw=False, system=None)]
    else:
        prompts = [llm.encode(prompt) for prompt in PROMPTS]
    common.console.print(common.describe_machine("outrider", "numpy"), "\n")
    columns = ("rule", "chains", "first accepted", f"all {K} accepted", "tokens per step")
    drawing = [rule for rule in available() if rule != "greedy"]
    for spread in SPREADS:
        for kind in ("drawn", "one-hot"):
            for temperature in (0.0, *TEMPERATURES) if kind == "one-hot" else TEMPERATURES:
                rows = []
                for rule in drawing if temperature else ["greedy"]:
                    params = SamplingParams(temperature, seed=1, max_tokens=TOKENS, acceptance=rule)  # type: ignore[arg-type]
                    drafter = NoisyTarget(llm, spread, drawn=kind == "drawn")
                    rows.append([rule, *measure(llm, prompts, params, drafter)])
                common.table(f"noise {spread:g}, {kind}, temperature {temperature:g}", columns, rows)


if __name__ == "__main__":
    main()
