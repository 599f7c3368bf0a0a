"""The file name is the registry of acceptance rules."""

from __future__ import annotations

import pytest

from outrider.errors import RequestError
from outrider.verify import available, greedy, rule


def test_rules_are_found_by_file_name() -> None:
    assert available() == ["coupled", "greedy", "rejection"]
    assert rule("greedy") is greedy.verify


@pytest.mark.parametrize("name", ["block", "base", "", "../greedy"])
def test_an_unknown_rule_names_those_that_exist(name: str) -> None:
    with pytest.raises(RequestError, match="coupled, greedy, rejection"):
        rule(name)
