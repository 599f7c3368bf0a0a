"""`outrider chat`: a conversation in the terminal."""

from __future__ import annotations

import re
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from outrider.cli import display
from outrider.cli.options import ModelOptions, SamplingOptions, flag, grouped
from outrider.errors import OutriderError

if TYPE_CHECKING:
    from outrider.llm import LLM
    from outrider.sampling import SamplingParams
    from outrider.tokenizer import Message

EXAMPLES = """[bold]Examples[/bold]

outrider chat

outrider chat --system "Answer in one sentence." -t 0.8 --show-drafts
"""

HELP = """/reset   start a new conversation
/exit    leave, as does Ctrl-D
/help    show this
Ctrl-C   stop the answer; what was written of it stays in the conversation"""


@grouped
def chat(
    *,
    system: Annotated[str | None, flag("A system message to put first.", metavar="TEXT")] = None,
    show_drafts: Annotated[bool, flag("Colour what was drafted and accepted.", "--show-drafts")] = False,
    model: ModelOptions,
    sampling: SamplingOptions,
) -> None:
    """Chat with the model. /help shows what can be typed beside messages."""
    if show_drafts and model.speculation == "off":
        raise typer.BadParameter("--show-drafts needs --speculation")
    if show_drafts and not display.can_show_drafts():
        raise typer.BadParameter("--show-drafts needs a terminal as stdout; FORCE_COLOR=1 colours anyway")
    params = sampling.params()
    llm = model.load()
    display.note(f"{llm.name}, {llm.context_length} tokens of context, speculation {llm.speculation}. /help for help.")
    if show_drafts:
        display.legend()
    _converse(Conversation(llm, params, system, show_drafts))


class Conversation:
    """The messages so far, and the way to the next answer."""

    def __init__(self, llm: LLM, params: SamplingParams, system: str | None, show_drafts: bool) -> None:
        self._llm = llm
        self._params = params
        self._show_drafts = show_drafts
        self._opening: list[Message] = [] if system is None else [{"role": "system", "content": system}]
        self.reset()

    def reset(self) -> None:
        """Forget all but the system message."""
        self.messages: list[Message] = list(self._opening)

    def say(self, text: str) -> None:
        """Put the user's message and print the answer; both are kept unless there is no answer at all."""
        from outrider.cli.interrupt import cancelling
        from outrider.llm import completion

        messages: list[Message] = [*self.messages, {"role": "user", "content": text}]
        llm = self._llm
        prompt = llm.encode(messages)
        if len(prompt) >= llm.context_length:
            display.note(
                f"The context is full: the conversation has {len(prompt)} tokens, and {llm.context_length} is all that "
                "the model can see. Your message was not sent; /reset starts a new conversation."
            )
            return
        request = llm.request(prompt, self._params)
        with cancelling(llm, [request]), display.Answer(show_drafts=self._show_drafts) as answer:
            for emitted in llm.run([request]):
                answer.add(emitted)
        done = completion(request)
        if done.error:
            display.report(done.error)
            return
        display.note(display.figures(done, llm))
        if done.text or done.finish_reason != "cancelled":
            self.messages = [*messages, {"role": "assistant", "content": done.text}]


def _converse(conversation: Conversation) -> None:
    """Read and answer until the user leaves."""
    interactive = sys.stdin.isatty() and sys.stdout.isatty()
    if interactive:
        import readline  # noqa: F401  # gives input() its line editing
    while True:
        try:
            line = input(">>> " if interactive else "").strip()
            if line == "/exit":
                return
            if line:
                _obey(line, conversation)
        except EOFError:
            if interactive:
                print()
            return
        except KeyboardInterrupt:
            print()
            display.note("Ctrl-D or /exit leaves.")
        except OutriderError as error:
            display.report(error)


def _obey(line: str, conversation: Conversation) -> None:
    if line == "/reset":
        conversation.reset()
        display.note("A new conversation.")
    elif line == "/help":
        display.note(HELP)
    elif re.fullmatch(r"/\w+", line):
        display.note(f"There is no {line}; /help shows what there is.")
    else:
        conversation.say(line)
