"""The draft heads that ship inside this package: compact files that say which model file they were trained for."""

from __future__ import annotations

import hashlib
from pathlib import Path

from outrider.weights.safetensors import SafeTensors

FOLDER = Path(__file__).parent / "packaged"

TARGET_SIZE, TARGET_HASH = "target_bytes", "target_sha256"
"""The metadata of a compact file that name its target."""


def packaged(target: Path, folder: Path = FOLDER) -> Path | None:
    """The head in the folder that was made for exactly that model file, or None."""
    for path in sorted(folder.glob("*.safetensors")):
        metadata = SafeTensors.open(path).metadata
        if metadata.get(TARGET_SIZE) != str(target.stat().st_size):
            continue
        with target.open("rb") as file:
            if hashlib.file_digest(file, "sha256").hexdigest() == metadata.get(TARGET_HASH):
                return path
    return None
