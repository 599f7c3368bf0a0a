"""What a request has taught about its drafters: all that a decision remembers from one step to the next."""

from __future__ import annotations

from collections.abc import Sequence

from outrider.drafters.base import Drafter, Observation, RequestView
from outrider.policy.alarm import Alarm
from outrider.policy.calibration import Acceptance, Calibration
from outrider.policy.ledger import Ledger
from outrider.types import ROOT, Proposal

_IN_PASSING = 16  # tokens since a drafter was last asked that its first pass reads beside its own
_WINDOW = 16  # steps
_MARGIN = 2  # times what looking up takes: not every token that would have been right is drafted


class Text:
    """What a request has taught about its drafters.

    tokens     prompt and output, as they grow.
    active     the drafters that it may use.
    observers  those that want to know what became of their proposals.
    ledger     what drafting has cost and brought; `prefill` is its own.

    asking, planning  when free drafters are asked, and when the others are planned for: less and less often where that
                      is of no use. Where the request says itself how much is drafted, both are at all times.

    lookup  what asking the free drafters takes, in plain steps.
    """

    def __init__(self, request: RequestView, active: Sequence[Drafter], prefill: float, lookup: float) -> None:
        self.active = list(active)
        self.observers: list[Drafter] = []
        self.ledger = Ledger(prefill)
        self.tokens = request.tokens
        # Who fixes a length, or expects a text, is never left alone.
        self._fixed = request.speculation.length is not None or bool(request.prediction)
        self._planned = [drafter for drafter in active if drafter.cost or drafter.draws]
        self.asking = Alarm(len(self._planned) < len(active))
        self.planning = Alarm(bool(self._planned))
        self._known = request.prompt_length  # tokens of prompt and output that the ledger knows of
        self._calibrations = {id(drafter): Calibration() for drafter in active}
        self._acceptances = {id(drafter): Acceptance(drafter.expected) for drafter in self._planned}
        self._read = {id(drafter): 0 for drafter in active}
        self._spent = 0.0
        self._drafter: Drafter | None = None
        self._heard: list[tuple[Drafter, Proposal]] = []
        self._lookup = lookup
        self._requests = 1
        # Of the steps of late in which free drafters were asked: how often the next token was among what they proposed,
        # and how many plain steps their drafts have saved.
        self._hits, self._gain = 0.5, 1.5 * lookup
        self._row = 0.0  # what one drafted token adds to a step, in the request's share of a plain one
        self._asked = False

    @property
    def due(self) -> float:
        """The length of the text at which there is something to decide."""
        return min(self.asking.due, self.planning.due)

    def wake(self, requests: int) -> None:
        """A decision is made, for a step of so many requests, of which each pays for what is looked up for it.

        Steps since the last one, of which nobody was told, were plain: they had no drafts.
        """
        self._requests = requests
        if (missed := len(self.tokens) - self._known) > 0:
            self.ledger.plain(missed)
            self._known += missed

    def calibration(self, drafter: Drafter) -> Calibration:
        """How far the drafter's estimates can be believed."""
        return self._calibrations[id(drafter)]

    def acceptance(self, drafter: Drafter) -> Acceptance:
        """What to expect of the drafter before it is asked."""
        return self._acceptances[id(drafter)]

    def unread(self, drafter: Drafter, tokens: int) -> int:
        """Tokens of so many that the drafter has to read before it drafts, if it is one that reads, beyond the few that
        it reads in passing."""
        return max(0, tokens - self._read[id(drafter)] - _IN_PASSING)

    def read(self, drafter: Drafter, tokens: int, spent: float) -> None:
        """The drafter reads all that is unread; `spent` in the request's share of a plain step."""
        self._read[id(drafter)] = tokens
        self.ledger.read(spent)

    def asks(self) -> bool:
        """Whether free drafters are to be asked in this step.

        To look things up takes some time, too: where that has brought less of late than it takes, and they are not
        right so often that it will bring more, they are asked less and less often.
        """
        self._asked = len(self.tokens) >= self.asking.due
        return self._asked

    def plans(self) -> bool:
        """Whether the others are to be planned for."""
        return len(self.tokens) >= self.planning.due

    def planned(self, drafter: Drafter | None) -> None:
        """Which of them was chosen in this step."""
        self.planning.set(len(self.tokens) + 1, useless=drafter is None and not self._fixed)

    def hear(self, drafter: Drafter, proposal: Proposal) -> None:
        """A free drafter has proposed this, whatever becomes of it."""
        self._heard.append((drafter, proposal))

    def draft(self, drafter: Drafter, spent: float, row: float) -> None:
        """A proposal of the drafter is on its way, or that part of it which pays.

        spent, row  what that adds to the step, and what one token would, in the request's share of a plain step.
        """
        self._drafter, self._spent, self._row = drafter, spent, row

    def learn(self, observation: Observation) -> None:
        """What came of it. A piece of a prompt commits nothing, and teaches nothing.

        What was proposed but not verified teaches as much: the committed tokens say what of it was right.
        """
        if not observation.committed:
            return
        self.ledger.enter(len(observation.committed), self._spent)
        self._known += len(observation.committed)
        hit = False
        for drafter, proposal in self._heard:
            outcomes = _outcomes(proposal, observation.committed)
            hit = hit or any(right for _, right in outcomes)
            self.calibration(drafter).learn(outcomes)
        self._heard.clear()
        if self._asked:
            self._asked = False
            gain = 0.0 if self._drafter in self._planned else len(observation.path) - self._spent
            lookup = self._lookup * self._requests
            self._hits += (hit - self._hits) / _WINDOW
            self._gain += (gain - self._gain) / _WINDOW
            useless = self._gain < lookup and self._hits < self._row + _MARGIN * lookup
            self.asking.set(len(self.tokens), useless=useless and not self._fixed)
        if self._drafter and (acceptance := self._acceptances.get(id(self._drafter))):
            proposal, path = observation.proposal, (ROOT, *observation.path)
            reached = [node for node, parent in enumerate(proposal.parents) if parent in path]
            self.calibration(self._drafter).learn([(proposal.estimates[node], node in path) for node in reached])
            acceptance.learn(len(path) - 1, refused=any(proposal.parents[node] == path[-1] for node in reached))
        self._drafter, self._spent = None, 0.0


def _outcomes(proposal: Proposal, committed: Sequence[int]) -> list[tuple[float, bool]]:
    """The estimates of the nodes whose turn came, and whether they were right."""
    outcomes = []
    here, turn = ROOT, 0
    for node, parent in enumerate(proposal.parents):
        if parent != here or turn == len(committed):
            continue
        right = proposal.tokens[node] == committed[turn]
        outcomes.append((proposal.estimates[node], right))
        if right:
            here, turn = node, turn + 1
    return outcomes
