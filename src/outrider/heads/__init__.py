"""EAGLE-3 draft heads: reading and writing their files (`checkpoint`), and running them (`model`).

    head = checkpoint.load("eagle-folder")
    model = DraftHead.beside(target, recorded.embedding, head)

Li et al. 2025, arXiv 2503.01840: one decoder layer that reads the target's hidden states and the next token.
"""

from __future__ import annotations

from outrider.heads.checkpoint import Head, load
from outrider.heads.config import EMBEDDING, FUSER, HeadConfig
from outrider.heads.model import DraftHead, tap_layers

__all__ = ["EMBEDDING", "FUSER", "DraftHead", "Head", "HeadConfig", "load", "tap_layers"]
