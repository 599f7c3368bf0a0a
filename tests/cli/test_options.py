"""Every flag, set to something else than its default, is in force in the library (B123)."""

from __future__ import annotations

import pytest
import typer

from outrider.cli import app, options
from outrider.policy.costs import FREE
from outrider.sampling import SamplingParams


def params(name, value):
    return lambda llm, request: getattr(request.params, name) == value


SHARED = {
    "--model": (["Hello"], lambda llm, request: llm.name.endswith("tiny.gguf")),
    "--speculation": (["off"], lambda llm, request: str(llm.speculation) == "off" and not request.drafters),
    "--draft": (["MODEL"], lambda llm, request: llm.draft == llm.name),
    "--learn-from-outputs": ([], lambda llm, request: llm.learn_from_outputs),
    "--context-length": (["99"], lambda llm, request: llm.context_length == 99),
    "--threads": (["3"], lambda llm, request: llm.model.threads == 3),
    "--system": (["Be brief."], lambda llm, request: "system\nBe brief." in llm.tokenizer.decode(request.prompt)),
    "--max-tokens": (["7"], params("max_tokens", 7)),
    "--temperature": (["0.5"], params("temperature", 0.5)),
    "--top-k": (["9"], params("top_k", 9)),
    "--top-p": (["0.25"], params("top_p", 0.25)),
    "--min-p": (["0.125"], params("min_p", 0.125)),
    "--logit-bias": (["5=1.5", "--logit-bias", "6=-2"], params("logit_bias", {5: 1.5, 6: -2.0})),
    "--allowed-token-id": (["5", "--allowed-token-id", "6"], params("allowed_token_ids", (5, 6))),
    "--banned-token-id": (["5", "--banned-token-id", "6"], params("banned_token_ids", (5, 6))),
    "--min-tokens": (["2"], params("min_tokens", 2)),
    "--repetition-penalty": (["1.25"], params("repetition_penalty", 1.25)),
    "--presence-penalty": (["0.5"], params("presence_penalty", 0.5)),
    "--frequency-penalty": (["-0.5"], params("frequency_penalty", -0.5)),
    "--seed": (["11"], params("seed", 11)),
    "--acceptance": (["rejection", "-t", "1"], params("acceptance", "rejection")),
    "--stop": (["a", "--stop", "bc"], params("stop", ("a", "bc"))),
    "--stop-token-id": (["5", "--stop-token-id", "6"], params("stop_token_ids", (5, 6))),
    "--ignore-eos": ([], params("ignore_eos", True)),
}
GENERATE = SHARED | {
    "--raw": ([], lambda llm, request: request.prompt == llm.encode("Hello")),
    "--logprobs": (["2", "--json"], params("logprobs", 2)),
    "--prediction": (["FILE"], lambda llm, request: llm.tokenizer.decode(request.prediction) == "expected"),
}
OUTPUT = {"--prompts", "--output", "--json", "--show-drafts", "--compare", "--trace"}  # tested by what they print
COSTS = {"--recalibrate"}  # tested by what is measured
SAMPLING = [flag for flag, (_, check) in SHARED.items() if check.__qualname__.startswith("params.")]


def flags(command):
    group = typer.main.get_command(app)
    return {name for param in group.commands[command].params for name in param.opts if name.startswith("--")}


def in_force(outrider, model, seen, command, flag, tmp_path):
    """Whether the flag was seen by the library; also checks that without it the library sees something else."""
    args, check = (GENERATE if command == "generate" else SHARED)[flag]
    file = tmp_path / "expected.txt"
    file.write_text("expected")
    values = [{"FILE": str(file), "MODEL": model}.get(value, value) for value in args]
    start, stdin = (["Hello", "-n", "3"], None) if command == "generate" else (["-n", "3"], "Hello\n")
    if flag != "--model":
        assert outrider(command, *start, stdin=stdin).exit_code == 0
        assert not check(*seen.pop()), f"{flag}: the check holds anyway"
        args = [*start, flag, *values]
    else:
        args = start
    result = outrider(command, *args, stdin=stdin)
    assert result.exit_code == 0, result.output
    return check(*seen.pop())


@pytest.mark.parametrize("flag", GENERATE)
def test_each_flag_of_generate_is_in_force(outrider, model, seen, flag, tmp_path):
    assert in_force(outrider, model, seen, "generate", flag, tmp_path)


@pytest.mark.parametrize("flag", SHARED)
def test_each_flag_of_chat_is_in_force(outrider, model, seen, flag, tmp_path):
    assert in_force(outrider, model, seen, "chat", flag, tmp_path)


def test_no_flag_is_untested():
    assert flags("generate") == GENERATE.keys() | OUTPUT | COSTS
    assert flags("chat") == SHARED.keys() | {"--show-drafts"} | COSTS


def test_every_sampling_parameter_is_a_flag():
    names = {name.replace("_", "-") for name in SamplingParams.__dataclass_fields__}
    assert {"--" + name.replace("token-ids", "token-id") for name in names} <= flags("generate")


@pytest.mark.parametrize("flag", SAMPLING)
def test_a_flag_that_is_dropped_would_show(outrider, model, seen, flag, tmp_path, monkeypatch):
    """Negative control of `in_force`."""
    monkeypatch.setattr(options.SamplingOptions, "params", lambda self, logprobs=None: SamplingParams(max_tokens=3))
    assert not in_force(outrider, model, seen, "generate", flag, tmp_path)


@pytest.mark.parametrize("command", ["generate", "chat"])
def test_costs_are_measured_once_and_again_on_request(outrider, command, monkeypatch, tmp_path):
    measured = []
    monkeypatch.setattr("outrider.llm.measure", lambda model, progress: measured.append(model) or FREE)
    monkeypatch.setattr("outrider.policy.store.folder", lambda: tmp_path)
    for expected, flags in ((1, []), (1, []), (2, ["--recalibrate"]), (2, [])):
        assert outrider(command, "-n", "3", *flags, stdin="Hello\n").exit_code == 0
        assert len(measured) == expected


@pytest.mark.parametrize("speculation", ["auto", "off"])
def test_help_names_every_speculation(outrider, speculation):
    assert speculation in outrider("generate", "--help").stdout


@pytest.mark.parametrize(
    "value",
    [
        ["--temperature", "-1"],
        ["--top-p", "0"],
        ["--speculation", "psychic"],
        ["--logit-bias", "5"],
        ["--logit-bias", "five=1"],
        ["--presence-penalty", "3"],
    ],
)
def test_an_impossible_value_is_one_line_that_names_it(outrider, value):
    result = outrider("generate", "Hello", *value)
    assert result.exit_code == 1
    assert result.stdout == ""
    assert len(result.stderr.splitlines()) == 1
    assert result.stderr.startswith("error: " + value[0].lstrip("-").replace("-", "_"))
    assert "allowed" in result.stderr


def test_a_value_of_the_wrong_type_is_wrong_usage(outrider):
    assert outrider("generate", "Hello", "--top-k", "many").exit_code == 2
