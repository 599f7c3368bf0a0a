"""Covering arrays: few combinations of factors' values in which every pair of values occurs.

Most faults need two things to come together, and few need three (Kuhn et al. 2004, IEEE TSE 30): so a quick
certificate runs these combinations, and a full one all.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations, product

Factors = Mapping[str, Sequence[object]]
Combination = dict[str, object]


def every(factors: Factors) -> Iterator[Combination]:
    """All combinations of the factors' values."""
    for values in product(*factors.values()):
        yield dict(zip(factors, values, strict=True))


def pairwise(factors: Factors) -> Iterator[Combination]:
    """Combinations in which each two values of two factors meet at least once; the same for the same factors.

    Greedy, as AETG (Cohen et al. 1997): each combination starts with a pair that has not met, and takes, factor by
    factor, the value that meets most values of those taken so far for the first time.
    """
    places = [list(range(len(values))) for values in factors.values()]
    left = {
        (a, x, b, y): None for a, b in combinations(range(len(places)), 2) for x in places[a] for y in places[b]
    }  # a dict, since the order of a set is not the same in each run
    if len(places) < 2:
        yield from every(factors)
        return
    use = [[0] * len(values) for values in places]
    while left:
        a, x, b, y = next(iter(left))
        chosen = {a: x, b: y}
        for factor in sorted(set(range(len(places))) - chosen.keys(), key=lambda f: -len(places[f])):
            # Of equally good values, the one used least, so that all are used about equally often.
            chosen[factor] = max(
                places[factor],
                key=lambda value: (
                    sum(_pair(factor, value, f, v) in left for f, v in chosen.items()),
                    -use[factor][value],
                ),
            )
        for (f, v), (g, w) in combinations(chosen.items(), 2):
            left.pop(_pair(f, v, g, w), None)
        for f, v in chosen.items():
            use[f][v] += 1
        yield {name: values[chosen[f]] for f, (name, values) in enumerate(factors.items())}


def _pair(f: int, v: int, g: int, w: int) -> tuple[int, int, int, int]:
    return (f, v, g, w) if f < g else (g, w, f, v)
