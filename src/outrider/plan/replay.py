"""What becomes of a drafter's tokens along a text that is known already: no model takes part.

It holds for drafters that see nothing but the text and choose without chance: greedy and coupled texts are the same
whatever is drafted, and under the other rules a token is accepted with the probability that the text goes on with it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from outrider.drafters.base import Drafter, DraftRequest, RequestView
from outrider.plan.forecast import Steps
from outrider.sampling import SamplingParams
from outrider.speculation import Speculation
from outrider.types import EMPTY, ROOT, Proposal


def replay(
    drafter: Drafter, texts: Iterable[tuple[Sequence[int], Sequence[int]]], k: int, params: SamplingParams
) -> Steps:
    """The steps that texts (prompt, output) take with k tokens asked for in each, after the first token.

    params  by which they were written.
    """
    outcomes: Counter[tuple[int, int]] = Counter()
    for number, (prompt, output) in enumerate(texts):
        tokens = [*prompt, *output[:1]]
        drafter.begin(RequestView(id=number, tokens=tokens, prompt_length=len(prompt)))
        place = 1
        while place < len(output):
            most = min(k, len(output) - place - 1)
            request = DraftRequest(
                id=number,
                tokens=tokens,
                prompt_length=len(prompt),
                most=most,
                speculation=Speculation(length=k),
                params=params,
            )
            proposal = drafter.propose([request])[0] if most else EMPTY
            right = _right(proposal, output[place:])
            outcomes[len(proposal), right] += 1
            tokens += output[place : place + right + 1]
            place += right + 1
        drafter.end(number)
    return Steps(k, outcomes)


def _right(proposal: Proposal, text: Sequence[int]) -> int:
    """How many tokens of the text are on a path of the proposal."""
    here, right = ROOT, 0
    for node, (token, parent) in enumerate(zip(proposal.tokens, proposal.parents, strict=True)):
        if parent == here and token == text[right]:
            here, right = node, right + 1
    return right
