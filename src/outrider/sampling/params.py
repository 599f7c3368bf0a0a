"""What a request asks of sampling, checked when it is made; ids are held against the vocabulary at submission."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from outrider.errors import RequestError

Rule = Literal["greedy", "coupled", "rejection", "block"]

_SAMPLING_RULES: tuple[Rule, ...] = ("coupled", "rejection", "block")
_COLDEST, _HOTTEST = 1e-6, 1e6
_LISTS = ("stop", "stop_token_ids", "allowed_token_ids", "banned_token_ids")


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """What a request asks of sampling. Raises RequestError for a value that cannot be honoured.

    In the order in which they act on the target's logits, also at temperature 0:

    logit_bias          added to the logits of these token ids, from -100 to 100.
    allowed_token_ids   only these tokens can come; None: all.
    banned_token_ids    these cannot.
    min_tokens          until so many are written, a token that would end the text (stop_token_ids, end of text) cannot
                        come. Stop strings end it all the same.
    repetition_penalty  tokens of prompt and output: positive logits are divided, negative ones multiplied by it
                        (Keskar et al. 2019, CTRL, section 4.1); 1: none.
    presence_penalty    subtracted from the logits of the tokens of the output; 0: none.
    frequency_penalty   subtracted as often as the token is in the output; 0: none.
    temperature         0: greedy, the lowest id on ties; otherwise the logits are divided by it.
    top_k               keep the k most probable tokens; 0: all.
    top_p               then the fewest most probable tokens whose probabilities reach top_p; 1: all.
    min_p               then those at least min_p times as probable as the most probable; 0: all.

    And beside them:

    seed                the same seed gives the same text; None: another text every time.
    max_tokens          the most tokens to write; None: until the context is full.
    stop                strings that end the text where they first appear.
    stop_token_ids      tokens that end the text.
    ignore_eos          write on past the model's end-of-text tokens.
    logprobs            report the log-probability of each token (0), and of the n most probable ones (n); None: none.
    acceptance          the acceptance rule; None: see `rule`.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int | None = None
    max_tokens: int | None = None
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    logprobs: int | None = None
    acceptance: Rule | None = None
    logit_bias: Mapping[int, float] = field(default_factory=dict, hash=False)
    allowed_token_ids: tuple[int, ...] | None = None
    banned_token_ids: tuple[int, ...] = ()
    min_tokens: int = 0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0

    def __post_init__(self) -> None:
        for name in _LISTS:
            if isinstance(value := getattr(self, name), list):
                object.__setattr__(self, name, tuple(value))
        if isinstance(self.logit_bias, Mapping):
            object.__setattr__(self, "logit_bias", dict(self.logit_bias))  # ours: the caller may change his
        t = self.temperature
        _check(
            _real(t) and (t == 0 or _COLDEST <= t <= _HOTTEST),
            "temperature",
            t,
            f"0 (greedy), or from {_COLDEST:g} to {_HOTTEST:g}",
        )
        _check(_integer(self.top_k) and self.top_k >= 0, "top_k", self.top_k, "an integer, 0 (off) or more")
        _check(_real(self.top_p) and 0 < self.top_p <= 1, "top_p", self.top_p, "above 0, at most 1 (off)")
        _check(_real(self.min_p) and 0 <= self.min_p <= 1, "min_p", self.min_p, "from 0 (off) to 1")
        _check(
            self.seed is None or (_integer(self.seed) and -(2**63) <= self.seed < 2**63),
            "seed",
            self.seed,
            "None or an integer of 64 bits",
        )
        _check(
            self.max_tokens is None or (_integer(self.max_tokens) and self.max_tokens >= 1),
            "max_tokens",
            self.max_tokens,
            "None or an integer, 1 or more",
        )
        _check(
            isinstance(self.stop, tuple) and all(_text(each) for each in self.stop),
            "stop",
            self.stop,
            "a tuple of non-empty strings of valid Unicode, such as ('###',)",
        )
        for name in ("stop_token_ids", "banned_token_ids"):
            _check(_ids(getattr(self, name)), name, getattr(self, name), "a tuple of token ids, 0 or more")
        _check(
            self.allowed_token_ids is None
            or (_ids(self.allowed_token_ids) and not set(self.allowed_token_ids) <= set(self.banned_token_ids)),
            "allowed_token_ids",
            self.allowed_token_ids,
            "None or a tuple of token ids, at least one of them not among banned_token_ids",
        )
        _check(
            isinstance(self.logit_bias, dict)
            and all(_integer(i) and i >= 0 and _real(x) and -100 <= x <= 100 for i, x in self.logit_bias.items()),
            "logit_bias",
            self.logit_bias,
            "a mapping of token ids to numbers from -100 to 100, such as {42: -1.5}",
        )
        _check(
            _integer(self.min_tokens) and 0 <= self.min_tokens <= (self.max_tokens or math.inf),
            "min_tokens",
            self.min_tokens,
            "an integer from 0 (off) to max_tokens",
        )
        _check(
            _real(self.repetition_penalty) and 0.01 <= self.repetition_penalty <= 100,
            "repetition_penalty",
            self.repetition_penalty,
            "from 0.01 to 100; 1 is off",
        )
        for name in ("presence_penalty", "frequency_penalty"):
            value = getattr(self, name)
            _check(_real(value) and -2 <= value <= 2, name, value, "from -2 to 2; 0 is off")
        _check(isinstance(self.ignore_eos, bool), "ignore_eos", self.ignore_eos, "True or False")
        _check(
            self.logprobs is None or (_integer(self.logprobs) and self.logprobs >= 0),
            "logprobs",
            self.logprobs,
            "None or an integer, 0 or more",
        )
        possible = (None, "greedy") if self.temperature == 0 else (None, *_SAMPLING_RULES)
        _check(
            self.acceptance in possible,
            "acceptance",
            self.acceptance,
            f"{' or '.join(map(str, possible))} at temperature {self.temperature:g}",
        )

    @property
    def adjusts(self) -> bool:
        """Whether bias, min_tokens or penalties change any logits."""
        return bool(self.logit_bias) or self.min_tokens > 0 or self.penalises

    @property
    def penalises(self) -> bool:
        """Whether the tokens before a row change its logits."""
        return self.repetition_penalty != 1 or self.presence_penalty != 0 or self.frequency_penalty != 0

    @property
    def rule(self) -> Rule:
        """The acceptance rule in force: greedy at temperature 0, else `acceptance`, else coupled if seeded, or block.

        `docs/exactness.md` has the figures that say so.
        """
        if self.temperature == 0:
            return "greedy"
        return self.acceptance or ("block" if self.seed is None else "coupled")


def _real(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _integer(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _text(value: object) -> bool:
    return isinstance(value, str) and value != "" and not any("\ud800" <= letter <= "\udfff" for letter in value)


def _ids(value: object) -> bool:
    return isinstance(value, tuple) and all(_integer(i) and i >= 0 for i in value)


def _check(right: bool, field: str, value: object, allowed: str) -> None:
    if not right:
        raise RequestError(f"{field}={value!r} is not possible; allowed: {allowed}", field)
