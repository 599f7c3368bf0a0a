"""A plan as one HTML page that needs nothing else: no script, no font, no network."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape

from outrider.plan.report import facts, ways
from outrider.plan.run import Plan

_STYLE = """
:root { color-scheme: light dark; --ink: #0969da; --dim: #667; --line: #8884; }
@media (prefers-color-scheme: dark) { :root { --ink: #58a6ff; --dim: #99a; } }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 52rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.15rem; margin: 2rem 0 .5rem; }
p.reason { font-weight: 600; border-left: .3rem solid var(--ink); padding: .4rem .8rem; }
p.about, th { color: var(--dim); font-weight: normal; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { text-align: left; padding: .2rem 1.2rem .2rem 0; border-bottom: 1px solid var(--line); }
svg { width: 100%; max-width: 40rem; height: auto; } svg text { font-size: 12px; fill: currentColor; }
svg polyline { fill: none; stroke: var(--ink); stroke-width: 2; } svg circle { fill: var(--ink); }
svg line { stroke: var(--line); }
"""


def as_html(plan: Plan) -> str:
    """The page: the sentence, what was measured, and a chart of every curve."""
    title = f"Speculation with {plan.model}"
    rows = range(1, plan.costs.rows[-1] + 1)
    body = [
        f"<h1>{escape(title)}</h1>",
        f'<p class="reason">{escape(plan.reason)}</p>',
        f'<p class="about">{escape(facts(plan))}</p>',
        "<h2>Measured</h2>",
        *_measured(plan),
        "<h2>v(n): what a pass of n rows costs</h2>",
        f'<p class="about">In passes of one row, at {plan.context} tokens of context.</p>',
        *chart(rows, [plan.costs.v(n, plan.context) for n in rows], "rows"),
    ]
    for forecast in plan.forecasts:
        steps = forecast.steps
        about = f"c = {forecast.c:.2f} plain steps a token; it drafts in {steps.spoke:.0%} of the steps."
        body += [
            f"<h2>{escape(forecast.drafter)}</h2>",
            f'<p class="about">{escape(about)} Predicted speed-up by drafted tokens:</p>',
            *chart(range(len(forecast.speed_ups)), forecast.speed_ups, "drafted tokens"),
        ]
        if steps.acceptance:
            body += [
                '<p class="about">Acceptance at each position, of the tokens whose turn came:</p>',
                *chart(range(1, len(steps.acceptance) + 1), steps.acceptance, "position"),
            ]
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n<style>{_STYLE}</style>\n</head>\n<body>\n" + "\n".join(body) + "\n</body>\n"
        "</html>\n"
    )


def _measured(plan: Plan) -> Iterator[str]:
    yield "<table><tr><th></th><th>tokens/s</th><th>tokens per step</th><th>speed-up</th><th>predicted</th></tr>"
    for name, way, predicted in ways(plan):
        cells = (name, f"{way.tokens_per_second:.1f}", f"{way.tokens_per_step:.2f}", f"{way.speed_up:.2f}x",
                 "" if predicted is None else f"{predicted:.2f}x")  # fmt: skip
        yield "<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in cells) + "</tr>"
    yield "</table>"


def chart(xs: Sequence[int], ys: Sequence[float], label: str) -> Iterator[str]:
    """A line chart from zero up, with its figures written at the points."""
    width, height, margin = 640, 200, 30
    top = max(*ys, 1e-9)
    step = (width - 2 * margin) / max(len(xs) - 1, 1)
    points = [(margin + i * step, height - margin - (height - 2 * margin) * y / top) for i, y in enumerate(ys)]
    yield f'<svg viewBox="0 0 {width} {height + 12}" role="img">'
    yield f'<line x1="{margin}" y1="{height - margin}" x2="{width - margin}" y2="{height - margin}"/>'
    yield f'<polyline points="{" ".join(f"{x:.1f},{y:.1f}" for x, y in points)}"/>'
    for (x, y), value, name in zip(points, ys, xs, strict=True):
        yield f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3"/>'
        yield f'<text x="{x:.1f}" y="{y - 8:.1f}" text-anchor="middle">{value:.2f}</text>'
        yield f'<text x="{x:.1f}" y="{height - margin + 16}" text-anchor="middle">{name}</text>'
    yield f'<text x="{width / 2}" y="{height + 6}" text-anchor="middle">{escape(label)}</text></svg>'
