"""`outrider generate`: the text as the library has it, figures beside it, and clear errors."""

from __future__ import annotations

import json
import re

import pytest
from typer.testing import CliRunner

from outrider.cli import app, display
from outrider.llm import LLM, completion
from outrider.request import Emitted, Piece
from outrider.sampling import SamplingParams
from outrider.scheduler import Scheduler
from outrider.weights import hub

KEYS = [
    "model",
    "drafter",
    "text",
    "token_ids",
    "finish_reason",
    "prompt_tokens",
    "completion_tokens",
    "time_to_first_token",
    "tokens_per_second",
    "steps",
    "drafted",
    "accepted",
    "tokens_per_step",
    "acceptance_rate",
]
HELLO = [{"role": "user", "content": "Hello"}]
DRAFTING = ("--speculation", "suffix:5")
"""What does not depend on how fast the machine is."""


@pytest.fixture(scope="module")
def expected(model):
    """What the library makes of the same prompt."""
    return LLM(model, speculation="suffix:5").chat(HELLO, SamplingParams(max_tokens=100))


def test_the_answer_is_on_stdout_and_one_line_of_figures_on_stderr(outrider, expected):
    result = outrider("generate", "Hello", "-n", 100, *DRAFTING)
    assert result.exit_code == 0
    assert result.stdout_bytes.decode() == expected.text + "\n" * (not expected.text.endswith("\n"))
    assert re.fullmatch(
        r"100 tokens, \d+\.\d tokens/s, \d\.\d\d tokens per step, "
        rf"\d+% of {expected.drafted} drafts accepted \(suffix\), cut off by --max-tokens\n",
        result.stderr,
    )


def test_json_is_one_object_with_these_keys(objects, expected, model):
    (found,) = objects("Hello", "-n", 100, "--json", *DRAFTING)
    assert list(found) == KEYS
    assert found["model"] == model
    assert found["drafter"] == "suffix"
    assert found["text"] == expected.text
    assert found["token_ids"] == list(expected.token_ids)
    assert (found["finish_reason"], found["completion_tokens"]) == ("length", 100)
    assert found["accepted"] == expected.accepted > 0
    assert found["steps"] == expected.steps
    assert found["tokens_per_step"] == pytest.approx(100 / expected.steps, abs=1e-4)
    assert found["acceptance_rate"] == pytest.approx(expected.accepted / expected.drafted, abs=1e-4)
    assert found["time_to_first_token"] > 0
    assert found["tokens_per_second"] > 0


def test_without_speculation_there_is_no_drafter(objects, expected):
    (found,) = objects("Hello", "-n", 100, "--json", "--speculation", "off")
    assert found["drafter"] is None
    assert found["drafted"] == 0
    assert found["steps"] == 100
    assert found["text"] == expected.text


def test_a_right_prediction_is_accepted(objects, tmp_path):
    file = tmp_path / "expected.txt"
    prompt = ("Hello", "-n", 60, "--json", "--raw")
    (plain,) = objects(*prompt)
    file.write_text(plain["text"])
    (found,) = objects(*prompt, "--prediction", file, "--speculation", "prediction:4")
    assert found["text"] == plain["text"]
    assert "prediction" in found["drafter"].split("+")


def test_logprobs_come_with_the_tokens(objects):
    (found,) = objects("Hello", "-n", 3, "--json", "--logprobs", 2)
    assert list(found) == [*KEYS, "logprobs"]
    assert [entry["token_id"] for entry in found["logprobs"]] == found["token_ids"]
    for entry in found["logprobs"]:
        assert entry["top"][0] == {"token_id": entry["token_id"], "logprob": entry["logprob"]}  # greedy
        assert len(entry["top"]) == 2


def fail(monkeypatch):
    """Let each request fail at its third token."""
    advance = Scheduler.advance

    def failing(self, batch, proposals, runs):
        errors = [ArithmeticError("planted") if work.request.completion_tokens >= 2 else None for work in batch]
        return advance(self, batch, proposals, [error or run for error, run in zip(errors, runs, strict=True)])

    monkeypatch.setattr(Scheduler, "advance", failing)


def test_a_text_that_fails_is_an_error_after_what_there_is(outrider, monkeypatch):
    fail(monkeypatch)
    result = outrider("generate", "Hello", "-n", 50, "--speculation", "off")
    assert result.exit_code == 1
    assert result.stdout
    assert result.stderr == "error: planted\n"


def test_a_text_that_fails_has_an_error_in_its_object(objects, monkeypatch):
    fail(monkeypatch)
    (found,) = objects("Hello", "-n", 50, "--speculation", "off", "--json")
    assert list(found) == [*KEYS, "error"]
    assert (found["finish_reason"], found["error"], found["completion_tokens"]) == ("error", "planted", 2)


def test_ctrl_c_gives_the_object_of_what_there_is(outrider, press_ctrl_c, expected):
    press_ctrl_c(20)
    result = outrider("generate", "Hello", "-n", 90_000, "--json")
    assert result.exit_code == 130
    assert result.stderr == ""
    found = json.loads(result.stdout)
    assert found["finish_reason"] == "cancelled"
    assert expected.text.startswith(found["text"])
    assert 20 <= found["completion_tokens"] < 30


@pytest.mark.parametrize("args", [[], ["-"]])
def test_a_prompt_comes_from_stdin(objects, seen, args):
    (found,) = objects(*args, "-n", 3, "--json", "--raw", stdin="Hello, 世界\n")
    llm, request = seen[0]
    assert llm.tokenizer.decode(request.prompt) == "Hello, 世界"
    assert found["prompt_tokens"] == len(request.prompt)


def test_stdin_that_is_not_utf8_is_an_error(outrider):
    result = outrider("generate", stdin=b"good\nb\xe4d")
    assert result.exit_code == 1
    assert result.stderr == "error: stdin, line 2: byte 0xe4 is not UTF-8 text\n"


@pytest.mark.parametrize(
    ("args", "culprit"),
    [
        (["Hello", "--prompts", "FILE"], "PROMPT"),
        (["Hello", "--output", "x"], "--output"),
        (["Hello", "--system", "x", "--raw"], "--system"),
        (["--prompts", "FILE", "--prediction", "FILE"], "--prediction"),
        (["Hello", "--prediction", "FILE", "--speculation", "off"], "--prediction"),
        (["Hello", "--logprobs", "1"], "--logprobs"),
        (["Hello", "--logprobs", "1", "--json", "--compare"], "--logprobs"),
        (["--prompts", "FILE", "--compare"], "--compare"),
        (["Hello", "--compare", "--speculation", "off"], "--compare"),
        (["Hello", "--compare", "-t", "1", "--acceptance", "rejection"], "--compare"),
        (["Hello", "--compare", "--learn-from-outputs"], "--compare"),
        (["Hello", "--show-drafts", "--json"], "--show-drafts"),
        (["--prompts", "FILE", "--show-drafts"], "--show-drafts"),
        (["Hello", "--show-drafts", "--compare"], "--show-drafts"),
        (["Hello", "--show-drafts", "--speculation", "off"], "--show-drafts"),
        (["Hello", "--show-drafts"], "--show-drafts"),  # without a terminal
        (["--prompts", "FILE", "--output", "FILE"], "--output"),
        (["Hello", "Hello"], "Hello"),
    ],
)
def test_what_makes_no_sense_is_wrong_usage_and_names_its_culprit(outrider, tmp_path, args, culprit):
    file = tmp_path / "prompts.txt"
    file.write_text("Hello\n")
    result = outrider("generate", *[str(file) if arg == "FILE" else arg for arg in args])
    assert result.exit_code == 2
    assert result.stdout == ""
    assert culprit in result.stderr
    assert file.read_text() == "Hello\n"


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ([""], "the prompt is empty"),
        (["Hello", "-m", "gpt-5"], "no model is called 'gpt-5'"),
        (["Hello", "--context-length", "5"], "the context of 5 leaves room"),
        (["Hello", "--stop", ""], "stop="),
        (["Hello\udc80"], "lone surrogate"),
        (["--prompts", "/nowhere/a.txt"], "/nowhere/a.txt: No such file or directory"),
        (["Hello", "--prediction", "/"], "/: Is a directory"),
    ],
)
def test_an_error_is_one_line(outrider, args, message):
    result = outrider("generate", *args)
    assert result.exit_code == 1
    assert result.stdout == ""
    assert result.stderr.startswith("error: ")
    assert len(result.stderr.splitlines()) == 1
    assert message in result.stderr


def test_accepted_drafts_are_coloured(outrider, expected, model, monkeypatch):
    """Each accepted piece is green, and without the colour the text is the same."""
    monkeypatch.setenv("FORCE_COLOR", "1")
    result = outrider("generate", "Hello", "-n", 100, "--show-drafts", *DRAFTING)
    green = "".join(re.findall(r"\x1b\[32m(.*?)\x1b\[0m", result.stdout, re.DOTALL))
    assert re.sub(r"\x1b\[\d+m", "", result.stdout).rstrip("\n") == display.printable(expected.text).rstrip("\n")
    assert green == "".join(display.printable(text) for text in accepted_pieces(model))
    assert "\x1b[32mGreen\x1b[0m" in result.stderr


def test_no_color_underlines_accepted_drafts(outrider, monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("NO_COLOR", "1")
    result = outrider("generate", "Hello", "-n", 100, "--show-drafts", *DRAFTING)
    assert "\x1b[4m" in result.stdout
    assert "\x1b[32m" not in result.stdout
    assert "\x1b[4mUnderlined\x1b[0m" in result.stderr


def test_without_a_terminal_nothing_is_coloured(outrider, expected):
    """Also the control characters of the text are left as they are."""
    result = outrider("generate", "Hello", "-n", 100)
    assert "\x1b[" not in result.stderr
    assert result.stdout.count("\x1b[") == expected.text.count("\x1b[")


def test_what_controls_a_terminal_is_shown_as_pictures():
    assert display.printable("a\tb\n\x1b[2J\x7f\x9b世") == "a\tb\n␛[2J␡\ufffd世"


def test_the_answer_ends_with_one_line_end(capsys):
    for text in ("Hello", "Hello\n"):
        with display.Answer() as answer:
            answer.add(Emitted(None, (Piece(text, "plain"),), (1,)))
        assert capsys.readouterr().out == "Hello\n"


def test_version_and_help():
    assert re.match(r"outrider \S", CliRunner().invoke(app, ["--version"]).stdout)
    for command in ("generate", "chat"):
        assert "Examples" in CliRunner().invoke(app, [command, "--help"]).stdout


def accepted_pieces(model):
    llm = LLM(model, speculation="suffix:5")
    request = llm.request(HELLO, SamplingParams(max_tokens=100))
    emitted = list(llm.run([request]))
    assert completion(request).accepted > 0
    return [piece.text for item in emitted for piece in item.pieces if piece.source == "accepted"]


def download(monkeypatch):
    """Let the model be fetched on first use."""
    resolve = hub.resolve

    def fetch(name, *, progress):
        for done in (0, 5, 10):
            progress("Fetching a model", done, None if done == 0 else 10)
        progress("Unpacking it", 10, 10)
        return resolve(name)

    monkeypatch.setattr(hub, "resolve", fetch)


def test_a_download_is_a_line_per_stage_without_a_terminal(outrider, monkeypatch):
    download(monkeypatch)
    result = outrider("generate", "Hello", "-n", 3, "--json")
    assert result.stderr == "Fetching a model ...\nUnpacking it ...\n"
    assert json.loads(result.stdout)["completion_tokens"] == 3


def test_a_download_is_a_bar_on_a_terminal(outrider, monkeypatch):
    download(monkeypatch)
    monkeypatch.setenv("FORCE_COLOR", "1")
    result = outrider("generate", "Hello", "-n", 3, "--json")
    assert "Fetching a model" in result.stderr
    assert "10/10 bytes" in result.stderr
    assert "..." not in result.stderr
    assert json.loads(result.stdout)["completion_tokens"] == 3


def test_a_trace_is_written_beside_the_answer(objects, tmp_path):
    trace = tmp_path / "trace.json"
    (plain,) = objects("Hello", "-n", 5, "--json")
    (found,) = objects("Hello", "-n", 5, "--json", "--trace", trace)
    assert found["token_ids"] == plain["token_ids"]
    assert {"step", "forward"} <= {event["name"] for event in json.loads(trace.read_text())}
