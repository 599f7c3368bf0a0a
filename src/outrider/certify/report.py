"""A certificate for people: what was compared, in a few tables, and one sentence that says whether it holds.

`sections` is what terminal and HTML page have in common; `as_json` has every figure, for programs.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, TypeVar

from outrider.certify.certificate import Certificate
from outrider.certify.draws import DrawsCell
from outrider.certify.identity import IdentityCell
from outrider.certify.law import LawCell
from outrider.certify.statistics import POWER

if TYPE_CHECKING:
    from rich.console import RenderableType

SCHEMA = 1
"""Grows when a field of the JSON goes, or changes its meaning."""

_TITLES = {"identity": "Texts", "law": "Probabilities", "draws": "Draws"}

Cell = TypeVar("Cell", IdentityCell, LawCell, DrawsCell)


@dataclass(frozen=True, slots=True)
class Row:
    """A line of a table: its cells, a verdict, and whether that is the right one."""

    cells: tuple[str, ...]
    verdict: str
    good: bool


@dataclass(frozen=True, slots=True)
class Section:
    """A table, its title and what it is about. columns: of the rows' cells; words first, then figures."""

    title: str
    about: str
    columns: tuple[str, ...]
    rows: tuple[Row, ...]


def sections(certificate: Certificate) -> tuple[Section, ...]:
    """The certificate as tables."""
    return (
        Section(
            _TITLES["identity"],
            f"This model's texts against plain decoding, token by token: greedy and seeded, chains and trees of 1 to 8 "
            f"drafts, 1 and 8 texts at a time, {_threads(certificate)}, prompts in one piece, in several and known "
            f"from before, memory plentiful and scarce.",
            ("drafter", "settings", "tokens", "accepted"),
            tuple(_texts(certificate.identity)),
        ),
        Section(
            _TITLES["law"],
            "All texts of a vocabulary of three, counted through the engine, against their exact probabilities: for "
            "each acceptance rule, kind of drafter and sampling rule. A bias is a total variation distance.",
            ("acceptance", "settings", "texts", "smallest bias seen"),
            tuple(_probabilities(certificate.law)),
        ),
        Section(
            _TITLES["draws"],
            "Tokens that this model drew while speculating, against the probabilities that it gives them.",
            ("acceptance", "drafter", "texts", "smallest bias seen"),
            tuple(_draws(certificate.draws)),
        ),
        Section(
            "Planted faults",
            "The same tests with a fault in the engine: a test that does not see it proves nothing.",
            ("test", "fault"),
            tuple(
                Row(
                    (_TITLES[control.test].lower(), control.planted),
                    "caught" if control.caught else f"UNNOTICED: {control.evidence}",
                    control.caught,
                )
                for control in certificate.controls
            ),
        ),
    )


def facts(certificate: Certificate) -> dict[str, str]:
    """Where and how the certificate came about."""
    model, machine = certificate.model, certificate.machine
    return {
        "model": f"{model.name}, {model.bytes:,} bytes, sha256 {model.sha256}",
        "draft": certificate.draft or "none but those that need no weights",
        "machine": f"{machine.processor}, {machine.processors} processors, {machine.system}",
        "kernels": f"{machine.kernels}, {_threads(certificate)}",
        "versions": f"outrider {machine.outrider}, Python {machine.python}, NumPy {machine.numpy}",
        "extent": f"{certificate.extent}, seed {certificate.seed}, {certificate.seconds:.0f} seconds",
    }


def conclusion(certificate: Certificate) -> str:
    """The certificate in a sentence or two."""
    failed = []
    if not all(cell.holds for cell in certificate.identity):
        failed.append("texts differ from plain decoding")
    if not (all(cell.holds for cell in certificate.law) and all(cell.holds for cell in certificate.draws)):
        failed.append("draws do not have the model's probabilities")
    if not all(control.caught for control in certificate.controls):
        failed.append("a planted fault went unnoticed, so the tests prove nothing")
    if failed:
        return f"This does NOT hold: {'; '.join(failed)}."
    texts = sum(cell.texts for cell in certificate.identity)
    return (
        f"Speculative decoding is exact here: {texts:,} texts identical, no bias in "
        f"{len(certificate.law) + len(certificate.draws)} tests, all {len(certificate.controls)} planted faults caught."
    )


def fine_print(certificate: Certificate) -> str:
    """What the figures mean."""
    return (
        f"Each test reports a bias where p < {certificate.level:.2g}, so that one exact engine in a million is accused "
        f'by any of them; the "smallest bias seen" is reported with a probability of {POWER:.0%}.'
    )


def as_json(certificate: Certificate) -> dict[str, object]:
    """The certificate as an object of JSON: the fields of `Certificate` and of the classes in it, under their names.

    Beside them: "schema" (SCHEMA) and "holds" at the top, and "holds" in each cell of identity, law and draws. A fit is
    null where nothing could be counted, and "fault" then says why. Times are in seconds, biases are fractions of 1.
    """
    fields = asdict(certificate)
    for name in ("identity", "law", "draws"):
        for values, cell in zip(fields[name], getattr(certificate, name), strict=True):
            values["holds"] = cell.holds
    return {"schema": SCHEMA, "holds": certificate.holds, **fields}


def as_tables(certificate: Certificate) -> RenderableType:
    """The certificate for a terminal."""
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    parts: list[RenderableType] = []
    heading = Table.grid(padding=(0, 2))
    for name, value in facts(certificate).items():
        heading.add_row(Text(name, "dim"), Text(value, overflow="fold"))
    parts.append(heading)
    for section in sections(certificate):
        table = Table(box=None, pad_edge=False, padding=(0, 3, 0, 0), show_header=True, header_style="dim")
        words = sum(not _figure(cell) for cell in section.rows[0].cells)
        for number, column in enumerate(section.columns):
            table.add_column(column, justify="left" if number < words else "right")
        table.add_column("verdict")
        for row in section.rows:
            table.add_row(*map(Text, row.cells), Text(row.verdict, "green" if row.good else "bold red"))
        parts += [Text(), Text(section.title, "bold"), Text(section.about, "dim"), table]
    style = "bold green" if certificate.holds else "bold red"
    parts += [Text(), Text(conclusion(certificate), style), Text(fine_print(certificate), "dim")]
    return Group(*parts)


def _texts(cells: Iterable[IdentityCell]) -> Iterator[Row]:
    for drafter, group in _grouped(cells, "drafter").items():
        drafted, accepted = sum(cell.drafted for cell in group), sum(cell.accepted for cell in group)
        yield Row(
            (
                drafter,
                f"{len(group)}",
                f"{sum(cell.tokens for cell in group):,}",
                f"{accepted:,} of {drafted:,}",
            ),
            _verdict(group, f"identical: {sum(cell.texts for cell in group):,} texts", "DIFFERENT"),
            all(cell.holds for cell in group),
        )


def _probabilities(cells: Iterable[LawCell]) -> Iterator[Row]:
    for rule, group in _grouped(cells, "rule").items():
        holds = all(cell.holds for cell in group)
        yield Row((rule, f"{len(group)}", *_counted(group)), _verdict(group, "no bias", "BIASED"), holds)


def _draws(cells: Iterable[DrawsCell]) -> Iterator[Row]:
    for cell in cells:
        names = (cell.setting.rule, cell.setting.drafter)
        yield Row((*names, *_counted([cell])), _verdict([cell], "no bias", "BIASED"), cell.holds)


def _grouped(cells: Iterable[Cell], field: str) -> dict[str, list[Cell]]:
    groups: dict[str, list[Cell]] = defaultdict(list)
    for cell in cells:
        groups[getattr(cell.setting, field)].append(cell)
    return groups


def _counted(cells: Sequence[LawCell] | Sequence[DrawsCell]) -> tuple[str, str]:
    """How many texts were counted, and the smallest bias that each of the tests would have seen."""
    fits = [cell.fit for cell in cells if cell.fit]
    bias = max((fit.smallest_bias for fit in fits), default=1)
    return f"{sum(fit.draws for fit in fits):,}", f"{bias:.1%}"


def _verdict(cells: Sequence[Cell], good: str, bad: str) -> str:
    wrong = [cell for cell in cells if not cell.holds]
    if not wrong:
        return good
    setting = ", ".join(f"{name} {value}" for name, value in asdict(wrong[0].setting).items())
    return f"{bad} in {len(wrong)} of {len(cells)} settings ({setting}): {wrong[0].evidence}"


def _figure(cell: str) -> bool:
    return cell[0].isdigit()


def _threads(certificate: Certificate) -> str:
    threads = certificate.machine.threads
    return f"{' and '.join(map(str, threads))} thread{'s' if threads[-1] > 1 else ''}"
