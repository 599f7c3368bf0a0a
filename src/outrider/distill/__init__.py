"""Making a draft for one's own target: `begin(settings)` is the whole of `outrider distill`.

    interview, filters, corpus      what the target says: dialogues with itself
    followers, tabulate             counting it: a table of followers
    target, features                what the target computes meanwhile: hidden states and most probable tokens, on disk
    batches, student, loss, train   learning from that; `head` and `draft` are the two kinds of student
    evaluate, export, run           measuring and writing a student; all its stages
    stages, clock, workplace, speed, report   what both have

Students need PyTorch and gguf, the extra `outrider[distill]`; a table does not.
"""

from __future__ import annotations

from outrider.distill.stages import KINDS, Distilling, Progress, Settings
from outrider.errors import OutriderError, RequestError

__all__ = ["KINDS", "Distilling", "Progress", "Settings", "begin"]


def begin(settings: Settings) -> Distilling:
    """A distillation of the kind that is asked for.

    Raises RequestError for settings that are not possible, OutriderError if something is not installed.
    """
    if settings.kind not in KINDS:
        raise RequestError(f"kind={settings.kind!r} is not possible; allowed: {', '.join(KINDS)}")
    if settings.start is not None and settings.kind != "eagle":
        raise RequestError(f"start={settings.start} is not possible with kind={settings.kind!r}; only with 'eagle'")
    if settings.prompts and settings.corpus is not None:
        raise RequestError(f"prompts are for the interview, which corpus={settings.corpus} replaces; give one of them")
    if settings.kind == "followers":
        from outrider.distill.tabulate import Tabulation

        return Tabulation(settings)
    try:
        from outrider.distill.run import Distillation
    except ModuleNotFoundError as error:
        raise OutriderError(
            f"outrider distill --kind {settings.kind} needs {error.name}: pip install 'outrider[distill]'"
        ) from error
    return Distillation(settings)
