"""What `native/drafting.cpp` does, by brute force: occurrences are found by looking at the whole text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

ORDERS, OCCURRENCES, LONGEST, CHOICES, LEAST = (4, 2, 1), 16, 16, 3, 0.01
AGREED, ALONE, DISPUTED, RUNNER_UP = 1.0, 0.85, 0.7, 0.6

Occurrence = tuple[Sequence[int], int, int]  # a text, the position after the occurrence, how many tokens match
Table = Mapping[tuple[int, ...], Sequence[tuple[int, float]]]


def common(a: Sequence[int], b: Sequence[int]) -> int:
    """Equal tokens at the ends."""
    length = 0
    while length < min(len(a), len(b), LONGEST) and a[-1 - length] == b[-1 - length]:
        length += 1
    return length


def occurrences(text: Sequence[int], suffix: Sequence[int]) -> list[Occurrence]:
    """Of the longest n-gram that something follows, the latest first."""
    for n in ORDERS:
        if n > len(suffix):
            continue
        ends = [end for end in range(len(text), n - 1, -1) if list(text[end - n : end]) == list(suffix[-n:])]
        followed = [end for end in ends[:OCCURRENCES] if end < len(text) and text[end] >= 0]
        if followed:
            return [(text, end, common(text[:end], suffix)) for end in followed]
    return []


def choices(found: Sequence[Occurrence], table: Table, suffix: Sequence[int]) -> list[tuple[int, float]]:
    """The next tokens and their estimates, likeliest first."""
    longest = max((match for _, _, match in found), default=0)
    votes: dict[int, float] = {}
    for text, at, match in found:
        votes[text[at]] = votes.get(text[at], 0.0) + 2.0 ** (match - longest)
    silence = 3 * longest**-1.5 if found else 1.0
    total = silence + sum(votes.values())
    first = DISPUTED if len(votes) > 1 else ALONE if len(found) == 1 else AGREED
    best = sorted(votes, key=lambda token: -votes[token])[:CHOICES]
    estimates = {token: votes[token] * ((first if token == best[0] else RUNNER_UP) / total) for token in best}
    known = [table[key] for n in (3, 2, 1) if n <= len(suffix) and (key := tuple(suffix[-n:])) in table]
    for token, chance in known[0] if known else ():
        estimates[token] = estimates.get(token, 0.0) + chance * silence / total
    return sorted(estimates.items(), key=lambda choice: -choice[1])


def tree(
    own: Sequence[int],
    count: int,
    past: Sequence[Sequence[int]] = (),
    table: Table | None = None,
    odds: float = 1.0,
) -> list[tuple[int, int, float]]:
    """(token, parent, estimate) of each node."""
    nodes: list[tuple[int, int, float]] = []
    ways: list[tuple[float, list[int], list[Occurrence]]] = []
    candidates: list[tuple[float, int, int, float]] = []  # gain, token, parent, estimate

    def look(parent: int, gain: float, suffix: list[int], found: list[Occurrence]) -> list[Occurrence]:
        if not found:
            found = [each for text in (own, *past) for each in occurrences(text, suffix)]
        for token, chance in choices(found, table or {}, suffix):
            estimate = odds * chance / (1 - chance + odds * chance)
            if gain * estimate >= LEAST:
                candidates.append((gain * estimate, token, parent, estimate))
        return found

    first = list(own[-LONGEST:])
    root = look(-1, 1.0, first, [])
    while candidates and len(nodes) < count:
        best = max(candidates, key=lambda candidate: candidate[0])
        candidates.remove(best)
        gain, token, parent, estimate = best
        nodes.append((token, parent, estimate))
        _, before, found = ways[parent] if parent >= 0 else (1.0, first, root)
        suffix = [*before, token]
        follow = [
            (text, at + 1, match + 1)
            for text, at, match in found
            if text[at] == token and at + 1 < len(text) and text[at + 1] >= 0
        ]
        ways.append((gain, suffix, follow))
        if len(nodes) < count:
            ways[-1] = gain, suffix, look(len(nodes) - 1, gain, suffix, follow)
    return nodes
