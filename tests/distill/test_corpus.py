from __future__ import annotations

import json
from contextlib import closing
from itertools import islice

import pytest

from outrider.distill import corpus
from outrider.distill.interview import compose
from outrider.errors import ModelFileError
from outrider.llm import LLM
from outrider.sampling import SamplingParams


def test_answers_are_the_targets_own(dialogues, model):
    llm = LLM(model, speculation="off", context_length=512, threads=1)
    greedy = [d for d in dialogues if d.temperatures == [0.0]][:3]
    assert greedy
    for dialogue in greedy:
        start, end = dialogue.answers[0]
        answer = llm.generate([dialogue.tokens[:start]], SamplingParams(max_tokens=end - start))[0]
        assert list(answer.token_ids) == dialogue.tokens[start:end]


def test_an_interrupted_interview_goes_on(corpus_path, model, tokenizer, tmp_path):
    path = tmp_path / "corpus.jsonl"
    text = corpus_path.read_text()
    lines = text.splitlines(keepends=True)[:4]
    path.write_text("".join(lines) + '{"kind": "ch')  # a crash in the middle of a line
    llm = LLM(model, context_length=512, max_batch=corpus.TOGETHER, kv_tokens=corpus.TOGETHER * 512, threads=1)
    before = corpus.answer_tokens(corpus.read(path, tokenizer))
    with closing(corpus.interview(llm, path, seed=9)) as growing:
        next(tokens for tokens in growing if tokens > before)
    scheduler = llm.engine.scheduler
    assert not scheduler.waiting  # nobody writes on for an interview that is over
    assert not scheduler.running
    after = corpus.read(path, tokenizer)
    assert path.read_text().startswith("".join(lines))
    assert len(after) > 4


def test_the_same_seed_gives_the_same_corpus(corpus_path, model, tmp_path):
    path = tmp_path / "again.jsonl"
    llm = LLM(model, context_length=512, max_batch=corpus.TOGETHER, kv_tokens=corpus.TOGETHER * 512, threads=1)
    with closing(corpus.interview(llm, path, seed=5)) as growing:
        next(tokens for tokens in growing if tokens > 0)
    assert corpus_path.read_text().startswith(path.read_text())


def test_prompts_of_users_are_answered_once_each_beside_what_the_target_asks(model, tokenizer, tmp_path, monkeypatch):
    left = []

    def composed(rng, template, prompts):
        left.append(len(prompts))
        return compose(rng, template, prompts)

    monkeypatch.setattr(corpus, "compose", composed)
    path = tmp_path / "corpus.jsonl"
    llm = LLM(model, context_length=512, max_batch=corpus.TOGETHER, kv_tokens=corpus.TOGETHER * 512, threads=1)
    prompts = ["What is a tide?", "what is  a tide?", "Name three colours.", "x " * 500]
    fitting = corpus.fitting(llm, prompts)
    assert fitting == tuple(prompts[:3])
    for sitting in range(2):
        left.clear()
        with closing(corpus.interview(llm, path, seed=sitting, prompts=fitting)) as growing:
            before = len(corpus.read(path, tokenizer)) if path.exists() else 0
            next(tokens for tokens in growing if len(corpus.read(path, tokenizer)) > before + 8)
    assert left[0] == 0  # what was answered in the sitting before is not asked again
    dialogues = corpus.read(path, tokenizer)
    asked = [d.questions[0] for d in dialogues if d.kind == "prompt"]
    assert sorted(asked, key=len)[-1] == "Name three colours."
    assert len(asked) == 2  # the same question is not kept twice
    assert len(dialogues) > 4
    for dialogue in dialogues:
        if dialogue.kind == "prompt":
            turn = tokenizer.render_chat([{"role": "user", "content": dialogue.questions[0]}])
            assert dialogue.tokens[: dialogue.answers[0][0]] == tokenizer.encode(turn)


def test_whoever_reads_it_can_stop_although_nothing_comes(model, tmp_path):
    llm = LLM(model, context_length=32, threads=1)  # no question fits
    with closing(corpus.interview(llm, tmp_path / "corpus.jsonl", seed=0)) as growing:
        assert list(islice(growing, 3)) == [0, 0, 0]


def test_conversations_of_messages_are_taken_apart(tokenizer, tmp_path):
    messages = [
        {"role": "user", "content": "one"},
        {"role": "assistant", "content": "two"},
        {"role": "user", "content": "three"},
        {"role": "assistant", "content": "four"},
    ]
    path = tmp_path / "chats.jsonl"
    path.write_text(json.dumps({"messages": messages}) + "\n")
    (dialogue,) = corpus.read(path, tokenizer)
    rendered = tokenizer.encode(tokenizer.render_chat(messages, add_generation_prompt=False))
    assert rendered[: len(dialogue.tokens)] == dialogue.tokens
    said = [tokenizer.decode(dialogue.tokens[start:end]) for start, end in dialogue.answers]
    assert said == ["two", "four"]
    assert all(dialogue.tokens[end - 1] in tokenizer.eos_ids for _, end in dialogue.answers)


@pytest.mark.parametrize(
    ("line", "named"),
    [
        ("[]", "line 2"),
        ("{", "line 2"),
        ('{"messages": []}', "no answer"),
        ('{"messages": [{"role": "user", "content": "x"}]}', "no answer"),
        ('{"messages": "x"}', "line 2"),
        ('{"kind": "x", "tokens": [1, 99999], "answers": [[1, 2]], "temperatures": [], "questions": []}', "99999"),
        ('{"kind": "x", "tokens": [1, 2], "answers": [[1, 3]], "temperatures": [], "questions": []}', "(1, 3)"),
        ('{"kind": "x", "tokens": [1, 2], "answers": [[0, 1]], "temperatures": [], "questions": []}', "(0, 1)"),
    ],
)
def test_a_line_that_is_no_dialogue_is_named(line, named, tokenizer, tmp_path):
    good = '{"kind": "x", "tokens": [1, 2], "answers": [[1, 2]], "temperatures": [0], "questions": []}'
    path = tmp_path / "c.jsonl"
    path.write_text(good + "\n" + line + "\n")
    with pytest.raises(ModelFileError) as error:
        corpus.read(path, tokenizer)
    assert named in str(error.value)
