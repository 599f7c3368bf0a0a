"""The rules that act on a row's logits: bias, mask, min_tokens, penalties; each a pure function that returns a new row.

A row is judged by the tokens before it: the prompt, the committed output, and the drafts on its own path, each once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from outrider.constraints.base import Constraint
from outrider.errors import ConstraintError, RequestError
from outrider.kernels import _sampling
from outrider.sampling.params import SamplingParams
from outrider.types import FloatArray, IntArray

BoolArray = npt.NDArray[np.bool_]


@dataclass(slots=True, eq=False)
class History:
    """What comes before the rows of a step, beside the drafts: with logits and parameters it fixes their laws.

    tokens         prompt and committed output; they may grow, nothing else may change.
    prompt_length  how many of them are the prompt.
    stop_ids       tokens that end the text, which min_tokens keeps away.
    allowed        which tokens can come at all: bool, [vocabulary]; None: all.
    constraint     which of them can come at each place, such as a grammar; None: all.
    """

    tokens: Sequence[int] = ()
    prompt_length: int = 0
    stop_ids: Collection[int] = ()
    allowed: BoolArray | None = None
    constraint: Constraint | None = None

    _counted: int = field(init=False, default=0)
    _prompt: IntArray | None = field(init=False, default=None)
    _output: Counter[int] = field(init=False, default_factory=Counter)

    @property
    def output_length(self) -> int:
        """How many output tokens are committed."""
        return len(self.tokens) - self.prompt_length

    def allowed_after(self, drafted: Sequence[int]) -> BoolArray | None:
        """Which tokens can come after the committed ones and these; None: all.

        Raises ConstraintError if none can come after the committed ones. Where none can come after drafted ones, the
        drafts are right all the same, and may end the text; so what comes after them is left to the commit point, which
        ends the text before it, or refuses it.
        """
        if self.constraint is None:
            return self.allowed
        mask = self.constraint.allowed(drafted)
        if self.allowed is not None:
            mask = mask & self.allowed
        if mask.any():
            return mask
        if not drafted:
            raise ConstraintError(f"output token {self.output_length}: the constraint leaves no token that could come")
        return self.allowed

    def counts(self) -> tuple[IntArray, Counter[int]]:
        """The tokens of the prompt, once each, and how often each is in the committed output. Not to be modified.

        Only tokens that came since the last call are counted: the cost of a step must not grow with the text.
        """
        if self._prompt is None:
            self._prompt = np.array(sorted(set(self.tokens[: self.prompt_length])), np.int32)
            self._counted = self.prompt_length
        self._output.update(self.tokens[self._counted :])
        self._counted = len(self.tokens)
        return self._prompt, self._output


def adjusted(logits: FloatArray, params: SamplingParams, history: History, drafted: Sequence[int] = ()) -> FloatArray:
    """A row after all rules before temperature; the row itself, where there are none. logits: float32, [vocabulary].

    drafted  the tokens between the committed ones and the row's successor: the path that ends with the row's token.
    """
    if params.logit_bias:
        logits = biased(logits, params.logit_bias)
    if (allowed := history.allowed_after(drafted)) is not None:
        logits = masked(logits, allowed)
    if history.output_length + len(drafted) < params.min_tokens:
        logits = without(logits, history.stop_ids)
    if params.penalises:
        prompt, output = history.counts()
        if drafted:
            output = Counter(output)
            output.update(drafted)
        logits = penalised(logits, prompt, output, params)
    return logits


def changed(params: SamplingParams, history: History, drafted: Sequence[int] = ()) -> Collection[int] | None:
    """The tokens whose logits `adjusted` may change; None: any."""
    if history.allowed is not None or history.constraint is not None:
        return None
    ids = {*params.logit_bias, *drafted}
    if params.min_tokens:
        ids.update(history.stop_ids)
    if params.penalises:
        prompt, output = history.counts()
        ids.update(prompt.tolist(), output)
    return ids


def biased(logits: FloatArray, bias: Mapping[int, float]) -> FloatArray:
    """Each bias added to its token's logit."""
    logits = logits.copy()
    logits[list(bias)] += np.fromiter(bias.values(), np.float32, len(bias))
    return logits


def masked(logits: FloatArray, allowed: BoolArray) -> FloatArray:
    """-inf where a token is not allowed; NaN stays, so that a broken row is still seen to be one."""
    return np.where(allowed | np.isnan(logits), logits, np.float32(-np.inf))


def without(logits: FloatArray, ids: Collection[int]) -> FloatArray:
    """-inf for these tokens."""
    logits = logits.copy()
    logits[list(ids)] = -np.inf
    return logits


def penalised(logits: FloatArray, prompt: IntArray, output: Mapping[int, int], params: SamplingParams) -> FloatArray:
    """The repetition penalty, then the presence and frequency penalties; output: how often each token is in it.

    Repetition divides positive logits of seen tokens, and multiplies negative ones, each token once (Keskar et al.
    2019, CTRL, arXiv 1909.05858, section 4.1, for positive logits; for negative ones as in transformers). The other two
    give logit - presence - count x frequency for each token that is in the output, as in the OpenAI API.
    """
    ids = np.fromiter(output, np.int32, len(output))
    times = np.fromiter(output.values(), np.float32, len(output))
    penalties = params.repetition_penalty, params.presence_penalty, params.frequency_penalty
    result: FloatArray = _sampling.penalised(logits, prompt, ids, times, *penalties)
    return result


def allowed_mask(params: SamplingParams, vocabulary: int) -> BoolArray | None:
    """allowed_token_ids without banned_token_ids, as a mask, [vocabulary]; None where all tokens are allowed.

    Read-only, as requests that ask for the same share it.
    """
    if params.allowed_token_ids is None and not params.banned_token_ids:
        return None
    return _mask(params.allowed_token_ids, params.banned_token_ids, vocabulary)


@lru_cache(maxsize=16)
def _mask(allowed: tuple[int, ...] | None, banned: tuple[int, ...], vocabulary: int) -> BoolArray:
    mask = np.full(vocabulary, allowed is None)
    mask[list(allowed or ())] = True
    mask[list(banned)] = False
    mask.flags.writeable = False
    return mask


def check_ids(name: str, ids: Iterable[int], vocabulary: int) -> None:
    """Raises RequestError, in the name of a field, for an id that is not in the vocabulary."""
    for token in ids:
        if not (isinstance(token, int) and 0 <= token < vocabulary):
            raise RequestError(f"{name}: {token!r} is no token id; expected 0 to {vocabulary - 1}", name)


def check_possible(params: SamplingParams, vocabulary: int, stop_ids: Collection[int], room: int) -> None:
    """Raises RequestError for parameters that this target cannot honour.

    stop_ids  the tokens of the vocabulary that end the text.
    room      the most tokens that can be written.
    """
    for name in ("logit_bias", "allowed_token_ids", "banned_token_ids", "stop_token_ids"):
        check_ids(name, getattr(params, name) or (), vocabulary)
    if params.min_tokens > room:
        raise RequestError(
            f"min_tokens={params.min_tokens} is not possible; the context has room for {room}", "min_tokens"
        )
    mask = allowed_mask(params, vocabulary)
    possible = np.ones(vocabulary, bool) if mask is None else mask.copy()
    if params.min_tokens:
        possible[list(stop_ids)] = False
    if not possible.any():
        raise RequestError(
            "no token can come: allowed_token_ids, banned_token_ids and, with min_tokens, the tokens that end the text "
            "leave none"
        )
