"""A tiny model, and one certificate of it that several tests read."""

from __future__ import annotations

from itertools import islice

import pytest

from outrider.certify import Extent, certify, controls
from outrider.certify.covering import pairwise
from outrider.llm import LLM
from tests.tiny import tiny_llama

EXTENT = Extent("test", lambda factors: islice(pairwise(factors), 6), bias=0.2, draws=600)
"""So little that it takes seconds."""


@pytest.fixture(scope="session")
def model_path(tmp_path_factory):
    return tiny_llama(tmp_path_factory.mktemp("certify") / "tiny.gguf", seed=1)


@pytest.fixture(scope="session")
def llm(model_path):
    return LLM(model_path, speculation="off", threads=1)


@pytest.fixture(scope="session")
def told():
    """What the certificate told of its progress."""
    return []


@pytest.fixture(scope="session")
def certificate(llm, told):
    """A certificate that holds, with the planted faults that show with so few draws."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(controls, "LAW", controls.LAW[:2])
        return certify(llm, extent=EXTENT, seed=1, threads=1, progress=lambda *news: told.append(news))
