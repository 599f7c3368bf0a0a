"""The file name is the registry of drafters."""

from __future__ import annotations

import pytest

from outrider.drafters import available, create
from outrider.drafters.ngram import NgramDrafter
from outrider.errors import RequestError


def test_drafters_are_found_by_file_name_and_made_anew() -> None:
    assert available() == ["grammar", "ngram", "prediction", "suffix"]
    assert isinstance(create("ngram"), NgramDrafter)
    assert create("ngram") is not create("ngram")
    assert [create(name).name for name in available()] == available()


@pytest.mark.parametrize("name", ["eagle9", "base", "model", "", "ngram.NgramIndex"])
def test_an_unknown_drafter_names_those_that_exist(name: str) -> None:
    with pytest.raises(RequestError, match="available: grammar, ngram, prediction, suffix"):
        create(name)
