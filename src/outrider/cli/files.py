"""Files that commands write."""

from __future__ import annotations

import os
from pathlib import Path


def check_writable(path: Path) -> None:
    """Raises OSError unless a file can be written there; what is there stays as it is, and nothing new is left."""
    new = not os.path.lexists(path)
    # Permission bits would not tell: not to root, nor for all file systems.
    os.close(os.open(path, os.O_WRONLY | os.O_CREAT, 0o666))
    if new:
        path.unlink()
