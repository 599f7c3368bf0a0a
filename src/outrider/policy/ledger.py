"""What speculation has cost a request and what it has brought, in units of the request's own share of a plain step.

From it follow two numbers: what may still be risked, and how fast the text is written, which is what time is worth.
"""

from __future__ import annotations

BUDGET = 0.025
"""At no time has a request lost more than this share of its plain work to drafts that failed."""

_PREFILL = 4.0
"""Of the prompt, no more plain steps count than this: answers are short, too."""

_COMING = 32.0
"""Reading a text may be paid for in advance out of so many plain steps that are still to come."""

_WINDOW = 24.0
"""Over so many plain steps' time the rate is taken; at first they are taken to have been plain."""


class Ledger:
    """What speculation has cost one request and brought it.

    tokens  committed while decoding.
    steps   taken for them.
    spent   on drafting, in plain steps.
    room    what a step may risk: the steps saved so far and a small part of all, less what was spent.
    rate    tokens written in the time of a plain step of late; 1 to begin with, never below it.
    """

    __slots__ = ("_prefill", "_reading", "_recent", "rate", "room", "spent", "steps", "tokens")

    def __init__(self, prefill: float = 0.0) -> None:
        """prefill: what the prompt took, in plain steps."""
        self._prefill = min(prefill, _PREFILL)
        self._reading = BUDGET * (prefill - self._prefill)
        self._recent = 1.0
        self.tokens = 0
        self.steps = 0
        self.spent = 0.0
        self._add_up()

    def enter(self, tokens: int, spent: float) -> None:
        """A step committed so many tokens, and drafting added so much time to it."""
        self.tokens += tokens
        self.steps += 1
        self.spent += spent
        time = 1 + spent
        self._recent += (tokens - self._recent * time) / (_WINDOW + time)
        self._add_up()

    def plain(self, steps: int) -> None:
        """So many steps had no drafts: as `enter(1, 0)`, each time."""
        self.tokens += steps
        self.steps += steps
        self._recent = 1 + (self._recent - 1) * (_WINDOW / (1 + _WINDOW)) ** steps
        self._add_up()

    def can_read(self, time: float) -> bool:
        """Whether a drafter may take so long to read the text before it drafts; see `read`."""
        return time <= self.room + self._reading + BUDGET * _COMING

    def read(self, time: float) -> None:
        """A drafter did. The target has read the prompt, too: a small part of what that took may be used for this."""
        free = min(time, self._reading)
        self._reading -= free
        self.spent += time - free
        self._add_up()

    def _add_up(self) -> None:
        self.rate = max(1.0, self._recent)
        self.room = self.tokens - self.steps - self.spent + BUDGET * (self.tokens + self._prefill)
