"""How a target interviews itself: each kind of dialogue is a coroutine that asks for texts and is sent them.

dialogue = compose(random.Random(7), template)
turn = next(dialogue)               # what the target is to continue, and how
turn = dialogue.send(written)       # ... until StopIteration, whose value is the list of dialogues

From the chat template up to the user's turn and a few first words, an instruction-tuned model writes a plausible
question; then it answers. The first words vary, so that tasks do: conversation, code, role play, short questions, sums,
translation, news, and passages that the model wrote itself, one or several, which it is then asked to summarise or
asked about. Prompts of users are answered in between, where there are any.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field
from random import Random

from outrider.distill import openings
from outrider.tokenizer import Tokenizer

LONGEST_ANSWER = 192
"""Tokens of an answer to what a user asks."""


@dataclass(frozen=True, slots=True)
class Turn:
    """A text that the target is to write: what comes after `prompt`."""

    prompt: tuple[int, ...]
    temperature: float
    max_tokens: int


@dataclass(frozen=True, slots=True)
class Written:
    """What it wrote, without the token that ended the turn, and whether it ended the turn itself."""

    tokens: tuple[int, ...]
    ended: bool


@dataclass(slots=True)
class Dialogue:
    """A conversation: all its token ids, and which of them are answers of the target.

    answers       [start, end) of each answer, its end-of-turn token included.
    temperatures  at which the answers were drawn.
    questions     the parts of the user's turns that the target wrote, to find duplicates by.
    """

    kind: str
    tokens: list[int]
    answers: list[tuple[int, int]] = field(default_factory=list)
    temperatures: list[float] = field(default_factory=list)
    questions: list[str] = field(default_factory=list)


Asking = Generator[Turn, Written, bool]
Interview = Generator[Turn, Written, list[Dialogue]]


class Template:
    """A chat template taken apart, as token ids: what comes before the user's words, after them, and between turns."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        """Raises UnsupportedModelError where the model has no chat template."""
        user, answer = "\u2039user\u203a", "\u2039answer\u203a"  # no template contains these
        once = tokenizer.render_chat([{"role": "user", "content": user}])
        twice = tokenizer.render_chat(
            [
                {"role": "user", "content": user},
                {"role": "assistant", "content": answer},
                {"role": "user", "content": user},
            ]
        )
        before, after = once.split(user)
        between = twice.split(answer)[1].split(user)[0]
        self.tokenizer = tokenizer
        self.before = tuple(tokenizer.encode(before))
        self.after = self.encode(after)
        # What the model ends its turn with is part of the answer: it is not repeated.
        self.end_of_turn = next((i for i in self.encode(between)[:1] if i in tokenizer.eos_ids), None)
        self.between = self.encode(between)[0 if self.end_of_turn is None else 1 :]

    def encode(self, text: str) -> tuple[int, ...]:
        """Token ids of a piece of a conversation."""
        return tuple(self.tokenizer.encode(text, add_special_tokens=False))


class _Speaker:
    """Writes one dialogue, turn by turn."""

    def __init__(self, kind: str, rng: Random, template: Template) -> None:
        self.dialogue = Dialogue(kind, list(template.before))
        self.rng = rng
        self.template = template

    def quote(self, text: str) -> None:
        """A part of the user's turn that is given."""
        self.dialogue.tokens += self.template.encode(text)

    def ask(self, opening: str, most: int) -> Asking:
        """Let the target write the (rest of the) user's turn after `opening`. False if it does not come to an end."""
        tokens = self.dialogue.tokens
        start = len(tokens)
        self.quote(opening)
        written = yield Turn(tuple(tokens), self.rng.choice(_QUESTION_TEMPERATURES), most)
        if not written.ended:
            del tokens[start:]
            return False
        tokens += written.tokens
        self.dialogue.questions.append(self.template.tokenizer.decode(tokens[start:]))
        return True

    def answer(self, most: int | None = None) -> Asking:
        """Let the target answer. Whether it came to an end."""
        tokens, template = self.dialogue.tokens, self.template
        tokens += template.after
        start = len(tokens)
        temperature = _answer_temperature(self.rng)
        written = yield Turn(tuple(tokens), temperature, most or self.rng.choice(_ANSWER_LENGTHS))
        tokens += written.tokens
        if written.ended and template.end_of_turn is not None:
            tokens.append(template.end_of_turn)
        self.dialogue.answers.append((start, len(tokens)))
        self.dialogue.temperatures.append(temperature)
        return written.ended

    def follow_up(self) -> Asking:
        """One more question and answer, if the target asks one."""
        tokens = self.dialogue.tokens
        end = len(tokens)
        tokens += self.template.between
        if (yield from self.ask(self.rng.choice(openings.FOLLOW_UPS), 64)):
            return (yield from self.answer())
        del tokens[end:]
        return False


def compose(rng: Random, template: Template, prompts: list[str]) -> Interview:
    """One interview: every second time the last of the prompts, which it loses, else of a random kind.

    Its dialogues may be none, if the target never came to an end.
    """
    if prompts and rng.random() < _PROMPTS:
        return _prompt(prompts.pop(), rng, template)
    kind = rng.choices(list(_KINDS), [weight for weight, _ in _KINDS.values()])[0]
    return _KINDS[kind][1](kind, rng, template)


def _prompt(text: str, rng: Random, template: Template) -> Interview:
    """What a user has asked. Nobody asks on: it may fill the context but for one answer."""
    speaker = _Speaker("prompt", rng, template)
    speaker.quote(text)
    speaker.dialogue.questions.append(text)
    yield from speaker.answer()
    return [speaker.dialogue]


def _conversation(openings: Sequence[str], longest: int, follow_ups: float) -> Callable[..., Interview]:
    def interview(kind: str, rng: Random, template: Template) -> Interview:
        speaker = _Speaker(kind, rng, template)
        if not (yield from speaker.ask(rng.choice(openings), longest)):
            return []
        if (yield from speaker.answer()) and rng.random() < follow_ups:
            yield from speaker.follow_up()
        return [speaker.dialogue]

    return interview


def _sums(kind: str, rng: Random, template: Template) -> Interview:
    opening = rng.choice(openings.SUMS).format(
        name=rng.choice(openings.NAMES),
        other=rng.choice(openings.NAMES),
        count=rng.randint(2, 90),
        things=rng.choice(openings.THINGS),
    )
    return (yield from _conversation((opening,), 120, 0.0)(kind, rng, template))


def _translation(kind: str, rng: Random, template: Template) -> Interview:
    language = rng.choice(list(openings.FIRST_WORDS))
    opening = rng.choice(openings.TRANSLATIONS).format(
        language=language, first=rng.choice(openings.FIRST_WORDS[language])
    )
    return (yield from _conversation((opening,), 80, 0.0)(kind, rng, template))


def _passages(count: int) -> Callable[..., Interview]:
    """So many passages by the model, and then a summary of them or a question about them."""

    def interview(kind: str, rng: Random, template: Template) -> Interview:
        dialogues: list[Dialogue] = []
        while len(dialogues) < count:
            author = _Speaker("passage", rng, template)
            if not (yield from author.ask(rng.choice(openings.PASSAGES).format(topic=rng.choice(openings.TOPICS)), 60)):
                return dialogues
            yield from author.answer(rng.choice(_PASSAGE_LENGTHS))
            dialogues.append(author.dialogue)
        text = "\n\n".join(_answered(template, author) for author in dialogues)
        reader = _Speaker(kind, rng, template)
        if rng.random() < _SUMMARIES:
            reader.quote(rng.choice(openings.SUMMARIES) + text)
        else:
            reader.quote(text + "\n")
            if not (yield from reader.ask(rng.choice(openings.QUESTIONS).capitalize(), 40)):
                return dialogues
        yield from reader.answer()
        return [*dialogues, reader.dialogue]

    return interview


def _answered(template: Template, dialogue: Dialogue) -> str:
    start, end = dialogue.answers[0]
    return template.tokenizer.decode(dialogue.tokens[start:end]).strip()


def _answer_temperature(rng: Random) -> float:
    """Mostly greedy, as most texts are asked for; some as the model says; some between."""
    return rng.choices((0.0, 1.0, round(rng.uniform(0.3, 1.0), 2)), (0.6, 0.2, 0.2))[0]


_QUESTION_TEMPERATURES = (0.6, 0.7, 0.8, 0.9, 1.0)
_ANSWER_LENGTHS = (96, 128, 160, LONGEST_ANSWER)
_PASSAGE_LENGTHS = (192, 256, 320, 384)
_PROMPTS = 0.5  # of interviews, while there are any
_SUMMARIES = 0.45  # of what is read, the others are asked about


_KINDS: dict[str, tuple[float, Callable[[str, Random, Template], Interview]]] = {
    "chat": (0.30, _conversation(openings.CHAT, 160, 0.25)),
    "code": (0.06, _conversation(openings.CODE, 160, 0.25)),
    "role": (0.04, _conversation(openings.ROLES, 160, 0.25)),
    "question": (0.12, _conversation(openings.QUESTIONS, 40, 0.05)),
    "sum": (0.14, _sums),
    "translation": (0.12, _translation),
    "news": (0.08, _conversation(openings.NEWS, 420, 0.0)),
    "reading": (0.14, _passages(1)),
    "study": (0.05, _passages(3)),
}
