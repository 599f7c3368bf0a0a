"""The public API: a target and its drafters, loaded once, and texts from them.

llm = LLM("smollm2")
completion = llm.chat([{"role": "user", "content": "Why is the sky blue?"}], SamplingParams(max_tokens=100))
completions = llm.generate(["Once upon a time", "def fibonacci(n):"])
for emitted in llm.stream("Once upon a time"):
    print(emitted.text, end="")
"""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import index as as_integer
from pathlib import Path
from typing import Any

from outrider import drafters, drafts
from outrider.cache import BLOCK, KVCache
from outrider.constraints.grammar import Grammars
from outrider.drafters.grammar import GrammarDrafter
from outrider.drafters.prediction import PredictionDrafter
from outrider.drafters.suffix import PastOutputs, SuffixDrafter
from outrider.engine import Engine
from outrider.errors import ContextError, RequestError
from outrider.kernels.native import NativeModel
from outrider.models import record
from outrider.models.base import KVShape
from outrider.policy.controller import Controller
from outrider.policy.costs import Costs
from outrider.policy.measure import measure
from outrider.policy.store import CostStore
from outrider.request import Emitted, Request
from outrider.sampling import Logprobs, SamplingParams
from outrider.speculation import Speculation
from outrider.tokenizer import Detokeniser, Message, Tokenizer
from outrider.turns import FairLock
from outrider.types import FinishReason
from outrider.weights import followers, hub
from outrider.weights.gguf import GGUF

Prompt = str | Sequence[int] | Sequence[Message]
"""A raw text, token ids, or the messages of a conversation, which go through the model's chat template."""

DEFAULT_MODEL = "smollm2"
GREEDY = SamplingParams()

_NOTICEABLE = 0.3  # seconds


@dataclass(frozen=True, slots=True)
class Completion:
    """One finished text and how it came about.

    token_ids           all committed tokens, the end-of-text token included.
    finish_reason       "stop", "length", "cancelled", or "error" with the cause in `error`.
    drafters            names of the drafters whose proposals the target checked.
    steps               forward passes of the target that committed tokens.
    drafted, accepted   drafted tokens that the target checked, and those of them that are in the text.
    time_to_first_token, duration   seconds since the request was submitted.
    cached_tokens       prompt tokens that had not to be computed, as an earlier text began alike.
    """

    text: str
    token_ids: tuple[int, ...]
    finish_reason: FinishReason
    prompt_tokens: int
    logprobs: tuple[Logprobs, ...]
    drafters: tuple[str, ...]
    steps: int
    drafted: int
    accepted: int
    time_to_first_token: float
    duration: float
    error: Exception | None = None
    cached_tokens: int = 0

    @property
    def completion_tokens(self) -> int:
        """Number of committed tokens."""
        return len(self.token_ids)

    @property
    def tokens_per_step(self) -> float:
        """Committed tokens per step; 0 where there was no step."""
        return self.completion_tokens / self.steps if self.steps else 0.0

    @property
    def acceptance_rate(self) -> float:
        """Accepted share of the drafted tokens; 0 where nothing was drafted."""
        return self.accepted / self.drafted if self.drafted else 0.0

    @property
    def tokens_per_second(self) -> float:
        """Decoding speed: tokens after those of the first step, per second since then; 0 where there are none."""
        seconds = self.duration - self.time_to_first_token
        return (self.completion_tokens - 1) / seconds if seconds > 0 and self.completion_tokens > 1 else 0.0


class LLM:
    """A target model ready to write. Several requests run in one batch; methods may be called from several threads."""

    def __init__(
        self,
        model: str | Path = DEFAULT_MODEL,
        *,
        speculation: str = "auto",
        draft: str | Path | None = None,
        learn_from_outputs: bool = False,
        costs: Costs | None = None,
        recalibrate: bool = False,
        context_length: int | None = None,
        kv_tokens: int | None = None,
        max_batch: int = 8,
        max_draft: int = 8,
        threads: int | None = None,
        progress: hub.ProgressCallback | None = None,
    ) -> None:
        """Load a model.

        model           an alias such as "smollm2", fetched on first use, or the path of a .gguf file.
        speculation     who drafts, unless a request says otherwise: "auto": whoever and as much as pays, or nobody;
                        "off"; a drafter's name; a fixed number of tokens, "4"; or both, "suffix:4". The text is the
                        same.
        draft           what was made to draft for this model: a folder of `outrider distill`; an EAGLE-3 head in the
                        official layout, or as a compact file of ours; or a smaller model with the same vocabulary, as
                        an alias or a .gguf file. None: what ships for exactly this model file, if anything does.
        learn_from_outputs  let "suffix" draft from the outputs of earlier requests too, whoever made them: faster where
                        they are alike, but who measures times may learn what others were told.
        costs           of the target's passes; None: what is stored of this model on this machine, or else they are
                        measured now, which takes a second or two, and stored.
        recalibrate     measure them in any case; not with costs.
        context_length  the most tokens of prompt and output; None: the model's own, which is also the most.
        kv_tokens       positions that the KV cache holds, of all requests together; None: four full contexts, or as
                        many as fit in a quarter of the machine's memory, but at least one full context.
        max_batch       requests that are decoded together; others wait.
        max_draft       most tokens drafted for a request in a step; a fixed number of more is refused.
        threads         None: OUTRIDER_THREADS, or what the process may use.
        progress        told of a download's progress.

        Raises ModelError if the model cannot be had or used, RequestError for an impossible setting.
        """
        wanted = Speculation.parse(speculation)
        wanted.check(max_draft)
        off = wanted.length == 0
        if off and draft is not None:
            raise RequestError(f"draft={str(draft)!r} is of no use with speculation={speculation!r}")
        if recalibrate and costs is not None:
            raise RequestError("recalibrate=True is of no use with costs, which are taken as they are")
        self.path = hub.resolve(model, progress=progress)
        gguf = GGUF.open(self.path)
        recorded = record(gguf)
        files = drafts.Draft() if off else drafts.find(draft, self.path, progress)
        if files.weights and (taps := drafters.draft_taps(files.weights, recorded.kv_shape.layers)):
            recorded = record(gguf, taps)
        self.name = str(model)
        self.tokenizer = Tokenizer.from_metadata(gguf.metadata, str(self.path))
        self.context_length = _context(context_length, recorded.context_length)
        self.model = NativeModel(
            recorded.program, context_length=self.context_length, kv_shape=recorded.kv_shape, threads=threads
        )
        cache = _kv_cache(kv_tokens, self.context_length, recorded.kv_shape)
        self.draft = None if draft is None else str(draft)
        self.learn_from_outputs = learn_from_outputs
        self._followers = (
            followers.load(files.followers, self.model.vocabulary_size).native() if files.followers else None
        )
        mine: list[drafters.Drafter] = [GrammarDrafter(), PredictionDrafter(), self.fresh_drafter("suffix")]
        self.own_draft: drafters.Drafter | None = None
        if files.weights is not None:
            self.own_draft = drafters.open_draft(
                files.weights, self.model, recorded.embedding, self.tokenizer, positions=cache.positions
            )
            mine.append(self.own_draft)
        if wanted.drafter in set(drafters.available()) - {drafter.name for drafter in mine}:
            # "ngram": superseded by "suffix", and drafts only where it is asked for
            mine.append(self.fresh_drafter(wanted.drafter))
        gguf.release()  # all weights are packed now
        self.drafters = tuple(drafter.name for drafter in mine)
        self.speculation = self._speculation(speculation)
        self.costs = costs or self._costs(recalibrate, progress)
        self._grammars = Grammars(self.tokenizer, self.model.vocabulary_size)
        self.policy = Controller(mine, self.costs, time.perf_counter if costs is None else None)
        self.engine = Engine(
            self.model,
            cache,
            self.policy,
            eos_ids=self.tokenizer.eos_ids,
            make_detokeniser=lambda: Detokeniser(self.tokenizer),
            max_batch=max_batch,
            max_draft=max_draft,
            debug=os.environ.get("OUTRIDER_DEBUG", "") not in ("", "0"),
        )
        self._lock = FairLock()
        self._inboxes: dict[int, deque[Emitted]] = {}

    def generate(
        self,
        prompts: str | Sequence[Prompt],
        params: SamplingParams = GREEDY,
        *,
        prediction: str = "",
    ) -> list[Completion]:
        """The completions of the prompts, in their order; a single text gives a list of one.

        prediction  text that the caller expects as output, in part or whole: it makes a good guess fast, and changes
                    nothing else.
        """
        texts: list[Prompt] = [prompts] if isinstance(prompts, str) else list(prompts)
        completions = dict(self.generate_each(texts, params, prediction=prediction))
        return [completions[i] for i in range(len(texts))]

    def generate_each(
        self, prompts: Sequence[Prompt], params: SamplingParams = GREEDY, *, prediction: str = ""
    ) -> Iterator[tuple[int, Completion]]:
        """As `generate`, but each completion with its prompt's index as soon as it is finished."""
        requests = [self.request(prompt, params, prediction=prediction) for prompt in prompts]
        index = {request.id: i for i, request in enumerate(requests)}
        for emitted in self.run(requests):
            if emitted.finish_reason is not None:
                yield index[emitted.request.id], completion(emitted.request)

    def chat(self, messages: Sequence[Message], params: SamplingParams = GREEDY, *, prediction: str = "") -> Completion:
        """The model's next message in a conversation."""
        return self.generate([messages], params, prediction=prediction)[0]

    def stream(self, prompt: Prompt, params: SamplingParams = GREEDY, *, prediction: str = "") -> Iterator[Emitted]:
        """What each step adds to one text, as it comes. Closing the iterator cancels the request.

        The last item carries a finish reason; `completion(item.request)` then sums the request up.
        """
        return self.run([self.request(prompt, params, prediction=prediction)])

    def request(
        self,
        prompt: Prompt,
        params: SamplingParams = GREEDY,
        *,
        prediction: str = "",
        speculation: str | None = None,
        json_schema: Mapping[str, Any] | None = None,
        choice: int = 0,
        reuse: bool = True,
    ) -> Request:
        """A request for `run`.

        speculation  who drafts for it, see `LLM`; None: as for the others.
        json_schema  the text is JSON that satisfies this schema, unless max_tokens or a stop cut it. For any object:
                     {"type": "object"}. It needs the extra "grammar".
        choice       index among the texts that are asked for together; with the same seed each is another one.
        reuse        whether it may use what was computed for earlier texts that begin alike, and with
                     learn_from_outputs what they said, and leaves its own for later ones. It changes nothing but times.

        Raises RequestError if the prompt is neither text, token ids, nor messages, if the schema cannot be used, or if
        it could never run.
        """
        self._refuse_long(prediction, "prediction")
        expected = self.tokenizer.encode(prediction, add_special_tokens=False) if prediction else []
        request = Request(
            self.encode(prompt),
            params,
            choice=choice,
            prediction=tuple(expected),
            speculation=self.speculation if speculation is None else self._speculation(speculation),
            constraint=None if json_schema is None else self._grammars.json_schema(json_schema),
            reuse=reuse,
        )
        self.engine.scheduler.check(request)
        return request

    def encode(self, prompt: Prompt) -> list[int]:
        """The token ids of a prompt. Raises RequestError, also for a text that cannot fit into the context."""
        if isinstance(prompt, str):
            self._refuse_long(prompt, "prompt")
            return self.tokenizer.encode(prompt)
        if isinstance(prompt, int) or not hasattr(prompt, "__len__"):
            raise RequestError(
                f"prompt {prompt!r:.80} is no list; one prompt of token ids among several is a list of ids"
            )
        messages = [item for item in prompt if isinstance(item, dict)]
        if len(messages) == len(prompt) > 0:
            return self.encode(self.tokenizer.render_chat(messages))
        try:
            if any(isinstance(item, bool) for item in prompt):
                raise TypeError
            return [as_integer(item) for item in prompt]  # type: ignore[arg-type]  # it raises for what is no integer
        except TypeError:
            expected = "a text, a list of token ids, or a list of messages"
            raise RequestError(f"prompt {prompt!r:.80} is not possible; expected {expected}") from None

    def run(self, requests: Sequence[Request]) -> Iterator[Emitted]:
        """Runs requests to their ends and yields what each step adds to them; others may run beside them.

        However the iteration ends, by exhaustion, an error or by being closed, the requests are over afterwards.
        """
        inbox: deque[Emitted] = deque()
        unfinished: set[int] = set()
        try:
            with self._lock:
                for request in requests:
                    self.engine.submit(request)
                    self._inboxes[request.id] = inbox
                    unfinished.add(request.id)
            while unfinished:
                while not inbox:
                    with self._lock:
                        if not inbox:  # another thread's step may have filled it
                            self._step()
                emitted = inbox.popleft()
                if emitted.finish_reason is not None:
                    unfinished.discard(emitted.request.id)
                yield emitted
        finally:
            with self._lock:
                for request in requests:
                    self._inboxes.pop(request.id, None)
                    if request.id in unfinished:
                        self.engine.cancel(request)
                self.engine.drop_cancelled()

    def fresh_drafter(self, name: str) -> drafters.Drafter:
        """A new drafter like the one of that name that drafts here, without its requests; see `drafters.available`.

        Raises RequestError if there is none.
        """
        if name == "suffix":
            return SuffixDrafter(followers=self._followers, past=PastOutputs() if self.learn_from_outputs else None)
        return drafters.create(name)

    def cancel(self, request: Request) -> None:
        """End a request before its next step, as "cancelled"; also from another thread, or from a signal handler."""
        self.engine.cancel(request)

    def _refuse_long(self, text: str, field: str) -> None:
        """Raises ContextError for a text that the context cannot hold, before it is read, which could take seconds."""
        if (fewest := self.tokenizer.fewest(text)) >= self.context_length:
            raise ContextError(
                f"the {field} has {fewest} tokens or more; the context of {self.context_length} leaves room for at "
                f"most {self.context_length - 1} and one token of output",
                field,
            )

    def _speculation(self, text: str) -> Speculation:
        """Raises RequestError for what is not possible."""
        speculation = Speculation.parse(text)
        if speculation.drafter not in (None, *self.drafters):
            allowed = ", ".join(self.drafters)
            raise RequestError(f"speculation={text!r} is not possible; allowed drafters: {allowed}", "speculation")
        return speculation

    def _costs(self, recalibrate: bool, progress: hub.ProgressCallback | None) -> Costs:
        """Stored costs of the target's passes, or else measured ones; only where that takes long is it told."""
        store = CostStore.of(self.path, self.model)
        stored = None if recalibrate else store.load()
        if stored is not None:
            return stored
        start = time.perf_counter()

        def tell() -> None:
            if progress and time.perf_counter() - start > _NOTICEABLE:
                progress("Measuring this machine, once", 0, None)

        return store.save(measure(self.model, progress=tell))

    def _step(self) -> None:
        for emitted in self.engine.step():
            inbox = self._inboxes.get(emitted.request.id)
            if inbox is not None:
                inbox.append(emitted)


def completion(request: Request) -> Completion:
    """The sum of a finished request."""
    if request.finish_reason is None:
        raise RequestError(f"request {request.id} is not finished")
    timings, stats = request.timings, request.stats
    submitted, finished = timings.submitted or 0.0, timings.finished or 0.0
    first = timings.first_token if timings.first_token is not None else finished
    return Completion(
        text=request.text,
        token_ids=tuple(request.output),
        finish_reason=request.finish_reason,
        prompt_tokens=len(request.prompt),
        logprobs=tuple(request.logprobs),
        drafters=tuple(request.drafters),
        steps=stats.steps,
        drafted=stats.drafted,
        accepted=stats.accepted,
        time_to_first_token=first - submitted,
        duration=finished - submitted,
        error=request.error,
        cached_tokens=stats.cached,
    )


def _context(wanted: int | None, most: int) -> int:
    if wanted is None:
        return most
    if not 2 <= wanted <= most:
        raise RequestError(f"context_length={wanted} is not possible; allowed: 2 to {most}, the model's own")
    return wanted


def _kv_cache(kv_tokens: int | None, context: int, shape: KVShape) -> KVCache:
    """A cache for that many positions; None: see `LLM`. Raises RequestError if it cannot be had."""
    per_token = 4 * shape.layers * shape.heads * (shape.head_dim + 2)
    if kv_tokens is None:
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        kv_tokens = max(context, min(4 * context, memory // 4 // per_token))
    elif kv_tokens < BLOCK:
        raise RequestError(f"kv_tokens={kv_tokens} is not possible; allowed: {BLOCK} or more")
    try:
        return KVCache(shape, -(-kv_tokens // BLOCK))
    except (OSError, OverflowError, MemoryError) as error:
        raise RequestError(
            f"the KV cache for {kv_tokens} tokens needs {kv_tokens * per_token / 2**30:.1f} GiB, which this system "
            f"refuses ({error}); lower context_length, or set kv_tokens"
        ) from error
