"""Is the text the plain text, token for token? With drafters from perfect to hostile, in every way the engine can run.

Greedy, and coupled with a seed, a text may depend on nothing but prompt, parameters and model.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from outrider.cache import KVCache
from outrider.certify.drafters import DRAFTERS, OWN, SHAPES, TALKATIVE, Knowledge
from outrider.certify.rig import Fault, Parts, Rig
from outrider.drafters.base import Drafter
from outrider.llm import LLM
from outrider.policy.controller import Controller
from outrider.request import Drafting, Request
from outrider.sampling import SamplingParams
from outrider.tokenizer import Detokeniser
from outrider.types import FinishReason

MAX_TOKENS = 24

PROMPTS = (
    "At the top of a high mountain, where the air is thin, water boils at",
    "The capital of Germany is Berlin, the capital of Italy is Rome, and the capital of France is",
    "Once upon a time",
    'def fibonacci(n):\n    """The n-th Fibonacci number."""\n',
    "January, February, March, April, May, June, July,",
    "Q: What is one and one?\nA: Two.\nQ: What is two and two?\nA:",
    "Shopping list:\n- eggs\n- milk\n- flour\n- sugar\n",
    "Dear Sir or Madam, I am writing to",
    " ".join(str(number) for number in range(1, 31)),
)
"""They are of many kinds: some of their texts repeat themselves, some end, some never do; and of such lengths that the
texts reach the end of a block of the KV cache at different places.
"""

SAMPLINGS: Mapping[str, Mapping[str, Any]] = {
    "greedy": {},
    "greedy with penalties": {"repetition_penalty": 1.1, "frequency_penalty": 0.2, "min_tokens": MAX_TOKENS // 2},
    "seeded, temperature 1": {"temperature": 1.0},
    "seeded, temperature 0.8, top-p 0.95, penalties": {"temperature": 0.8, "top_p": 0.95, "presence_penalty": 0.5},
}
"""What each kind of text asks of `SamplingParams`."""

MEMORIES = ("cold and warm", "chunked", "scarce")
_CHUNK = 8


@dataclass(frozen=True, slots=True)
class IdentitySetting:
    """What one cell runs.

    drafter   one of DRAFTERS.
    k         the most tokens that it may draft in a step.
    shape     one of SHAPES.
    batch     the most requests that run together.
    threads   of the model.
    memory    "cold and warm": all texts are written twice by one engine, and what was computed for them is used again;
              "chunked": prompts are computed 8 rows at a time; "scarce": requests push each other out.
    sampling  one of SAMPLINGS.
    """

    drafter: str
    k: int
    shape: str
    batch: int
    threads: int
    memory: str
    sampling: str


@dataclass(frozen=True, slots=True)
class IdentityCell:
    """The verdict on one setting, and what was compared.

    asked, answered     steps of requests in which something could have been drafted, and those in which it was.
    drafted, accepted   tokens sent to verification, and those of them in the texts.
    preemptions         how often a request lost its KV and had it computed again.
    cached              prompt tokens that were not computed, as their KV was there already.
    difference          the first one from the plain texts ("": none).
    fault               what kept the texts from being finished, or from showing anything ("": nothing).
    """

    setting: IdentitySetting
    texts: int
    tokens: int
    steps: int
    asked: int
    answered: int
    drafted: int
    accepted: int
    preemptions: int
    cached: int
    difference: str
    fault: str = ""

    @property
    def holds(self) -> bool:
        """Whether all texts are the plain ones."""
        return not (self.difference or self.fault)

    @property
    def evidence(self) -> str:
        """The verdict in words."""
        return self.fault or self.difference or f"identical: {self.texts} texts, {self.tokens:,} tokens"


def factors(threads: Sequence[int], *, own_draft: bool = False) -> dict[str, Sequence[object]]:
    """The values of each field of a setting; own_draft: whether the pair has one."""
    return {
        "drafter": [name for name in DRAFTERS if name != OWN or own_draft],
        "k": (1, 2, 3, 5, 8),
        "shape": list(SHAPES),
        "batch": (1, 8),
        "threads": threads,
        "memory": MEMORIES,
        "sampling": list(SAMPLINGS),
    }


def is_new(values: Mapping[str, object]) -> bool:
    """Whether no other combination of values says the same: a single draft is a chain, and no tree."""
    return (values.get("k"), values.get("shape")) != (1, "tree")


@dataclass(frozen=True, slots=True)
class Text:
    """A finished text: its tokens, what they say, and why it ended."""

    output: tuple[int, ...]
    text: str
    finish_reason: FinishReason | None

    @classmethod
    def of(cls, request: Request) -> Text:
        """What a request wrote."""
        return cls(tuple(request.output), request.text, request.finish_reason)


@dataclass(frozen=True, slots=True)
class Identity:
    """Prompts, and the comparison of texts with plain ones.

    prompts  token ids of each, not empty.
    seed     of the first text, where one is needed; the next has the next seed.
    """

    prompts: tuple[tuple[int, ...], ...]
    seed: int

    def plain(self, llm: LLM, sampling: str) -> tuple[Text, ...]:
        """The plain texts, written one at a time."""
        requests = self._requests(sampling)
        self._rig(llm, Parts(llm.model, Controller(())), batch=1).run(requests)
        return tuple(map(Text.of, requests))

    def check(
        self, llm: LLM, plain: tuple[Text, ...], setting: IdentitySetting, fault: Fault | None = None
    ) -> IdentityCell:
        """Write the texts of a setting, with a planted fault, if given, and compare them with its plain ones."""
        times = 2 if setting.memory == "cold and warm" else 1
        every = 2 if setting.drafter == "auto" else 1  # a policy sleeps only where nothing is expected
        rounds = [self._requests(setting.sampling, plain, every) for _ in range(times)]
        requests = [request for texts in rounds for request in texts]
        knowledge = Knowledge(
            {request.id: text.output for request, text in zip(requests, plain * times, strict=True)},
            llm,
        )
        drafter: Drafter = SHAPES[setting.shape](DRAFTERS[setting.drafter](knowledge), knowledge.vocabulary)
        # No policy stands between: it would soon leave a drafter alone that is always wrong.
        parts = Parts(llm.model, drafter)
        steps: list[Drafting] = []
        difference = broken = ""
        try:
            rig = self._rig(
                llm, fault(parts) if fault else parts, batch=setting.batch, memory=setting.memory, max_draft=setting.k
            )
            for texts in rounds:
                rig.run(texts, lambda emitted: steps.append(emitted.drafting))
            difference = first_difference(llm, plain * times, requests)
            broken = "" if difference else _silence(setting, steps)
        except Exception as error:
            broken = f"{type(error).__name__}: {error}"
        return IdentityCell(
            setting,
            texts=len(requests),
            tokens=sum(request.completion_tokens for request in requests),
            steps=sum(request.stats.steps for request in requests),
            asked=sum(step.allowed > 0 for step in steps),
            answered=sum(step.drafted > 0 for step in steps),
            drafted=sum(request.stats.drafted for request in requests),
            accepted=sum(request.stats.accepted for request in requests),
            preemptions=sum(request.stats.preemptions for request in requests),
            cached=sum(request.stats.cached for request in requests),
            difference=difference,
            fault=broken,
        )

    def _requests(self, sampling: str, plain: Sequence[Text] = (), every: int = 1) -> list[Request]:
        """New requests for the texts; each, or every so many-th, expects its plain text, once known, with a gap."""
        values = dict(SAMPLINGS[sampling])
        requests = []
        for number, prompt in enumerate(self.prompts):
            if "temperature" in values:
                values |= {"seed": self.seed + number, "acceptance": "coupled"}
            expected = plain[number].output if plain and number % every == 0 else ()
            prediction = (*expected[: MAX_TOKENS // 3], *expected[MAX_TOKENS // 3 + 2 :])
            requests.append(Request(prompt, SamplingParams(max_tokens=MAX_TOKENS, **values), prediction=prediction))
        return requests

    def _rig(self, llm: LLM, parts: Parts, *, batch: int, memory: str = "", max_draft: int = 0) -> Rig:
        longest = KVCache.blocks_for(max(len(prompt) for prompt in self.prompts) + MAX_TOKENS)
        texts = batch + len(self.prompts) if memory == "cold and warm" else batch
        return Rig(
            parts,
            blocks=longest + longest // 2 + 1 if memory == "scarce" else texts * longest + 1,
            make_detokeniser=lambda: Detokeniser(llm.tokenizer),
            eos_ids=llm.tokenizer.eos_ids,
            max_batch=batch,
            chunk=_CHUNK if memory == "chunked" else 256,
            max_draft=max_draft,
            debug=True,
        )


def _silence(setting: IdentitySetting, steps: Sequence[Drafting]) -> str:
    """That a drafter which always has something to say was silent in most steps; "" if it was not."""
    asked = sum(step.allowed > 0 for step in steps)
    answered = sum(step.drafted > 0 for step in steps)
    if setting.drafter not in TALKATIVE or 2 * answered >= asked:
        return ""
    return f"not shown: something was drafted in {answered:,} of {asked:,} steps"


def first_difference(llm: LLM, plain: Sequence[Text], requests: Sequence[Request]) -> str:
    """Where the tokens, the text or the end of a request differ from those of its plain twin; "" where they do not."""
    for a, request in zip(plain, requests, strict=True):
        b = Text.of(request)
        if a == b:
            continue
        place = next((i for i, (x, y) in enumerate(zip(a.output, b.output, strict=False)) if x != y), None)
        prompt = repr(llm.tokenizer.decode(list(request.prompt)))
        if place is None:
            ends = [f"{len(text.output)} tokens, {text.finish_reason}" for text in (b, a)]
            return f"prompt {prompt:.40}: {ends[0]}; plain {ends[1]}"
        mine, theirs = (repr(llm.tokenizer.decode([text.output[place]])) for text in (a, b))
        return f"prompt {prompt:.40}: token {place} is {theirs}, plain {mine}"
    return ""
