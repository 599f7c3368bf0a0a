"""What a request says about drafting: nothing (the policy decides), none at all, one drafter, or a fixed length.

Speculation.parse("auto") / ("off") / ("suffix") / ("4") / ("suffix:4")
"""

from __future__ import annotations

from dataclasses import dataclass

from outrider.errors import RequestError

FORMS = "auto, off, a drafter's name, a number of tokens, or both as in suffix:4"


@dataclass(frozen=True, slots=True)
class Speculation:
    """Which drafter proposes, and how much.

    drafter  its name; None: whichever promises most.
    length   drafted tokens in each step, as far as there is something to propose; None: as many as pay; 0: none.

    With a length policy and drafters obey: they neither cut nor stand aside. Raises RequestError for a negative length.
    """

    drafter: str | None = None
    length: int | None = None

    def __post_init__(self) -> None:
        if self.length is not None and self.length < 0:
            raise RequestError(
                f"speculation={self.length} is not possible; allowed: 0 or more drafted tokens", "speculation"
            )

    def check(self, most: int) -> None:
        """Raises RequestError for a length of more than `most`, as it could not be kept to."""
        if self.length is not None and self.length > most:
            raise RequestError(
                f"speculation={self} is not possible; allowed: at most {most} drafted tokens (max_draft)", "speculation"
            )

    @classmethod
    def parse(cls, text: str) -> Speculation:
        """Reads one of the forms above. Raises RequestError for what is none of them."""
        name, colon, number = text.strip().rpartition(":") if ":" in text else ("", "", text.strip())
        if not colon and number in ("auto", "off"):
            return OFF if number == "off" else AUTO
        if number.isascii() and number.isdigit() and name.isidentifier() == bool(colon):
            return cls(name or None, int(number))
        if number.isidentifier() and not colon:
            return cls(number)
        raise RequestError(f"speculation={text!r} is not possible; allowed: {FORMS}", "speculation")

    def __str__(self) -> str:
        if self.length is None:
            return self.drafter or "auto"
        if self.length == 0:
            return "off"
        return f"{self.drafter}:{self.length}" if self.drafter else str(self.length)


AUTO = Speculation()
OFF = Speculation(length=0)
