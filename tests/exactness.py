"""Is speculative text the plain text, token for token, on a real model? Drafters from perfect to malicious.

Used by test_exactness.py on a sample of prompts and by scripts/check_exactness on all of them.
"""

from __future__ import annotations

import json
import os
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from outrider import LLM, Request, SamplingParams
from outrider.cache import BLOCK, KVCache
from outrider.drafters import create
from outrider.drafters.base import Drafter, DraftRequest, RequestView
from outrider.engine import Engine
from outrider.policy.controller import Controller
from outrider.tokenizer import Detokeniser
from outrider.types import Proposal

Tokens = tuple[int, ...]
Texts = Mapping[Tokens, Tokens]
"""The plain text of each prompt."""


def prompts_file() -> Path | None:
    """Spec-Bench's prompts, which are not part of the project: OUTRIDER_PROMPTS, or where they lie beside it."""
    beside = Path(__file__).parent.parent.parent / "shared/prompts/spec_bench_dev.jsonl"
    path = Path(os.environ.get("OUTRIDER_PROMPTS", beside))
    return path if path.is_file() else None


def read_prompts(path: Path, llm: LLM, sample: int | None = None) -> list[Tokens]:
    """First turns as token ids; with `sample`, so many of each task group, taken evenly from it."""
    groups: dict[str, list[str]] = {}
    tasks = {"translation", "summarization", "qa", "math_reasoning", "rag"}
    for line in path.read_text("utf-8").splitlines():
        question = json.loads(line)
        group = question["category"] if question["category"] in tasks else "mt_bench"
        groups.setdefault(group, []).append(question["turns"][0])
    texts = []
    for group in groups.values():
        texts += group if sample is None else group[:: max(1, len(group) // sample)][:sample]
    return [tuple(llm.encode([{"role": "user", "content": text}])) for text in texts]


DRAFTING = 0.95
"""The least share of its steps in which a `TextDrafter` has to draft, for its texts to show anything."""


class TextDrafter(Drafter):
    """Proposes what a function of the request says; it knows every plain text beforehand."""

    def __init__(self, name: str, draft: Callable[[DraftRequest, Tokens], Proposal], texts: Texts) -> None:
        self.name = name
        self._draft = draft
        self._texts = texts

    def begin(self, request: RequestView) -> None:
        pass

    def propose(self, requests: Sequence[DraftRequest]) -> list[Proposal]:
        proposals = []
        for request in requests:
            text = self._texts[tuple(request.tokens[: request.prompt_length])]
            proposals.append(self._draft(request, text[len(request.tokens) - request.prompt_length :]))
        return proposals

    def end(self, request_id: int) -> None:
        pass


def drafters(texts: Texts, vocabulary: int, end_of_text: int) -> Iterator[Drafter]:
    """Everything that must not change the text."""

    def chain(tokens: Sequence[int]) -> Proposal:
        return Proposal.chain(tokens, "test")

    def random_ids(request: DraftRequest, coming: Tokens) -> Proposal:
        rng = random.Random(len(request.tokens))
        return chain([rng.randrange(vocabulary) for _ in range(rng.randint(1, request.most))])

    def half_right(request: DraftRequest, coming: Tokens) -> Proposal:
        rng = random.Random(len(request.tokens))
        tokens = coming[: rng.randint(1, request.most)]
        return chain([token if rng.random() < 0.7 else rng.randrange(vocabulary) for token in tokens])

    def tree(request: DraftRequest, coming: Tokens) -> Proposal:
        """Each right token has a wrong elder brother, which has a child: the accepted path is scattered."""
        rng = random.Random(len(request.tokens))
        tokens, parents, parent = [], [], -1
        for token in coming[: -(-request.most // 3)]:
            at = len(tokens)
            tokens += [rng.randrange(vocabulary), rng.randrange(vocabulary), token]
            parents += [parent, at, parent]
            parent = at + 2
        n = len(tokens)
        return Proposal(tuple(tokens), tuple(parents), "test", (0.5,) * n, (None,) * n).cut(request.most)

    yield create("ngram")
    yield create("suffix")
    for name, draft in {
        "perfect": lambda request, coming: chain(coming[: request.most]),
        "half right": half_right,
        "tree": tree,
        "random ids": random_ids,
        "all end-of-text": lambda request, coming: chain([end_of_text] * request.most),
        "shifted by one": lambda request, coming: chain((request.tokens[-1], *coming)[: request.most]),
        "out of range": lambda request, coming: chain([*coming[:1], vocabulary, -1][: request.most]),
    }.items():
        yield TextDrafter(name, draft, texts)


def make_cache(llm: LLM, batch: int = 4) -> KVCache:
    """An empty KV cache for so many whole contexts."""
    return KVCache(llm.model.kv_shape, 2 + batch * llm.context_length // BLOCK)


class Written(NamedTuple):
    """Texts, the tokens per step, and in which share of the steps that could draft something was drafted."""

    texts: list[Tokens]
    tokens_per_step: float
    drafting: float


def generate(
    llm: LLM,
    prompts: Sequence[Tokens],
    params: SamplingParams,
    drafter: Drafter | None,
    *,
    batch: int = 4,
    cache: KVCache | None = None,
) -> Written:
    """Texts of the prompts in batches on the model of `llm`; a cache may know some of them.

    The drafter is asked in every step: a policy would soon leave one alone that is always wrong.
    """
    engine = Engine(
        llm.model,
        cache or make_cache(llm, batch),
        drafter or Controller(()),
        eos_ids=llm.tokenizer.eos_ids,
        make_detokeniser=lambda: Detokeniser(llm.tokenizer),
        max_batch=batch,
        debug=True,
    )
    requests = [Request(prompt, params) for prompt in prompts]
    for request in requests:
        engine.submit(request)
    steps = []
    while not engine.idle:
        steps += [emitted.drafting for emitted in engine.step() if emitted.token_ids]
    asked = [step for step in steps if step.allowed]
    return Written(
        [tuple(request.output) for request in requests],
        sum(request.completion_tokens for request in requests) / len(steps),
        sum(step.drafted > 0 for step in asked) / max(len(asked), 1),
    )


def first_difference(plain: Sequence[Tokens], other: Sequence[Tokens]) -> str | None:
    """Where two lists of texts differ first; None where they do not."""
    for number, (a, b) in enumerate(zip(plain, other, strict=True)):
        if a != b:
            at = next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
            return f"prompt {number}, token {at}: plain {a[at : at + 5]}, speculative {b[at : at + 5]}"
    return None
