"""The files that draft for a model: those that a user names, and those that ship inside this package.

A shipped file lies beside this one, and its metadata say which model file it was made for.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

from outrider.weights import hub
from outrider.weights.followers import FORMAT as TABLE
from outrider.weights.safetensors import SafeTensors

FOLDER = Path(__file__).parent

FOLLOWERS, MODEL = "followers.safetensors", "draft.gguf"
"""What a folder may hold beside, or instead of, an EAGLE-3 head in the official layout."""

_CONFIG = "config.json"
_ENDS = 2**20  # bytes at both ends of a model file: its header, and weights that training would have changed


@dataclass(frozen=True, slots=True)
class Draft:
    """What drafts for a model, beside what needs no files.

    weights    a smaller model, or an EAGLE-3 head.
    followers  a table of followers, for the suffix drafter.
    """

    weights: Path | None = None
    followers: Path | None = None


def find(draft: str | Path | None, target: Path, progress: hub.ProgressCallback | None = None) -> Draft:
    """The files that `draft` means, see `LLM`; what it does not bring is taken from those that ship."""
    own = shipped(target)
    if draft is None:
        return own
    path = hub.expand(draft, "draft")
    if path.is_dir():
        table, model, head = (path / name for name in (FOLLOWERS, MODEL, _CONFIG))
        if not table.is_file():
            return Draft(model if model.is_file() else path, own.followers)
        return Draft(model if model.is_file() else path if head.is_file() else own.weights, table)
    return Draft(path if path.suffix == ".safetensors" else hub.resolve(draft, progress=progress), own.followers)


def shipped(target: Path, folder: Path = FOLDER) -> Draft:
    """Those files in the folder that were made for exactly that model file."""
    found: dict[bool, Path] = {}
    identity: dict[str, str] | None = None
    for path in sorted(folder.glob("*.safetensors")):
        metadata = SafeTensors.open(path).metadata
        identity = identity or made_for(target)
        if identity.items() <= metadata.items():
            found[metadata.get("format") == TABLE] = path
    return Draft(found.get(False), found.get(True))


def made_for(target: Path) -> dict[str, str]:
    """The metadata that say which model file something was made for."""
    size = target.stat().st_size
    digest = hashlib.sha256()
    with target.open("rb") as file:
        digest.update(file.read(_ENDS))
        file.seek(max(file.tell(), size - _ENDS))
        digest.update(file.read())
    return {"target_bytes": str(size), "target_ends_sha256": digest.hexdigest()}
