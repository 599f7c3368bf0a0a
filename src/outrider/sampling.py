"""From logits to distributions: what a request asks of sampling, and the one function that applies it.

`distribution(logits, params)` is the law of the next token; acceptance rules, drafters and plain decoding all use it.
`logprobs` describes the raw target, before any sampling rule.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from outrider.errors import NumericError, RequestError
from outrider.types import DoubleArray, FloatArray

Rule = Literal["greedy", "coupled", "rejection"]
Ids = npt.NDArray[np.int64]

_RULES: tuple[Rule, ...] = ("greedy", "coupled", "rejection")
_COLDEST, _HOTTEST = 1e-6, 1e6


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """What a request asks of sampling. Raises RequestError for a value that cannot be honoured.

    temperature     0: greedy, the lowest id on ties; otherwise the logits are divided by it.
    top_k           keep the k most probable tokens; 0: all.
    top_p           then the fewest most probable tokens whose probabilities reach top_p; 1: all.
    min_p           then those at least min_p times as probable as the most probable; 0: all.
    seed            the same seed gives the same text; None: another text every time.
    max_tokens      the most tokens to write; None: until the context is full.
    stop            strings that end the text where they first appear.
    stop_token_ids  tokens that end the text.
    ignore_eos      write on past the model's end-of-text tokens.
    logprobs        report the log-probability of each token (0), and of the n most probable ones (n); None: none.
    acceptance      the acceptance rule; None: see `rule`.
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

    def __post_init__(self) -> None:
        for name in ("stop", "stop_token_ids"):
            if isinstance(value := getattr(self, name), list):
                object.__setattr__(self, name, tuple(value))
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
            isinstance(self.stop, tuple) and all(isinstance(text, str) and text for text in self.stop),
            "stop",
            self.stop,
            "a tuple of non-empty strings, such as ('###',)",
        )
        _check(
            isinstance(self.stop_token_ids, tuple) and all(_integer(i) and i >= 0 for i in self.stop_token_ids),
            "stop_token_ids",
            self.stop_token_ids,
            "a tuple of token ids, 0 or more",
        )
        _check(isinstance(self.ignore_eos, bool), "ignore_eos", self.ignore_eos, "True or False")
        _check(
            self.logprobs is None or (_integer(self.logprobs) and self.logprobs >= 0),
            "logprobs",
            self.logprobs,
            "None or an integer, 0 or more",
        )
        possible = (None, "greedy") if self.temperature == 0 else (None, "coupled", "rejection")
        _check(
            self.acceptance in possible,
            "acceptance",
            self.acceptance,
            f"{' or '.join(map(str, possible))} at temperature {self.temperature:g}",
        )

    @property
    def rule(self) -> Rule:
        """The acceptance rule in force: greedy at temperature 0, else `acceptance`, else coupled with a seed."""
        if self.temperature == 0:
            return "greedy"
        return self.acceptance or ("rejection" if self.seed is None else "coupled")


@dataclass(frozen=True, slots=True)
class Distribution:
    """The law of a token: the ids that can come, ascending, and their probabilities, all above 0, of sum 1."""

    ids: Ids
    p: DoubleArray

    def probability(self, token: int) -> float:
        """Probability of a token; 0 if it cannot come."""
        place = int(self.ids.searchsorted(token))
        return float(self.p[place]) if place < len(self.ids) and self.ids[place] == token else 0.0

    def draw(self, uniform: float) -> int:
        """The token that a number in (0, 1) picks: the inverse of the cumulative distribution."""
        cumulative = self.p.cumsum()
        place = cumulative.searchsorted(uniform * cumulative[-1], side="right")
        return int(self.ids[min(int(place), len(self.ids) - 1)])

    def dense(self, vocabulary: int) -> DoubleArray:
        """The probabilities of all tokens; float64, [vocabulary]."""
        p = np.zeros(vocabulary)
        p[self.ids] = self.p
        return p


def greedy_token(logits: FloatArray) -> int:
    """The most probable token of a row ([vocabulary]), the lowest id on ties. Raises NumericError."""
    token = int(logits.argmax())
    if not math.isfinite(logits[token]):  # argmax takes NaN for the largest
        raise NumericError(f"logits: the largest is {logits[token]} (token {token}); it must be a finite number")
    return token


def distribution(logits: FloatArray, params: SamplingParams) -> Distribution:
    """The law of the next token. logits: float32, [vocabulary], left as they are.

    The order is temperature, top-k, top-p, min-p, each on what the one before left. Ties at an edge keep the lowest
    ids. -inf means impossible; raises NumericError for NaN, +inf, or where nothing is possible.
    """
    top = greedy_token(logits)
    if params.temperature == 0:
        return Distribution(np.array([top], np.int64), np.ones(1))
    peak = logits[top]
    if 0 < params.top_k < len(logits):
        ids = _largest(logits, params.top_k)
        logits = logits[ids]
    else:
        ids = np.arange(len(logits))
    with np.errstate(over="ignore"):  # far below the peak, -inf is right
        weights = np.exp((logits - peak) / np.float32(params.temperature)).astype(np.float64)
    if params.top_p < 1:
        kept = _nucleus(weights, params.top_p)
        ids, weights = ids[kept], weights[kept]
    possible = weights >= params.min_p if params.min_p > 0 else weights > 0  # the largest weight is 1
    if not possible.all():
        ids, weights = ids[possible], weights[possible]
    weights /= weights.sum()
    return Distribution(ids, weights)


def _largest(values: FloatArray | DoubleArray, k: int) -> Ids:
    """Places of the k largest, ascending; of those equal to the smallest of them, the lowest places."""
    edge = np.partition(values, -k)[-k]
    places = np.flatnonzero(values >= edge)
    ties = np.flatnonzero(values[places] == edge)
    return np.delete(places, ties[len(ties) - (len(places) - k) :])


def _nucleus(weights: DoubleArray, top_p: float) -> Ids:
    """Places of the fewest largest weights whose sum reaches top_p of all, ascending; the lowest places on ties."""
    enough = top_p * weights.sum()
    for floor in (1e-3, 1e-6, 0.0):  # the whole vocabulary is hardly ever needed
        head = weights[weights >= floor]
        if head.sum() >= enough:
            break
    count = int(np.sort(head)[::-1].cumsum().searchsorted(enough)) + 1
    return _largest(weights, min(count, len(head)))


@dataclass(frozen=True, slots=True)
class Logprobs:
    """Natural log-probabilities under the raw target: of the chosen token, and of the most probable ones."""

    chosen: float
    top: tuple[tuple[int, float], ...] = ()


def log_softmax(logits: FloatArray) -> DoubleArray:
    """Log-probabilities of a row of raw logits; float64, [vocabulary]. Raises NumericError."""
    shifted = logits.astype(np.float64) - logits[greedy_token(logits)]
    result: DoubleArray = shifted - math.log(np.exp(shifted).sum())
    return result


def logprobs(logits: FloatArray, token: int, n: int) -> Logprobs:
    """Log-probability of `token` and of the n most probable tokens, in descending order (lowest id on ties)."""
    values = log_softmax(logits)
    if n == 0:
        return Logprobs(float(values[token]))
    best = _largest(logits, min(n, len(logits)))
    best = best[np.argsort(-logits[best], kind="stable")]
    return Logprobs(float(values[token]), tuple((int(i), float(values[i])) for i in best))


def _real(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _integer(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _check(right: bool, field: str, value: object, allowed: str) -> None:
    if not right:
        raise RequestError(f"{field}={value!r} is not possible; allowed: {allowed}")
