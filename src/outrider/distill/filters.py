"""What is kept of a self-interview: no duplicates, no degenerate loops, nothing that is also in a text kept aside."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

OVERLAP = 13
"""Words in a row that count as a copy (Brown et al. 2020, GPT-3, appendix C)."""

_WINDOW = 6
_DISTINCT = 0.35


class Filter:
    """Remembers what was kept, and says whether a dialogue is to be kept, too.

    aside  texts that must not be in the corpus, such as the prompts of a benchmark.
    """

    def __init__(self, aside: Iterable[str] = ()) -> None:
        self._aside = {gram for text in aside for gram in _word_grams(text)}
        self._seen: set[str] = set()

    def remember(self, questions: Iterable[str]) -> None:
        """Questions of dialogues that are kept."""
        self._seen.update(map(_normalised, questions))

    def knows(self, question: str) -> bool:
        """Whether this question was asked before, but for spaces and capital letters."""
        return _normalised(question) in self._seen

    def keeps(self, text: str, questions: Sequence[str], answers: Sequence[Sequence[int]]) -> bool:
        """Whether a dialogue of this text, these questions and answers (token ids) is new, sound and no copy."""
        if any(map(self.knows, questions)):
            return False
        if any(map(degenerate, answers)) or (self._aside and not self._aside.isdisjoint(_word_grams(text))):
            return False
        self.remember(questions)
        return True


def degenerate(tokens: Sequence[int]) -> bool:
    """Whether a text goes round in circles: few of its runs of six tokens are new. Mild repetition is not."""
    runs = [tuple(tokens[i : i + _WINDOW]) for i in range(len(tokens) - _WINDOW + 1)]
    return bool(runs) and len(set(runs)) < _DISTINCT * len(runs)


def _word_grams(text: str) -> set[tuple[str, ...]]:
    words = text.lower().split()
    return {tuple(words[i : i + OVERLAP]) for i in range(len(words) - OVERLAP + 1)}


def _normalised(text: str) -> str:
    return " ".join(text.lower().split())
