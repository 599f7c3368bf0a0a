"""The default model's tokenizer, from OUTRIDER_TEST_MODEL or from the cache (fetched if need be)."""

from __future__ import annotations

import os
from collections.abc import Mapping

import pytest

from outrider.errors import FetchError
from outrider.tokenizer import Tokenizer
from outrider.weights import hub
from outrider.weights.gguf import GGUF


@pytest.fixture(scope="session")
def default_metadata() -> Mapping[str, object]:
    try:
        path = hub.resolve(os.environ.get("OUTRIDER_TEST_MODEL", "smollm2"))
    except FetchError as error:
        pytest.skip(
            f"the default model is neither in OUTRIDER_TEST_MODEL nor in the cache, nor can it be fetched: {error}"
        )
    return GGUF.open(path).metadata


@pytest.fixture(scope="session")
def default_tokenizer(default_metadata: Mapping[str, object]) -> Tokenizer:
    return Tokenizer.from_metadata(default_metadata, "smollm2")
