"""What a request has taught about its drafters: all that a decision remembers from one step to the next."""

from __future__ import annotations

from collections.abc import Sequence

from outrider.drafters.base import Drafter, Observation, RequestView
from outrider.kernels._drafting import Calibration, Ledger
from outrider.policy.acceptance import Acceptance
from outrider.policy.alarm import Alarm
from outrider.types import ROOT, Proposal

_IN_PASSING = 16  # tokens since a drafter was last asked that its first pass reads beside its own
_WINDOW = 16  # steps
_PRIOR = 4  # steps that what is believed of a new text counts for
_MARGIN = 2  # times what looking up takes: not every token that would have been right is drafted


class Text:
    """What a request has taught about its drafters.

    tokens     prompt and output, as they grow.
    active     the drafters that it may use.
    observers  those that want to know what became of their proposals.
    ledger     what drafting has cost and brought.
    row        what one drafted token would add to the step, in the request's share of a plain one.
    lookup     what it takes to ask the free drafters, likewise.
    heard      of the free drafters that have proposed something in this step, whatever becomes of it.
    due        the length of the text at which there is something to decide. Free drafters are asked, and the others
               planned for, less and less often where that is of no use; where the request says itself how much is
               drafted, both are at all times.
    """

    __slots__ = (
        "_acceptances", "_asked", "_asking", "_calibrations", "_drafter", "_fixed", "_gain", "_hits", "_known",
        "_planned", "_planning", "_read", "_seen", "_spent", "active", "due", "heard",
        "ledger", "lookup", "observers", "row", "tokens",
    )  # fmt: skip

    def __init__(self, request: RequestView, active: Sequence[Drafter], prefill: float) -> None:
        """prefill: what the prompt took, in plain steps."""
        self.active = list(active)
        self.observers: list[Drafter] = []
        self.ledger = Ledger(prefill)
        self.tokens = request.tokens
        # Who fixes a length, or expects a text, is never left alone.
        self._fixed = request.speculation.length is not None or bool(request.prediction)
        self._planned = [drafter for drafter in active if drafter.cost or drafter.draws]
        self._asking = Alarm(len(self._planned) < len(active))
        self._planning = Alarm(bool(self._planned))
        self.due = min(self._asking.due, self._planning.due)
        self._known = request.prompt_length  # tokens of prompt and output that the ledger knows of
        self._calibrations = {id(drafter): Calibration() for drafter in active}
        self._acceptances = {id(drafter): Acceptance(drafter.expected) for drafter in self._planned}
        self._read = {id(drafter): 0 for drafter in active}
        self._spent = self.row = self.lookup = 0.0
        self._drafter: Drafter | None = None
        self.heard: list[Calibration] = []
        # Of the steps of late in which free drafters were asked: how often the next token was among what they proposed,
        # and how many plain steps their drafts have saved.
        self._hits, self._gain = 1.0, 0.0
        self._seen = _PRIOR
        self._asked = False

    @property
    def eager(self) -> bool:
        """Whether somebody is to be asked as soon as it is due, and not when others are."""
        return self._asking.eager or self._planning.eager

    def wakes(self) -> bool:
        """A decision is made: whether free drafters are to be asked.

        To look things up takes some time, which each request pays for itself: where that has brought less of late than
        it takes, and they are not right so often that it will bring more, they are asked less and less often.

        Steps since the last decision, of which nobody was told, were plain: they had no drafts.
        """
        length = len(self.tokens)
        if length > self._known:
            self.ledger.plain(length - self._known)
            self._known = length
        self._asked = length >= self._asking.due
        return self._asked

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

    def plans(self) -> bool:
        """Whether the others are to be planned for."""
        return len(self.tokens) >= self._planning.due

    def planned(self, drafter: Drafter | None) -> None:
        """Which of them was chosen in this step."""
        self._planning.set(len(self.tokens) + 1, useless=drafter is None and not self._fixed)
        self.due = min(self._asking.due, self._planning.due)

    def draft(self, drafter: Drafter, spent: float) -> None:
        """A proposal of the drafter is on its way, or that part of it which pays.

        spent  what that adds to the step, in the request's share of a plain step.
        """
        self._drafter, self._spent = drafter, spent

    def learn(self, observation: Observation) -> None:
        """What came of it. A piece of a prompt commits nothing, and teaches nothing.

        What was proposed but not verified teaches as much: the committed tokens say what of it was right.
        """
        committed = observation.committed
        if not committed:
            return
        self._known += len(committed)
        self.ledger.enter(len(committed), self._spent)
        hit = False
        for calibration in self.heard:
            hit = calibration.follow(committed) or hit
        self.heard.clear()
        planned = self._drafter in self._planned
        if self._asked:
            self._asked = False
            gain = 0.0 if planned else len(observation.path) - self._spent
            self._seen = min(self._seen + 1, _WINDOW)
            self._hits += (hit - self._hits) / self._seen
            self._gain += (gain - self._gain) / _WINDOW
            # Whoever is always right is asked, if only a row could pay.
            enough = min(self.row + _MARGIN * self.lookup, max(self.row, (1 + self.row) / 2))
            useless = self._gain < self.lookup and self._hits < enough
            self._asking.set(len(self.tokens), useless=useless and not self._fixed)
            self.due = min(self._asking.due, self._planning.due)
        if self._drafter is not None and planned:
            self._judge(self._drafter, observation.proposal, observation.path)
        self._drafter, self._spent = None, 0.0

    def _judge(self, drafter: Drafter, proposal: Proposal, path: tuple[int, ...]) -> None:
        """What was verified of a proposal that was planned."""
        way = (ROOT, *path)
        reached = [node for node, parent in enumerate(proposal.parents) if parent in way]
        self.calibration(drafter).learn([(proposal.estimates[node], node in way) for node in reached])
        refused = any(proposal.parents[node] == way[-1] for node in reached)
        self.acceptance(drafter).learn(len(path), refused=refused)
