"""The pool of blocks."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.cache import BlockPool


def test_the_block_freed_last_is_taken_first():
    pool = BlockPool(4)
    first, second = pool.take(2)
    pool.give_back([first, second])
    assert pool.take(2) == [first, second]


def test_blocks_are_taken_all_or_none():
    pool = BlockPool(3)
    pool.take(1)
    with pytest.raises(RuntimeError, match="3 blocks wanted, 2 of 3 are free"):
        pool.take(3)
    assert pool.free == 2
    pool.check()


def test_a_free_block_cannot_be_freed():
    pool = BlockPool(3)
    blocks = pool.take(2)
    pool.give_back(blocks[:1])
    with pytest.raises(RuntimeError, match="nobody holds it"):
        pool.give_back(blocks[:1])
    pool.check()


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 5))))
def test_no_block_is_lost_or_given_twice(moves):
    pool, mine = BlockPool(8), []
    for taking, count in moves:
        if taking and count <= pool.free:
            mine += pool.take(count)
        elif not taking:
            pool.give_back(mine[:count])
            del mine[:count]
        assert len(set(mine)) == len(mine) == pool.size - pool.free
        pool.check()


@pytest.mark.parametrize("fault", ["listed twice", "free and taken", "lost"])
def test_the_check_finds_a_corrupt_pool(fault):
    """Negative control."""
    pool = BlockPool(3)
    (block,) = pool.take(1)
    match fault:
        case "listed twice":
            pool._free.append(pool._free[0])
        case "free and taken":
            pool._free.append(block)
        case "lost":
            pool._holders[block] = 0
    with pytest.raises(AssertionError):
        pool.check()
