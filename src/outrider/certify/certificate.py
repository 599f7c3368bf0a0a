"""What a certificate says: every figure of every check, and whether all of them hold."""

from __future__ import annotations

import hashlib
import platform
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from outrider import machine
from outrider.certify.controls import Control
from outrider.certify.draws import DrawsCell
from outrider.certify.identity import IdentityCell
from outrider.certify.law import LawCell


@dataclass(frozen=True, slots=True)
class ModelFile:
    """The file of the model that was certified. sha256: of the whole file, hexadecimal."""

    name: str
    bytes: int
    sha256: str

    @classmethod
    def read(cls, path: Path) -> ModelFile:
        """Hash a file."""
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256")
        return cls(path.name, path.stat().st_size, digest.hexdigest())


@dataclass(frozen=True, slots=True)
class Machine:
    """Where it was certified. A row's bits depend on the kernels, and on nothing else of this.

    processors  how many this process may use.
    kernels     the instruction set of the native kernels.
    threads     those that were compared.
    """

    system: str
    processor: str
    processors: int
    kernels: str
    threads: tuple[int, ...]
    outrider: str
    python: str
    numpy: str

    @classmethod
    def this(cls, kernels: str, threads: tuple[int, ...]) -> Machine:
        """The machine that runs this."""
        return cls(
            system=f"{platform.system()} {platform.machine()}",
            processor=machine.processor(),
            processors=machine.processors(),
            kernels=kernels,
            threads=threads,
            outrider=machine.version(),
            python=platform.python_version(),
            numpy=np.__version__,
        )


@dataclass(frozen=True, slots=True)
class Certificate:
    """The result of `certify`.

    draft     what drafts with weights of its own ("": nothing does).
    extent    "quick" or "full".
    seed      the same seed on the same machine gives the same figures.
    level     of each statistical test, so that all of them together give a false alarm once in a million certificates.
    identity  comparisons of texts with plain decoding on the model.
    law       counts of all texts of a tiny vocabulary against their probabilities.
    draws     counts of the model's own draws against its probabilities.
    controls  the same tests with planted faults.
    seconds   that it took.
    """

    model: ModelFile
    draft: str
    machine: Machine
    extent: str
    seed: int
    level: float
    identity: tuple[IdentityCell, ...]
    law: tuple[LawCell, ...]
    draws: tuple[DrawsCell, ...]
    controls: tuple[Control, ...]
    seconds: float

    @property
    def holds(self) -> bool:
        """Whether every check passed, and every planted fault was caught."""
        return (
            all(cell.holds for cell in self.identity)
            and all(cell.holds for cell in self.law)
            and all(cell.holds for cell in self.draws)
            and all(control.caught for control in self.controls)
        )
