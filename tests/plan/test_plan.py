"""A plan on a tiny model: all its figures are there, in every form, and they belong together."""

from __future__ import annotations

import json
from html.parser import HTMLParser
from pathlib import Path

import pytest
from typer.testing import CliRunner

from outrider.cli import app
from outrider.errors import RequestError
from outrider.llm import LLM
from outrider.plan import Plan, plan, report
from outrider.plan.html import as_html
from outrider.policy.costs import FREE
from outrider.sampling import SamplingParams
from tests.tiny import tiny_llama

PARAMS = SamplingParams(max_tokens=40, ignore_eos=True)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_llama(tmp_path_factory.mktemp("plan") / "tiny.gguf", seed=1)


@pytest.fixture(scope="module")
def told() -> list[tuple[str, int, int]]:
    return []


@pytest.fixture(scope="module")
def found(path: Path, told: list[tuple[str, int, int]]) -> Plan:
    llm = LLM(path, threads=1, costs=FREE)
    prompts = ["the thin thing the thin", "Hello"]
    return plan(llm, prompts, PARAMS, costs=FREE, progress=lambda *news: told.append(news))


def test_every_drafter_that_speaks_of_itself_has_a_forecast(found: Plan) -> None:
    names = {forecast.drafter for forecast in found.forecasts}
    assert names
    assert not names & {"prediction", "grammar"}
    assert all(len(forecast.speed_ups) == 9 for forecast in found.forecasts)
    best = [forecast.speed_up for forecast in found.forecasts]
    assert best == sorted(best, reverse=True)


def test_with_free_rows_the_tokens_per_step_are_what_was_predicted(found: Plan) -> None:
    assert found.fixed is not None
    assert found.fixed.tokens_per_step == pytest.approx(found.forecasts[0].speed_up, rel=0.2)
    assert found.plain.tokens_per_step == 1
    assert found.plain.speed_up == 1


def test_progress_ends_where_it_was_said_to(found: Plan, told: list[tuple[str, int, int]]) -> None:
    numbers = [done for _, done, _ in told]
    assert numbers == list(range(len(told)))
    assert {total for _, _, total in told} == {len(told)}


def test_the_text_has_plots_figures_and_the_reason(found: Plan) -> None:
    text = report.as_text(found)
    assert found.reason in text.splitlines()[-1]
    assert "█" in text
    assert "auto" in text
    assert max(map(len, text.splitlines()[1:])) <= 110  # the first names the file and the processor, however long


def test_the_json_has_every_figure(found: Plan) -> None:
    data = json.loads(json.dumps(report.as_json(found)))
    assert data["schema"] == report.SCHEMA
    assert data["auto"]["speed_up"] == found.auto.speed_up
    assert data["v"]["2"] == 1
    assert data["forecasts"][0]["speed_ups"][0] == 1
    steps = found.forecasts[0].steps
    assert sum(count for _, _, count in data["forecasts"][0]["steps"]["outcomes"]) == steps.count


class Page(HTMLParser):
    """Checks that tags close, and notes what a page asks for from elsewhere."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.links: list[str | None] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.links += [value for name, value in attrs if name in ("src", "href")]
        if tag != "meta":
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        pass

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_the_page_is_whole_and_needs_nothing_else(found: Plan) -> None:
    page, html = Page(), as_html(found)
    page.feed(html)
    assert (page.open, page.links) == ([], [])
    assert html.count("<svg") >= 2


def test_no_prompts_are_refused(path: Path) -> None:
    with pytest.raises(RequestError, match="prompts: there are none"):
        plan(LLM(path, threads=1, costs=FREE), [])


def test_of_many_prompts_some_are_used_and_that_is_said(path: Path) -> None:
    many = plan(LLM(path, threads=1, costs=FREE), ["Hi"] * 30, SamplingParams(max_tokens=2), costs=FREE)
    assert many.prompts == (24, 30)
    assert "24 of 30 prompts" in report.as_text(many)


def test_the_command_prints_either_form_and_writes_the_page(path: Path, tmp_path: Path) -> None:
    args = ["plan", str(path), "-n", "6", "--threads", "1"]
    text = CliRunner().invoke(app, args)
    assert text.exit_code == 0, text.output
    assert "measured" in text.stdout
    page = tmp_path / "plan.html"
    data = CliRunner().invoke(app, [*args, "--json", "--html", str(page)])
    assert json.loads(data.stdout)["threads"] == 1
    assert page.read_text("utf-8").startswith("<!doctype html>")


def test_a_page_that_cannot_be_written_is_said_before_any_work(tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["plan", "no model at all", "--html", str(tmp_path)])
    assert result.exit_code == 1
    assert str(tmp_path) in result.stderr
