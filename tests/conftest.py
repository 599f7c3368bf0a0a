"""What all tests share: no property test has a time limit, and in CI they try the same examples each time; measured
costs are not stored among the user's own.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from hypothesis import settings

settings.register_profile("default", deadline=None)
settings.register_profile("ci", deadline=None, derandomize=True)
settings.load_profile("ci" if os.environ.get("CI") else "default")


@pytest.fixture(autouse=True, scope="session")
def own_costs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A place of their own for costs."""
    place = tmp_path_factory.mktemp("costs")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("outrider.policy.store.folder", lambda: place)
        yield
