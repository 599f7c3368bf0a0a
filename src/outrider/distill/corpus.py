"""The corpus: dialogues of the target with itself, as JSON lines with token ids; made here, or brought by the user.

    for tokens in interview(llm, path, seed=0): ...     # endless: closed when there is enough
    dialogues = read(path, tokenizer)

A line is written when its dialogue is finished, so what was written stays good wherever the process ends.
"""

from __future__ import annotations

import json
from collections.abc import Generator, Iterable, Sequence
from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from random import Random
from typing import IO, Any

from outrider.distill.filters import Filter
from outrider.distill.interview import LONGEST_ANSWER, Dialogue, Interview, Template, Turn, Written, compose
from outrider.errors import ModelFileError, RequestError
from outrider.llm import LLM
from outrider.request import Request
from outrider.sampling import SamplingParams
from outrider.tokenizer import Message, Tokenizer

TOGETHER = 16
"""Interviews that are decoded in one batch, if the LLM allows so many."""

HELD_OUT = 25
"""Every so many dialogues, one is kept out of training, to measure acceptance on."""

_AHEAD = 2  # interviews under way beyond those, so that none of these places stays empty


def read(path: Path, tokenizer: Tokenizer) -> list[Dialogue]:
    """The dialogues of a corpus: each line has tokens and answers, as `interview` writes it, or a chat's messages.

    A last line without an end was cut off by a crash and is left out. Raises ModelFileError, naming the line, if one is
    no dialogue or does not fit the tokenizer.
    """
    dialogues = []
    with path.open(encoding="utf-8") as file:
        for number, line in enumerate(file, start=1):
            if not line.endswith("\n"):
                break
            try:
                dialogues.append(_dialogue(json.loads(line), tokenizer))
            except (ValueError, KeyError, TypeError, AttributeError) as error:
                raise ModelFileError(
                    f"{path}, line {number} is no dialogue ({type(error).__name__}: {error}); expected a JSON object "
                    "with messages, or with kind, tokens, answers, temperatures and questions"
                ) from error
    return dialogues


def answer_tokens(dialogues: Iterable[Dialogue]) -> int:
    """How many tokens were written as answers."""
    return sum(end - start for dialogue in dialogues for start, end in dialogue.answers)


def split(count: int) -> tuple[list[int], list[int]]:
    """The numbers of so many dialogues that are trained on, and of those held out.

    Raises RequestError if there are none of either.
    """
    trained: list[int] = []
    held: list[int] = []
    for number in range(count):
        (held if number % HELD_OUT == min(HELD_OUT, count) // 2 else trained).append(number)
    if not trained:
        raise RequestError(f"{count} dialogues are too few to learn from and to measure on: at least 2")
    return trained, held


def interview(
    llm: LLM, path: Path, *, seed: int, aside: Sequence[str] = (), prompts: Sequence[str] = ()
) -> Generator[int, None, None]:
    """Add dialogues to the corpus at `path`, endlessly.

    seed     of what is asked and drawn: the same gives the same corpus, if it is not interrupted.
    aside    texts of which no 13 words in a row may be in the corpus.
    prompts  of users: answered once each, in between what the target asks itself.

    Yields the number of answer tokens after each interview, grown or not: not all give something to keep. Closing the
    iterator keeps what is finished.
    """
    _drop_cut_line(path)
    kept = read(path, llm.tokenizer) if path.exists() else []
    known = Filter(aside)
    known.remember(question for dialogue in kept for question in dialogue.questions)
    done = answer_tokens(kept)
    rng, template = Random(f"{seed}/{done}"), Template(llm.tokenizer)
    unasked = [prompt for prompt in dict.fromkeys(prompts) if not known.knows(prompt)]
    rng.shuffle(unasked)
    with path.open("a", encoding="utf-8") as file, closing(_run(llm, rng, template, unasked)) as interviews:
        for dialogues in interviews:
            for dialogue in dialogues:
                answers = [dialogue.tokens[start:end] for start, end in dialogue.answers]
                if known.keeps(llm.tokenizer.decode(dialogue.tokens), dialogue.questions, answers):
                    _write(file, dialogue)
                    done += answer_tokens([dialogue])
            yield done


def fitting(llm: LLM, prompts: Sequence[str]) -> tuple[str, ...]:
    """Those of the prompts that leave room for the longest answer in the context."""
    template = Template(llm.tokenizer)
    room = llm.context_length - len(template.before) - len(template.after) - LONGEST_ANSWER
    return tuple(prompt for prompt in prompts if len(template.encode(prompt)) <= room)


def _run(llm: LLM, rng: Random, template: Template, unasked: list[str]) -> Generator[list[Dialogue], None, None]:
    """Endless interviews, many at a time: the dialogues of each as it ends."""
    engine = llm.engine
    under_way: dict[int, tuple[Request, Interview]] = {}
    finished: list[list[Dialogue]] = []

    def go_on(interview: Interview, written: Written | None) -> None:
        try:
            turn = interview.send(written)  # type: ignore[arg-type]  # the first send is None
        except StopIteration as end:
            finished.append(end.value)
            return
        if len(turn.prompt) + turn.max_tokens <= llm.context_length:
            request = _request(llm, turn, rng.getrandbits(31))
            engine.submit(request)
            under_way[request.id] = request, interview
        else:  # it has grown too long
            finished.append([])

    try:
        while True:
            while len(under_way) + len(finished) < TOGETHER + _AHEAD:
                go_on(compose(rng, template, unasked), None)
            for emitted in engine.step():
                if emitted.finish_reason is None:
                    continue
                request, asking = under_way.pop(emitted.request.id)
                if request.error is not None:
                    raise request.error
                ended = emitted.finish_reason == "stop"
                go_on(asking, Written(tuple(request.output[: -1 if ended else None]), ended))
            yield from finished
            finished.clear()
    finally:
        engine.drop_all()


def _request(llm: LLM, turn: Turn, seed: int) -> Request:
    params = SamplingParams(temperature=turn.temperature, max_tokens=turn.max_tokens, seed=seed)
    return llm.request(list(turn.prompt), params)


def _write(file: IO[str], dialogue: Dialogue) -> None:
    file.write(json.dumps(asdict(dialogue), ensure_ascii=False) + "\n")
    file.flush()


def _drop_cut_line(path: Path) -> None:
    """Cut off what a crash left of a line, so that the next one starts afresh."""
    if path.exists() and not (text := path.read_bytes()).endswith(b"\n"):
        path.write_bytes(text[: text.rfind(b"\n") + 1])


def _dialogue(fields: Any, tokenizer: Tokenizer) -> Dialogue:
    """Raises ValueError, KeyError, TypeError or AttributeError for what is none."""
    dialogue = _conversation(fields["messages"], tokenizer) if "messages" in fields else _own(fields)
    wrong = [token for token in dialogue.tokens if not 0 <= token < tokenizer.vocabulary_size]
    if wrong:
        raise ValueError(f"token {wrong[0]} is not among 0 to {tokenizer.vocabulary_size - 1}")
    at = 1
    for start, end in dialogue.answers:
        if not at <= start < end <= len(dialogue.tokens):
            raise ValueError(f"answers={dialogue.answers} are not in order within {len(dialogue.tokens)} tokens")
        at = end
    if not dialogue.answers:
        raise ValueError("it has no answer")
    return dialogue


def _own(fields: Any) -> Dialogue:
    return Dialogue(
        kind=str(fields["kind"]),
        tokens=[int(token) for token in fields["tokens"]],
        answers=[(int(start), int(end)) for start, end in fields["answers"]],
        temperatures=[float(t) for t in fields["temperatures"]],
        questions=[str(question) for question in fields["questions"]],
    )


def _conversation(messages: Sequence[Message], tokenizer: Tokenizer) -> Dialogue:
    """The answers are the assistant's messages and what the chat template puts after each, up to the end of turn."""
    tokens: list[int] = []
    answers: list[tuple[int, int]] = []
    text = ""
    for count, message in enumerate(messages, start=1):
        if message["role"] != "assistant":
            continue
        opened = tokenizer.render_chat(messages[: count - 1])
        closed = tokenizer.render_chat(messages[:count], add_generation_prompt=False)
        if not (opened.startswith(text) and closed.startswith(opened)):
            raise ValueError(f"the chat template changes what was said before message {count}")
        tokens += tokenizer.encode(opened[len(text) :], add_special_tokens=not tokens)
        answer = tokenizer.encode(closed[len(opened) :], add_special_tokens=False)
        ends = [i + 1 for i, token in enumerate(answer) if token in tokenizer.eos_ids]
        answer_end = len(tokens) + (ends[0] if ends else len(answer))
        answers.append((len(tokens), answer_end))
        tokens += answer
        text = closed
    return Dialogue("given", tokens[: answers[-1][1]] if answers else tokens, answers)
