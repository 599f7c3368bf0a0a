"""Which drafted tokens are worth their rows: a pure function from gains and costs to lengths.

A drafted token is worth its *gain*, the probability that it is reached and accepted; a row costs time, and time is
worth the tokens that would be written in it. So rows are taken in the order of their gains, over all requests of the
batch, and as many as make gains - worth x time greatest. (With the time's worth at the rate that comes of it, that
maximises tokens per second in the long run: Dinkelbach 1967, "On nonlinear fractional programming".)
"""

from __future__ import annotations

from collections.abc import Sequence


def allocate(
    gains: Sequence[Sequence[float]], rooms: Sequence[float], added: Sequence[float], worth: float
) -> tuple[list[int], list[float]]:
    """How many rows each request gets, and the time that they add to those that were taken before.

    gains   per request, of its drafted tokens in descending order (along a path they descend by themselves).
    rooms   per request, the most time that its rows may add.
    added   added[j] is the time that j rows more than in the plain pass add to it; ascending from added[0] = 0. There
            are no more rows than it knows of.
    worth   tokens that are written in a unit of that time.

        allocate([(0.9, 0.5), (0.7,)], (1, 1), (0, 0.2, 0.4, 1.4), worth=1) == ([1, 1], [0.2, 0.2])
    """
    if len(gains) == 1:  # the common case, and in order already
        order = [(gain, 0) for gain in gains[0]]
    else:
        order = sorted(((gain, -place) for place, each in enumerate(gains) for gain in each), reverse=True)
    counts, times = [0] * len(gains), [0.0] * len(gains)
    best, best_times, best_value = counts[:], times[:], 0.0
    left = list(rooms)
    value, rows, most = 0.0, 0, len(added) - 1
    for gain, place in order:
        if rows == most:
            break
        time = added[rows + 1] - added[rows]
        left[-place] -= time
        if left[-place] < 0:  # nor is there room for what comes after it
            continue
        rows += 1
        counts[-place] += 1
        times[-place] += time
        value += gain - worth * time
        if value > best_value:
            best, best_times, best_value = counts[:], times[:], value
    return best, best_times
