"""Runs all checks of a certificate, on a user's own target."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Protocol, TypeVar

from outrider import drafts, machine
from outrider.certify import controls, draws, identity, law
from outrider.certify.certificate import Certificate, Machine, ModelFile
from outrider.certify.controls import control
from outrider.certify.covering import Combination, Factors, every, pairwise
from outrider.certify.crew import Crew, Task
from outrider.certify.draws import Draws, DrawsCell, DrawsSetting
from outrider.certify.identity import Identity, IdentityCell, IdentitySetting, Text
from outrider.certify.law import LawCell, LawSetting
from outrider.certify.rig import Fault
from outrider.certify.statistics import FAMILY_ALARMS
from outrider.errors import RequestError
from outrider.kernels.threads import checked_threads, default_threads
from outrider.llm import DEFAULT_MODEL, LLM, Prompt
from outrider.policy.costs import FREE
from outrider.weights import hub

T = TypeVar("T")


class Progress(Protocol):
    """Told what is being done, and how many of the checks are done."""

    def __call__(self, doing: str, done: int, total: int) -> None: ...


@dataclass(frozen=True, slots=True)
class Extent:
    """How much is checked.

    combinations  which of all combinations of the factors' values are run.
    bias          the smallest bias that the tests of the law are to see, as a total variation distance.
    draws         texts drawn for each test on the user's own target.
    """

    name: str
    combinations: Callable[[Factors], Iterable[Combination]]
    bias: float
    draws: int


def _all(factors: Factors) -> Iterator[Combination]:
    return filter(identity.is_new, every(factors))


FULL = Extent("full", _all, bias=0.03, draws=20_000)
QUICK = Extent("quick", pairwise, bias=0.08, draws=1_500)


def certify(
    target: LLM | str | Path = DEFAULT_MODEL,
    *,
    draft: str | Path | None = None,
    extent: Extent = FULL,
    prompts: Sequence[Prompt] = identity.PROMPTS,
    seed: int = 0,
    threads: int | None = None,
    progress: Progress = lambda doing, done, total: None,
) -> Certificate:
    """Check that speculative decoding on this machine gives the target's own text, or the law of it.

    What needs one thread is done side by side, by as many processes as there are threads, each with its own copy of the
    model, but not by more than there is memory for; what needs more is done after that, alone.

    target   a model that is loaded already, with its draft, or what `LLM` takes for one.
    draft    what drafts for it, as for `LLM`, beside the drafters that need no weights.
    extent   FULL, or QUICK: less than two minutes for a small model.
    prompts  whose texts are compared.
    seed     of everything that is drawn, from 0 to 2^32 - 1.
    threads  texts of one thread are compared with those of so many; None: as many as the process may use.
    progress  told what is being done, and how many of the checks are done.

    Raises ModelError if the model cannot be had or used, RequestError for an impossible prompt or number.
    """
    start = time.monotonic()
    if not 0 <= seed < 2**32:
        raise RequestError(f"seed={seed} is not possible; allowed: 0 to {2**32 - 1}")
    most = default_threads() if threads is None else checked_threads(threads)
    counts = (1,) if most == 1 else (1, most)
    source = target if isinstance(target, LLM) else hub.resolve(target)
    path = source if isinstance(source, Path) else source.path
    if isinstance(target, LLM) and draft is None:
        draft = target.draft
    ready = partial(load, source if most == 1 else path, 1, draft)
    with Crew(_side_by_side(path, most), ready) as crew:
        [(ids, pair)] = crew.map([partial(_encode, prompts=prompts)])
        text_faults = controls.identity(most)
        # What a control runs with a fault is run without, too.
        text_factors = identity.factors(counts, own_draft=bool(pair.draft))
        texts = _settings(IdentitySetting, extent.combinations(text_factors), text_faults)
        laws = _settings(LawSetting, extent.combinations(law.factors()), controls.LAW)
        draw_laws = _settings(DrawsSetting, every(draws.factors(own_draft=bool(pair.draft))), controls.DRAWS)
        level = FAMILY_ALARMS / (len(laws) + len(draw_laws))
        comparison = Identity(ids, seed)
        names = list(identity.SAMPLINGS)
        plain = crew.map([partial(_plain, comparison=comparison, sampling=name) for name in names])
        plain_texts = dict(zip(names, plain, strict=True))
        checks = [
            *_checks("draws", _draws, draw_laws, controls.DRAWS, seed=seed, draws=extent.draws, level=level),
            *_checks("law", _law, laws, controls.LAW, bias=extent.bias, level=level, seed=seed),
            *_checks("identity", _identity, texts, text_faults, comparison=comparison, plain=plain_texts),
        ]
        together = [check for check in checks if check.threads == 1]
        track = _Track(progress, len(checks))
        cells = dict(zip(together, track(together, crew.map([check.task for check in together])), strict=True))
    if alone := [check for check in checks if check.threads > 1]:
        llm = load(source, most, draft)
        cells |= zip(alone, track(alone, (check.task(llm) for check in alone)), strict=True)

    def honest(test: str) -> tuple[Any, ...]:
        return tuple(cells[check] for check in checks if check.test == test and check.fault is None)

    return Certificate(
        model=ModelFile.read(path),
        draft=pair.draft,
        machine=Machine.this(pair.kernels, counts),
        extent=extent.name,
        seed=seed,
        level=level,
        identity=honest("identity"),
        law=honest("law"),
        draws=honest("draws"),
        controls=tuple(
            control(check.fault, test, cells[check])
            for test in ("identity", "draws", "law")
            for check in checks
            if check.test == test and check.fault is not None
        ),
        seconds=time.monotonic() - start,
    )


@dataclass(frozen=True, slots=True, eq=False)
class _Check:
    """One cell of the certificate, and how it is made."""

    test: str
    setting: IdentitySetting | LawSetting | DrawsSetting
    fault: Fault | None
    task: Task[Any]

    @property
    def threads(self) -> int:
        """How many the model needs."""
        return self.setting.threads if isinstance(self.setting, IdentitySetting) else 1


def _checks(
    test: str, run: Callable[..., Any], settings: Iterable[Any], faults: Iterable[tuple[Fault, Any]], **values: Any
) -> Iterator[_Check]:
    """Checks of all settings, and then of those with a fault planted."""
    honest: list[tuple[Fault | None, Any]] = [(None, setting) for setting in settings]
    for fault, setting in [*honest, *faults]:
        yield _Check(test, setting, fault, partial(run, setting=setting, fault=fault, **values))


class _Track:
    """Yields the results of checks as they come, and tells of their progress."""

    DOING: Mapping[str, str] = {
        "identity": "Comparing texts",
        "draws": "Counting the model's draws",
        "law": "Counting all texts of a tiny model",
    }

    def __init__(self, progress: Progress, total: int) -> None:
        self._progress = progress
        self._total = total
        self._done = 0

    def __call__(self, checks: Sequence[_Check], results: Iterator[T]) -> Iterator[T]:
        for check in checks:
            self._progress(self.DOING[check.test], self._done, self._total)
            yield next(results)
            self._done += 1


def _plain(llm: LLM, comparison: Identity, sampling: str) -> tuple[Text, ...]:
    return comparison.plain(llm, sampling)


def _identity(
    llm: LLM, setting: IdentitySetting, fault: Fault | None, comparison: Identity, plain: Mapping[str, tuple[Text, ...]]
) -> IdentityCell:
    return comparison.check(llm, plain[setting.sampling], setting, fault)


def _draws(llm: LLM, setting: DrawsSetting, fault: Fault | None, seed: int, draws: int, level: float) -> DrawsCell:
    return Draws(llm, seed).check(setting, draws=draws, level=level, fault=fault)


def _law(llm: LLM, setting: LawSetting, fault: Fault | None, bias: float, level: float, seed: int) -> LawCell:
    return law.check(setting, bias=bias, level=level, seed=seed, fault=fault)


def _side_by_side(path: Path, most: int) -> int:
    """How many processes, `most` at most, there is memory for: while a model is loaded it is there twice."""
    room = machine.memory()
    return most if room is None else max(1, min(most, room // (2 * path.stat().st_size + 2**28)))


def _settings(
    kind: Callable[..., T], combinations: Iterable[Combination], faults: Sequence[tuple[Fault, T]]
) -> list[T]:
    """A setting of each combination, and those in which faults are planted, once each."""
    return list(dict.fromkeys([kind(**values) for values in combinations] + [setting for _, setting in faults]))


def load(target: LLM | Path, threads: int, draft: str | Path | None) -> LLM:
    """The target with that number of threads, and with what drafts for it."""
    if not isinstance(target, LLM):
        return LLM(target, draft=draft, costs=FREE, threads=threads)
    drafting = target.speculation.length != 0 or drafts.shipped(target.path) == drafts.Draft()
    if drafting and (target.model.threads, target.draft) == (threads, draft):
        return target
    return load(target.path, threads, draft)


@dataclass(frozen=True, slots=True)
class _Pair:
    """What a loaded pair says of itself: the name of its own draft, if it has one, and of its kernels."""

    draft: str
    kernels: str


def _encode(llm: LLM, prompts: Sequence[Prompt]) -> tuple[tuple[tuple[int, ...], ...], _Pair]:
    """Token ids of the prompts, and what the pair says. Raises RequestError for prompts that are not possible."""
    if not prompts:
        raise RequestError("prompts: there are none; expected at least one")
    encoded = []
    for number, prompt in enumerate(prompts, start=1):
        ids = llm.encode(prompt)
        most = llm.context_length - identity.MAX_TOKENS
        if not 1 <= len(ids) <= most:
            raise RequestError(f"prompt {number} has {len(ids)} tokens; expected 1 to {most}")
        encoded.append(tuple(ids))
    return tuple(encoded), _Pair("" if llm.own_draft is None else llm.draft or llm.own_draft.name, llm.model.kernels)
