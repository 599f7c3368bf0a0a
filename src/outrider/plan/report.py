"""A plan for people, as text with small plots; and with every figure, for programs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict

from outrider.plan.bench import Way
from outrider.plan.forecast import Forecast
from outrider.plan.run import Plan

SCHEMA = 1
"""Grows when a field of the JSON goes, or changes its meaning."""

WIDTH = 40
"""Letters of the longest bar."""


def as_text(plan: Plan) -> str:
    """The plan for a terminal."""
    return "\n".join(_lines(plan))


def as_json(plan: Plan) -> dict[str, object]:
    """Every figure. seconds of costs: [contexts][rows]; outcomes: [drafted, accepted, steps]."""
    fields = asdict(plan)
    for forecast, found in zip(plan.forecasts, fields["forecasts"], strict=True):
        steps = forecast.steps
        found["steps"] = {
            "most": steps.most,
            "outcomes": [[*outcome, count] for outcome, count in sorted(steps.outcomes.items())],
            "spoke": steps.spoke,
            "alpha": steps.alpha,
            "acceptance": steps.acceptance,
        }
        found |= {"best": forecast.best, "reason": forecast.reason(plan.costs)}
    rows = range(1, plan.costs.rows[-1] + 1)
    return {
        "schema": SCHEMA,
        **fields,
        "v": {n: plan.costs.v(n, plan.context) for n in rows},
        "reason": plan.reason,
        "prediction_error": prediction_error(plan),
    }


def prediction_error(plan: Plan) -> float | None:
    """By how much the measured speed-up of the best fixed length exceeds the predicted one, as a share of it."""
    fixed = plan.fixed
    return None if fixed is None or fixed.predicted is None else fixed.speed_up / fixed.predicted - 1


def ways(plan: Plan) -> list[tuple[str, Way, float | None]]:
    """What was measured: a name, the figures, and the speed-up that was predicted."""
    found: list[tuple[str, Way, float | None]] = [("plain", plan.plain, 1.0)]
    if plan.fixed is not None:
        drafter, _, length = plan.fixed.speculation.partition(":")
        found.append((f"{drafter}, {_tokens(int(length))}", plan.fixed, plan.fixed.predicted))
    return [*found, ("auto", plan.auto, None)]


def facts(plan: Plan) -> str:
    """Where and with what the figures were made."""
    used, given = plan.prompts
    some = f"{used}" if used == given else f"{used} of {given}"
    return (
        f"{plan.model} on {plan.processor}, {plan.threads} thread{'s' if plan.threads != 1 else ''}, {plan.kernels}; "
        f"{some} prompts, {plan.tokens} tokens"
    )


def _lines(plan: Plan) -> Iterator[str]:
    yield facts(plan)
    yield ""
    yield f"v(n): what a pass of n rows costs, in passes of one row, at {plan.context} tokens of context"
    rows = range(1, plan.costs.rows[-1] + 1)
    times = [plan.costs.v(n, plan.context) for n in rows]
    for n, v in zip(rows, times, strict=True):
        yield f"  {n:>2}  {v:5.2f}  {bar(v / max(times))}"
    for forecast in plan.forecasts:
        yield ""
        yield from _forecast(forecast, plan)
    yield ""
    yield "measured               tokens/s  tokens/step  speed-up  predicted"
    for name, way, predicted in ways(plan):
        expected = f"{predicted:8.2f}x" if predicted is not None else ""
        line = (
            f"  {name:<20} {way.tokens_per_second:8.1f}  {way.tokens_per_step:11.2f}  {way.speed_up:7.2f}x  {expected}"
        )
        yield line.rstrip()
    yield ""
    yield plan.reason


def _forecast(forecast: Forecast, plan: Plan) -> Iterator[str]:
    steps = forecast.steps
    price = f"c = {forecast.c:.2f} plain steps a token" if forecast.c else "c = 0, a lookup"
    yield f"{forecast.drafter}: {price}; it drafts in {steps.spoke:.0%} of the steps"
    beside = forecast.beside
    yield (
        f"  beside passes a step takes {beside.plain * 1e6:.0f} µs if plain, {beside.drafted * 1e6:.0f} if it drafts, "
        f"{beside.silent * 1e6:.0f} if it has nothing to say"
    )
    yield "   k  accepted there  predicted speed-up"
    longest = max(forecast.speed_ups)
    for k, speed_up in enumerate(forecast.speed_ups):
        rate = f"{steps.acceptance[k - 1]:.0%}" if 0 < k <= len(steps.acceptance) else ""
        mark = "  best" if k == forecast.best else ""
        yield f"  {k:>2}  {rate:>14}  {speed_up:5.2f}  {bar(speed_up / longest)}{mark}"


def bar(share: float) -> str:
    """A bar of eighths of a letter."""
    eighths = round(max(share, 0) * WIDTH * 8)
    return "█" * (eighths // 8) + " ▏▎▍▌▋▊▉"[eighths % 8].strip()


def _tokens(count: int) -> str:
    return f"{count} token{'s' if count != 1 else ''}"
