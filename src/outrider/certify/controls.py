"""Negative controls: a test that passes the honest engine must not pass it with a fault in it.

Each is a test of the certificate, run again with one planted fault, in a setting in which it also ran without.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from outrider.certify import faults
from outrider.certify.draws import DrawsCell, DrawsSetting
from outrider.certify.identity import IdentityCell, IdentitySetting
from outrider.certify.law import LawCell, LawSetting
from outrider.certify.rig import Fault


@dataclass(frozen=True, slots=True)
class Control:
    """A planted fault, and whether the test saw it.

    fault     its name, such as "shared number".
    planted   what was done, in a sentence.
    test      "identity", "law" or "draws".
    caught    whether the test gave a verdict, and it was the right one: a run that broke off shows nothing.
    evidence  what the test saw.
    """

    fault: str
    planted: str
    test: str
    setting: IdentitySetting | LawSetting | DrawsSetting
    caught: bool
    evidence: str


def control(fault: Fault, test: str, cell: IdentityCell | LawCell | DrawsCell) -> Control:
    """What a test's verdict on a faulty engine means."""
    return Control(
        fault=fault.__name__.replace("_", " "),
        planted=(fault.__doc__ or "").rstrip("."),
        test=test,
        setting=cell.setting,
        caught=not cell.holds and not cell.fault,
        evidence=cell.evidence,
    )


LAW: Sequence[tuple[Fault, LawSetting]] = (
    (faults.q_before_filters, LawSetting("rejection", "drawn", "temperature 1")),
    (faults.argmax_as_if_drawn, LawSetting("rejection", "drawn", "temperature 1")),
    (faults.peeking_cut, LawSetting("rejection", "drawn", "temperature 1")),
    (faults.peeking_cut, LawSetting("block", "drawn", "temperature 1")),
    (faults.peeking_policy, LawSetting("rejection", "drawn", "temperature 1", "what pays")),
    (faults.peeking_policy, LawSetting("block", "drawn", "temperature 1", "what pays")),
    (faults.shared_number, LawSetting("rejection", "drawn", "temperature 1")),
    (faults.reused_draws, LawSetting("block", "drawn", "temperature 1")),
    (faults.softmax_residual, LawSetting("rejection", "skewed", "temperature 1")),
    (faults.drawn_from_p, LawSetting("rejection", "skewed", "temperature 1")),
    (faults.penalties_once_a_step, LawSetting("rejection", "one-hot", "bias and penalties")),
    (faults.rows_off_by_one, LawSetting("rejection", "drawn", "temperature 1")),
    (faults.kv_not_rolled_back, LawSetting("rejection", "drawn", "temperature 1")),
    (faults.path_not_moved, LawSetting("rejection", "drawn tree", "temperature 1")),
)
"""Which fault is planted in which test of the law."""

DRAWS: Sequence[tuple[Fault, DrawsSetting]] = (
    (faults.softmax_residual, DrawsSetting("rejection", "drawn")),
    (faults.rows_off_by_one, DrawsSetting("coupled", "one-hot tree")),
)
"""Likewise, on the user's own target."""


def identity(threads: int) -> list[tuple[Fault, IdentitySetting]]:
    """Likewise, in a comparison of texts."""
    return [
        (faults.rows_off_by_one, IdentitySetting("half right", 3, "chain", 8, threads, "chunked", "greedy")),
        (faults.kv_not_rolled_back, IdentitySetting("half right", 5, "chain", 8, threads, "chunked", "greedy")),
        (faults.block_not_copied, IdentitySetting("half right", 3, "chain", 8, threads, "cold and warm", "greedy")),
        (faults.path_not_moved, IdentitySetting("perfect", 8, "tree", 8, threads, "chunked", "greedy")),
        (
            faults.penalties_once_a_step,
            IdentitySetting("perfect", 8, "chain", 8, threads, "chunked", "greedy with penalties"),
        ),
    ]
