"""`outrider generate --prompts`: one object a line, in order, early, and one bad prompt harms nobody."""

from __future__ import annotations

import json

import pytest

from outrider.cli import batch
from outrider.llm import LLM
from outrider.sampling import SamplingParams
from tests.cli.test_generate import KEYS


@pytest.fixture
def prompts(tmp_path):
    """A file whose later prompts get shorter answers, if "\\n" stops them."""
    path = tmp_path / "prompts.jsonl"
    lines = [{"question_id": f"q{i}", "category": "c", "turns": [f"Question {i}", "More"]} for i in range(12)]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def test_answers_come_in_the_order_of_the_prompts_and_are_those_of_the_library(objects, prompts, model):
    found = objects("--prompts", prompts, "-n", 40)
    assert [each["index"] for each in found] == list(range(12))
    assert [each["question_id"] for each in found] == [f"q{i}" for i in range(12)]
    assert all(list(each) == ["index", "question_id", "category", *KEYS] for each in found)
    chats = [[{"role": "user", "content": f"Question {i}"}] for i in range(12)]
    alone = LLM(model, speculation="off").generate(chats, SamplingParams(max_tokens=40))
    assert [each["text"] for each in found] == [each.text for each in alone]


def test_the_order_holds_when_later_prompts_finish_first(objects, prompts, monkeypatch):
    """Requests are told of in another order than they were made, and lines wait for those before them."""
    run = LLM.run

    def backwards(self, requests):
        emitted = list(run(self, requests))
        yield from sorted(emitted, key=lambda item: -item.request.id)

    monkeypatch.setattr(LLM, "run", backwards)
    assert [each["index"] for each in objects("--prompts", prompts, "-n", 5)] == list(range(12))


def test_each_answer_is_written_as_soon_as_it_can_be(outrider, prompts, monkeypatch):
    """By the time that the last answer is finished, all others are on stdout."""
    lines = []
    monkeypatch.setattr(batch.display.Batch, "write", lambda self, line: lines.append(json.loads(line)["index"]))
    unwritten = []
    completion = batch.completion

    def counting(request):
        unwritten.append(len(unwritten) - len(lines))
        return completion(request)

    monkeypatch.setattr(batch, "completion", counting)
    assert outrider("generate", "--prompts", prompts, "-n", 9).exit_code == 0
    assert lines == list(range(12))
    assert max(unwritten) <= 7, "more wait than a batch holds"


def test_answers_go_to_a_file(outrider, prompts, tmp_path):
    target = tmp_path / "answers.jsonl"
    result = outrider("generate", "--prompts", prompts, "--output", target, "-n", 5)
    assert result.exit_code == 0
    assert result.stdout == ""
    assert [json.loads(line)["index"] for line in target.read_text().splitlines()] == list(range(12))
    assert result.stderr.startswith("12 prompts, 60 tokens in ")
    assert len(result.stderr.splitlines()) == 1, "no bar without a terminal"


def test_a_file_of_answers_may_exist_when_prompts_come_from_stdin(outrider, tmp_path):
    target = tmp_path / "answers.jsonl"
    for _ in range(2):
        assert outrider("generate", "--prompts", "-", "--output", target, "-n", 3, stdin="A\nB\n").exit_code == 0
        assert [json.loads(line)["index"] for line in target.read_text().splitlines()] == [0, 1]


def test_the_file_of_the_prompts_is_not_overwritten(outrider, prompts):
    before = prompts.read_text()
    assert outrider("generate", "--prompts", prompts, "--output", prompts).exit_code == 2
    assert prompts.read_text() == before


def test_half_a_character_beside_a_prompt_is_written_as_json(outrider, tmp_path):
    """JSON may hold lone surrogates, UTF-8 may not."""
    lines = [{"prompt": "A", "category": "\\\udcff", "question_id": "\ud83d"}, {"prompt": "B", "category": "é"}]
    (tmp_path / "prompts.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    target = tmp_path / "answers.jsonl"
    result = outrider("generate", "--prompts", tmp_path / "prompts.jsonl", "--output", target, "-n", 3)
    assert result.exit_code == 0
    found = [json.loads(line) for line in target.read_text("utf-8").splitlines()]
    assert (found[0]["category"], found[0]["question_id"]) == ("\\\udcff", "\ud83d")
    assert found[1]["category"] == "é"


def test_prompts_come_from_stdin(objects):
    assert [each["index"] for each in objects("--prompts", "-", "-n", 3, stdin="A\nB\n")] == [0, 1]


def test_an_impossible_prompt_gets_an_error_and_the_others_their_answers(outrider, tmp_path):
    path = tmp_path / "prompts.txt"
    path.write_text("A\n" + "B" * 60 + "\nC\n")
    result = outrider("generate", "--prompts", path, "--raw", "--context-length", 50, "-n", 5)
    found = [json.loads(line) for line in result.stdout.splitlines()]
    assert result.exit_code == 1
    assert [each["completion_tokens"] for each in found] == [5, 0, 5]
    assert (found[1]["index"], found[1]["finish_reason"]) == (1, "error")
    assert "the prompt has 60 tokens" in found[1]["error"]
    assert [key for key in found[1] if key not in ("index", "error")] == KEYS
    assert "1 failed" in result.stderr


def test_ctrl_c_ends_a_batch_with_what_there_is(outrider, prompts, press_ctrl_c):
    press_ctrl_c(30)
    result = outrider("generate", "--prompts", prompts, "-n", 20_000)
    found = [json.loads(line) for line in result.stdout.splitlines()]
    assert result.exit_code == 130
    assert [each["index"] for each in found] == list(range(8)), "those that were begun, but not those that waited"
    assert all(each["finish_reason"] == "cancelled" for each in found)
    assert all(each["completion_tokens"] == len(each["token_ids"]) > 0 for each in found)
    assert result.stderr.endswith("12 interrupted\n")


def test_a_bad_line_stops_everything_before_the_model_is_loaded(outrider, tmp_path, monkeypatch):
    monkeypatch.delattr(LLM, "__init__")
    path = tmp_path / "prompts.jsonl"
    path.write_text('"A"\n{"prompt": 3}\n')
    result = outrider("generate", "--prompts", path)
    assert result.exit_code == 1
    assert result.stdout == ""
    assert result.stderr == f'error: {path}, line 2: "prompt" is a number; expected a string\n'


def test_logprobs_are_there_if_asked_for(objects, prompts):
    assert all(len(each["logprobs"]) == 2 for each in objects("--prompts", prompts, "-n", 2, "--logprobs", 0))
