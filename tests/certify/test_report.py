"""A certificate in words, as JSON, and as a page."""

from __future__ import annotations

import json
from dataclasses import replace
from html.parser import HTMLParser
from io import StringIO

import pytest
from rich.console import Console

from outrider.certify import report
from outrider.certify.html import as_html


@pytest.fixture(scope="session")
def failed(certificate):
    """The same certificate, with one failure of each kind."""
    identity, law, draws, control = (getattr(certificate, part)[0] for part in ("identity", "law", "draws", "controls"))
    return replace(
        certificate,
        identity=(replace(identity, difference="prompt 'x': token 3 is 'a', plain 'b'"), *certificate.identity[1:]),
        law=(replace(law, fit=replace(law.fit, p_value=1e-30)), *certificate.law[1:]),
        draws=(replace(draws, fit=None, fault="<b>ValueError</b>"), *certificate.draws[1:]),
        controls=(replace(control, caught=False, evidence="identical: 8 texts"), *certificate.controls[1:]),
    )


def in_terminal(certificate):
    console = Console(width=120, record=True, file=StringIO())
    console.print(report.as_tables(certificate))
    return console.export_text()


def test_tables_say_what_was_compared(certificate):
    text = in_terminal(certificate)
    tokens = sum(cell.tokens for cell in certificate.identity if cell.setting.drafter == "perfect")
    texts = sum(cell.texts for cell in certificate.identity if cell.setting.drafter == "perfect")
    assert f"{tokens:,}" in text
    assert f"identical: {texts} texts" in text
    assert certificate.model.sha256 in text.replace("\n", "").replace(" ", "")
    assert "seed 1" in text
    assert "Speculative decoding is exact here" in text
    assert "UNNOTICED" not in text
    assert "DIFFERENT" not in text


def test_tables_say_what_failed(failed):
    text = in_terminal(failed)
    assert "DIFFERENT in 1 of" in text
    assert "BIASED in 1 of" in text
    assert "UNNOTICED" in text
    assert "does NOT hold" in text
    assert report.conclusion(failed).count(";") == 2


def test_json_has_every_figure(certificate, failed):
    for each in (certificate, failed):
        data = json.loads(json.dumps(report.as_json(each)))
        assert data["schema"] == 1
        assert data["holds"] is each.holds
        assert [cell["holds"] for cell in data["identity"]] == [cell.holds for cell in each.identity]
        assert len(data["controls"]) == len(each.controls)
        assert data["law"][1]["fit"]["p_value"] == each.law[1].fit.p_value
        assert data["identity"][0]["setting"]["k"] == each.identity[0].setting.k
    assert data["draws"][0]["fit"] is None


def test_the_schema_is_stable(certificate):
    """A field that goes or changes its name needs another SCHEMA."""
    data = report.as_json(certificate)
    assert set(data) == {
        "schema", "holds", "model", "draft", "machine", "extent", "seed", "level", "identity", "law", "draws", "controls", "seconds",
    }  # fmt: skip
    fit = {"draws", "bins", "statistic", "p_value", "level", "smallest_bias", "impossible"}
    assert set(data["law"][0]) == {"setting", "fit", "accepted", "fault", "holds"}
    assert set(data["law"][0]["fit"]) == fit
    assert set(data["law"][0]["setting"]) == {"rule", "drafter", "sampling", "policy"}
    assert set(data["draws"][0]) == {"setting", "fit", "drafted", "accepted", "fault", "holds"}
    assert set(data["identity"][0]) == {
        "setting", "texts", "tokens", "steps", "asked", "answered", "drafted", "accepted", "preemptions", "cached",
        "difference", "fault", "holds",
    }  # fmt: skip
    assert set(data["identity"][0]["setting"]) == {"drafter", "k", "shape", "batch", "threads", "memory", "sampling"}
    assert set(data["controls"][0]) == {"fault", "planted", "test", "setting", "caught", "evidence"}
    assert set(data["model"]) == {"name", "bytes", "sha256"}


class Page(HTMLParser):
    """Checks that tags close, and notes what a page asks for from elsewhere."""

    def __init__(self):
        super().__init__()
        self.open, self.links, self.tags = [], [], set()

    def handle_starttag(self, tag, attrs):
        self.tags.add(tag)
        self.links += [value for name, value in attrs if name in ("src", "href")]
        if tag != "meta":
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


@pytest.mark.parametrize("which", ["certificate", "failed"])
def test_the_page_is_whole_and_needs_nothing_else(which, request):
    text = as_html(request.getfixturevalue(which))
    page = Page()
    page.feed(text)
    assert page.open == []
    assert page.links == []
    assert not page.tags & {"script", "link", "img", "iframe", "b"}
    assert "url(" not in text
    assert "@import" not in text
    assert "prefers-color-scheme: dark" in text


def test_the_page_has_every_setting(certificate, failed):
    text = as_html(certificate)
    assert report.conclusion(certificate) in text
    assert text.count("<tr>") > len(certificate.identity) + len(certificate.law) + len(certificate.draws)
    assert "&lt;b&gt;ValueError" in as_html(failed)
