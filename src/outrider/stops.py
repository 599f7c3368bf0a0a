"""Stop strings. All text of a request goes out through one queue, which keeps back what may turn out to be a stop."""

from __future__ import annotations

from collections.abc import Sequence


class StopMatcher:
    """Finds the first stop string in a text that comes in pieces, and lets out all that is certainly before it.

    First is the one that ends first, and of those that end together the longest, so the cut depends on the text
    alone and not on where its pieces begin.

        matcher = StopMatcher(["of them"])
        matcher.push("three of")   # "three ", since "of" may go on to be the stop
        matcher.push(" th")        # ""
        matcher.push("is")         # "of this"
    """

    __slots__ = ("_held", "_longest", "_stops", "stopped")

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = tuple(stops)
        self._longest = max(map(len, self._stops), default=0)
        self._held = ""
        self.stopped = False

    def push(self, text: str) -> str:
        """Take in text; return what may go out. Sets `stopped` when a stop string is complete; push no more then."""
        if not self._stops:
            return text
        text = self._held + text
        found = [(at + len(stop), at) for stop in self._stops if (at := text.find(stop)) >= 0]
        if found:
            self.stopped = True
            self._held = ""
            return text[: min(found)[1]]
        certain = len(text) - self._begun(text)
        self._held = text[certain:]
        return text[:certain]

    def flush(self) -> str:
        """What is still held back: the text is over, and no stop came of it."""
        held, self._held = self._held, ""
        return held

    def _begun(self, text: str) -> int:
        """Length of the longest end of `text` that is the beginning of a stop string."""
        for length in range(min(self._longest - 1, len(text)), 0, -1):
            if any(stop.startswith(text[-length:]) for stop in self._stops):
                return length
        return 0
