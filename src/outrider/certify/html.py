"""A certificate as one HTML page that needs nothing else: no script, no font, no network."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from html import escape

from outrider.certify.certificate import Certificate
from outrider.certify.report import conclusion, facts, fine_print, sections

_STYLE = """
:root { color-scheme: light dark; --good: #1a7f37; --bad: #c62828; --dim: #667; --line: #8883; }
@media (prefers-color-scheme: dark) { :root { --good: #4ac26b; --bad: #ff7b72; --dim: #99a; } }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 62rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.15rem; margin: 2rem 0 0; }
p.about, p.fine, dt, th { color: var(--dim); } p.about { margin: 0 0 .5rem; }
p.conclusion { font-weight: 600; border-left: .3rem solid; padding: .4rem .8rem; }
.good { color: var(--good); } .bad { color: var(--bad); font-weight: 600; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: 0 1rem; } dd { margin: 0; overflow-wrap: anywhere; }
.wide { overflow-x: auto; } table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { text-align: left; padding: .2rem 1.2rem .2rem 0; border-bottom: 1px solid var(--line); vertical-align: top; }
th { font-weight: normal; }
summary { cursor: pointer; color: var(--dim); } details { margin: .5rem 0; font-size: .85rem; }
"""


def as_html(certificate: Certificate) -> str:
    """The page: the tables of the terminal, and below each all its settings with all their figures."""
    title = f"Exactness of {certificate.model.name}"
    details = [
        [asdict(cell) for cell in certificate.identity],
        [asdict(cell) for cell in certificate.law],
        [asdict(cell) for cell in certificate.draws],
        [asdict(control) for control in certificate.controls],
    ]
    body = [
        f"<h1>{escape(title)}</h1>",
        f'<p class="conclusion {_mark(certificate.holds)}">{escape(conclusion(certificate))}</p>',
        "<dl>",
        *(f"<dt>{escape(name)}</dt><dd>{escape(value)}</dd>" for name, value in facts(certificate).items()),
        "</dl>",
    ]
    for section, cells in zip(sections(certificate), details, strict=True):
        body += [
            f"<h2>{escape(section.title)}</h2>",
            f'<p class="about">{escape(section.about)}</p>',
            *_table((*section.columns, "verdict"), [(*row.cells, row.verdict) for row in section.rows],
                    [row.good for row in section.rows]),
            f"<details><summary>All {len(cells)} settings</summary>",
            *_details(cells),
            "</details>",
        ]  # fmt: skip
    body.append(f'<p class="fine">{escape(fine_print(certificate))}</p>')
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n<style>{_STYLE}</style>\n</head>\n<body>\n" + "\n".join(body) + "\n</body>\n"
        "</html>\n"
    )


def _table(columns: Sequence[str], rows: Sequence[Sequence[str]], good: Sequence[bool] | None = None) -> Iterator[str]:
    """A table; with `good`, the last cell of each row is coloured."""
    yield '<div class="wide"><table>'
    yield "<tr>" + "".join(f"<th>{escape(column)}</th>" for column in columns) + "</tr>"
    for number, row in enumerate(rows):
        *cells, last = (escape(cell) for cell in row)
        mark = f' class="{_mark(good[number])}"' if good else ""
        yield "<tr>" + "".join(f"<td>{cell}</td>" for cell in cells) + f"<td{mark}>{last}</td></tr>"
    yield "</table></div>"


def _details(cells: Sequence[dict[str, object]]) -> Iterator[str]:
    """Every field of the cells, nested ones as columns of their own; those that are empty everywhere are left out."""
    flat = [dict(_flat(cell)) for cell in cells]
    columns = [name for name in dict.fromkeys(name for cell in flat for name in cell) if any(c.get(name) for c in flat)]
    yield from _table([name.replace("_", " ") for name in columns], [[c.get(n, "") for n in columns] for c in flat])


def _flat(cell: dict[str, object]) -> Iterator[tuple[str, str]]:
    for name, value in cell.items():
        if isinstance(value, dict):
            yield from _flat(value)
        elif value is not None:
            yield name, f"{value:.4g}" if isinstance(value, float) else str(value)


def _mark(good: bool) -> str:
    return "good" if good else "bad"
