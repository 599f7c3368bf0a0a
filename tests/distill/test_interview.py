from __future__ import annotations

from collections import Counter
from random import Random

import pytest

from outrider.distill.interview import Template, Written, compose


@pytest.fixture(scope="module")
def template(tokenizer):
    return Template(tokenizer)


def run(template, seed, ends=lambda turn: True):
    """The dialogues of an interview in which the target always writes "xyz", and the turns it was given."""
    interview = compose(Random(seed), template, [])
    turns, written = [], None
    while True:
        try:
            turns.append(interview.send(written))
        except StopIteration as end:
            return end.value, turns
        written = Written(template.encode("xyz"), ends(turns[-1]))


def test_a_dialogue_reads_as_the_chat_template_writes_it(template, tokenizer):
    kinds = Counter()
    for seed in range(60):
        for dialogue in run(template, seed)[0]:
            kinds[dialogue.kind] += 1
            parts, at = [], 0
            for start, end in dialogue.answers:
                parts += [dialogue.tokens[at:start], dialogue.tokens[start:end]]
                at = end
            users = [part[part.index(tokenizer.encode("\n")[0]) :] for part in parts[::2]]
            messages = []
            for user, answer in zip(users, parts[1::2], strict=True):
                question = tokenizer.decode(user).split("\n", 1)[1].removesuffix("\nassistant\n")
                question = question.removesuffix("\n").removesuffix("assistant").removesuffix("\n")
                question = question.split("user\n", 1)[-1]
                messages.append({"role": "user", "content": question})
                messages.append({"role": "assistant", "content": tokenizer.decode(answer)})
            rendered = tokenizer.render_chat(messages, add_generation_prompt=False)
            assert tokenizer.encode(rendered)[: len(dialogue.tokens)] == dialogue.tokens
    assert {"chat", "sum", "translation", "question", "news", "passage", "reading", "study"} <= set(kinds)


def test_answers_hold_what_the_target_wrote_and_its_end_of_turn(template):
    dialogues, _ = run(template, 1)
    (start, end) = dialogues[0].answers[0]
    assert tuple(dialogues[0].tokens[start:end]) == (*template.encode("xyz"), template.end_of_turn)
    assert len(dialogues[0].temperatures) == len(dialogues[0].answers)


def test_a_question_that_does_not_end_is_dropped(template):
    dialogues, turns = run(template, 1, ends=lambda turn: False)
    assert dialogues == []
    assert len(turns) == 1


@pytest.mark.parametrize(("kind", "count"), [("reading", 1), ("study", 3)])
def test_what_is_read_are_passages_that_the_target_wrote(template, tokenizer, kind, count):
    for seed in range(300):
        dialogues, _ = run(template, seed)
        if dialogues[-1:] and dialogues[-1].kind == kind:
            *passages, reading = dialogues
            assert [passage.kind for passage in passages] == ["passage"] * count
            prompt = tokenizer.decode(reading.tokens[: reading.answers[0][0]])
            assert prompt.count("xyz") >= count
            return
    pytest.fail(f"no interview of 300 was a {kind}")


def test_the_same_seed_asks_the_same(template):
    assert [turn.prompt for turn in run(template, 4)[1]] == [turn.prompt for turn in run(template, 4)[1]]
    assert run(template, 4)[1][0] != run(template, 5)[1][0]
