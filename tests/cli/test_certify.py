"""`outrider certify`: arguments, what it prints, and its exit code."""

from __future__ import annotations

import json
import signal
from dataclasses import replace
from errno import ENOSPC

import pytest
from typer.testing import CliRunner

import outrider.certify
from outrider.certify import FULL, PROMPTS, QUICK
from outrider.certify.certificate import Certificate, Machine, ModelFile
from outrider.certify.controls import control
from outrider.certify.draws import DrawsCell, DrawsSetting
from outrider.certify.faults import shared_number
from outrider.certify.identity import IdentityCell, IdentitySetting
from outrider.certify.law import LawCell, LawSetting
from outrider.certify.rig import Rig
from outrider.certify.statistics import fit
from outrider.cli import app

FIT = fit({0: 50, 1: 50}, {0: 0.5, 1: 0.5}, 1e-8)
SETTING = LawSetting("rejection", "drawn", "top-k 2")
CERTIFICATE = Certificate(
    model=ModelFile("tiny.gguf", 1000, "0123abcd"),
    machine=Machine("Linux", "a processor", 2, "plain", (1, 2), "0.1", "3.11", "2.0"),
    draft="",
    extent="quick",
    seed=0,
    level=1e-8,
    identity=(
        IdentityCell(
            IdentitySetting("ngram", 3, "chain", 8, 2, "chunked", "greedy"), 8, 256, 90, 90, 80, 99, 66, 0, 0, ""
        ),
    ),
    law=(LawCell(SETTING, FIT, 70),),
    draws=(DrawsCell(DrawsSetting("block", "drawn"), FIT, 90, 40),),
    controls=(control(shared_number, "law", LawCell(SETTING, replace(FIT, p_value=1e-30), 70)),),
    seconds=3.0,
)


@pytest.fixture
def asked(monkeypatch):
    """Makes certificates of nothing; returns what they were asked for. asked["certificate"] may be changed."""
    calls = {"certificate": CERTIFICATE}

    def certify(target, **arguments):
        calls.update(arguments, target=target)
        arguments["progress"]("Comparing texts", 1, 10)
        return calls["certificate"]

    monkeypatch.setattr(outrider.certify, "certify", certify)
    return calls


def run(model, *args):
    return CliRunner().invoke(app, ["certify", model, *map(str, args)])


def test_a_certificate_that_holds_is_exit_code_0(model, asked):
    result = run(model)
    assert result.exit_code == 0
    assert "identical: 8 texts" in result.stdout
    assert "Speculative decoding is exact here" in result.stdout
    assert result.stderr == ""  # no bar without a terminal
    assert str(asked["target"]) == model
    assert (asked["extent"], asked["seed"], asked["threads"], asked["prompts"]) == (FULL, 0, None, PROMPTS)


def test_one_that_does_not_is_exit_code_1(model, asked):
    asked["certificate"] = replace(CERTIFICATE, controls=(replace(CERTIFICATE.controls[0], caught=False),))
    result = run(model)
    assert result.exit_code == 1
    assert "does NOT hold" in result.stdout


def test_options_reach_the_library(model, asked, tmp_path):
    (tmp_path / "mine.txt").write_text("Hello\nGood morning\n")
    run(model, "--quick", "--seed", 9, "--threads", 3, "--prompts", tmp_path / "mine.txt", "--draft", "small.gguf")
    assert (asked["extent"], asked["seed"], asked["threads"], asked["draft"]) == (QUICK, 9, 3, "small.gguf")
    assert asked["prompts"] == [[{"role": "user", "content": text}] for text in ("Hello", "Good morning")]


def test_json_and_html(model, asked, tmp_path):
    result = run(model, "--json", "--html", tmp_path / "page.html")
    assert json.loads(result.stdout)["holds"] is True
    assert "tiny.gguf" in (tmp_path / "page.html").read_text("utf-8")


@pytest.mark.parametrize(
    ("place", "reason"),
    [
        ("absent/page.html", "No such file or directory"),
        ("folder", "Is a directory"),
        ("page.html/page.html", "Not a directory"),
    ],
)
def test_a_page_that_could_not_be_written_is_refused_before_any_work(model, asked, tmp_path, place, reason):
    (tmp_path / "folder").mkdir()
    (tmp_path / "page.html").touch()
    result = run(model, "--html", tmp_path / place)
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr == f"error: {tmp_path / place}: {reason}\n"
    assert "target" not in asked


def test_until_there_is_a_page_the_file_stays_as_it_is(model, tmp_path):
    (tmp_path / "old.html").write_text("old")
    for name in ("old.html", "new.html"):
        assert run(model, "--html", tmp_path / name, "--seed", -1).exit_code == 1
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [("old.html", "old")]


@pytest.mark.parametrize("form", [[], ["--json"]])
def test_the_report_is_out_even_if_the_page_fails_after_all(model, asked, tmp_path, monkeypatch, form):
    def fill(path, *arguments, **options):
        raise OSError(ENOSPC, "No space left on device", str(path))

    monkeypatch.setattr("pathlib.Path.write_text", fill)
    result = run(model, "--html", tmp_path / "page.html", *form)
    assert result.exit_code == 1
    assert "tiny.gguf" in result.stdout
    assert result.stderr == f"error: {tmp_path / 'page.html'}: No space left on device\n"


@pytest.mark.parametrize(
    "args", [["/nowhere/model.gguf"], ["{model}", "--prompts", "/nowhere.txt"], ["{model}", "--seed", "-1"]]
)
def test_errors_are_one_line(model, args):
    result = CliRunner().invoke(app, ["certify", *(arg.format(model=model) for arg in args)])
    assert result.exit_code == 1
    assert result.stdout == ""
    assert result.stderr.startswith("error: ")
    assert result.stderr.count("\n") == 1


def test_ctrl_c_ends_it_at_once(model, monkeypatch):
    """Also in the midst of a check, where other exceptions are a verdict."""
    monkeypatch.setattr(Rig, "run", lambda *arguments: signal.raise_signal(signal.SIGINT))
    result = run(model, "--quick")
    assert (result.exit_code, result.stdout, result.stderr) == (130, "", "")
