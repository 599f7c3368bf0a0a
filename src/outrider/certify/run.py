"""Runs all checks of a certificate, on a user's own target."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Protocol, TypeVar

from outrider.certify import controls, draws, identity, law
from outrider.certify.certificate import Certificate, Machine, ModelFile
from outrider.certify.controls import control
from outrider.certify.covering import Combination, Factors, every, pairwise
from outrider.certify.draws import Draws, DrawsSetting
from outrider.certify.identity import Identity, IdentityCell, IdentitySetting
from outrider.certify.law import LawSetting
from outrider.certify.rig import Fault
from outrider.certify.statistics import FAMILY_ALARMS
from outrider.errors import RequestError
from outrider.kernels.threads import checked_threads, default_threads
from outrider.llm import DEFAULT_MODEL, LLM, Prompt

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


FULL = Extent("full", every, bias=0.03, draws=20_000)
QUICK = Extent("quick", pairwise, bias=0.08, draws=1_500)


def certify(
    target: LLM | str | Path = DEFAULT_MODEL,
    *,
    extent: Extent = FULL,
    prompts: Sequence[Prompt] = identity.PROMPTS,
    seed: int = 0,
    threads: int | None = None,
    progress: Progress = lambda doing, done, total: None,
) -> Certificate:
    """Check that speculative decoding on this machine gives the target's own text, or the law of it.

    target   a model that is loaded already, or what `LLM` takes for one.
    extent   FULL, or QUICK: two to three minutes for a small model.
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
    text_faults = controls.identity(most)
    # What a control runs with a fault is run without, too.
    texts = _settings(IdentitySetting, extent.combinations(identity.factors(counts)), text_faults)
    laws = _settings(LawSetting, extent.combinations(law.factors()), controls.LAW)
    draw_laws = _settings(DrawsSetting, every(draws.factors()), controls.DRAWS)
    level = FAMILY_ALARMS / (len(laws) + len(draw_laws))
    faults = len(text_faults) + len(controls.LAW) + len(controls.DRAWS)
    track = _Track(progress, len(texts) + len(laws) + len(draw_laws) + faults)

    llm = _load(target, 1)
    comparison = Identity(llm, _encode(llm, prompts), seed)
    compared: list[IdentityCell] = []
    for count in counts:
        if llm.model.threads != count:
            del llm  # there may not be room for two
            llm = _load(target, count)
        mine = [setting for setting in texts if setting.threads == count]
        compared += [comparison.check(llm, setting) for setting in track("Comparing texts", mine)]
    planted = [
        control(fault, "identity", comparison.check(llm, setting, fault))
        for fault, setting in track("Planting faults in texts", text_faults)
    ]
    drawing = Draws(llm, seed)
    check_draws = partial(drawing.check, draws=extent.draws, level=level)
    drawn = [check_draws(setting) for setting in track("Counting the model's draws", draw_laws)]
    planted += [
        control(fault, "draws", check_draws(setting, fault=fault))
        for fault, setting in track("Planting faults in draws", controls.DRAWS)
    ]
    check_law = partial(law.check, bias=extent.bias, level=level, seed=seed)
    counted = [check_law(setting) for setting in track("Counting all texts of a tiny model", laws)]
    planted += [
        control(fault, "law", check_law(setting, fault=fault))
        for fault, setting in track("Planting faults in the tiny model", controls.LAW)
    ]
    return Certificate(
        model=ModelFile.read(llm.path),
        machine=Machine.this(llm.model.kernels, counts),
        extent=extent.name,
        seed=seed,
        level=level,
        identity=tuple(compared),
        law=tuple(counted),
        draws=tuple(drawn),
        controls=tuple(planted),
        seconds=time.monotonic() - start,
    )


class _Track:
    """Iterates over checks and tells of their progress."""

    def __init__(self, progress: Progress, total: int) -> None:
        self._progress = progress
        self._total = total
        self._done = 0

    def __call__(self, doing: str, checks: Sequence[T]) -> Iterator[T]:
        for check in checks:
            self._progress(doing, self._done, self._total)
            yield check
            self._done += 1


def _settings(
    kind: Callable[..., T], combinations: Iterable[Combination], faults: Sequence[tuple[Fault, T]]
) -> list[T]:
    """A setting of each combination, and those in which faults are planted, once each."""
    return list(dict.fromkeys([kind(**values) for values in combinations] + [setting for _, setting in faults]))


def _load(target: LLM | str | Path, threads: int) -> LLM:
    """The target with that number of threads."""
    if not isinstance(target, LLM):
        return LLM(target, speculation="off", threads=threads)
    if target.model.threads == threads:
        return target
    return LLM(target.path, speculation="off", threads=threads)


def _encode(llm: LLM, prompts: Sequence[Prompt]) -> list[list[int]]:
    """Token ids of the prompts. Raises RequestError if there are none, or one is impossible."""
    if not prompts:
        raise RequestError("prompts: there are none; expected at least one")
    encoded = []
    for number, prompt in enumerate(prompts, start=1):
        ids = llm.encode(prompt)
        most = llm.context_length - identity.MAX_TOKENS
        if not 1 <= len(ids) <= most:
            raise RequestError(f"prompt {number} has {len(ids)} tokens; expected 1 to {most}")
        encoded.append(ids)
    return encoded
