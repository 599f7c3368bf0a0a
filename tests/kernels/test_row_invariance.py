"""The bits of a row depend on its own path alone: not on the other rows of the pass, nor on their number and order,
nor on other requests, on the threads, on how a prompt is cut up, or on where and in what shape the path is stored.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from outrider.models.base import CausalLM, KVShape
from outrider.program import Program
from outrider.types import Rows
from outrider.weights.gguf import TensorType
from tests.kernels.operations import CASES, ROWS, Case, linear
from tests.kernels.scenes import TREE, Heads, Text, attend, one_by_one
from tests.kernels.workbench import KERNELS, NO_CACHE, Faulty, assert_same_bits, native, plain_rows, record, run

by_kernels = pytest.mark.parametrize("kernels", KERNELS)

ALL = np.arange(ROWS)
POSITIONS = 40 * ALL


def check_operation(make: Callable[[int], CausalLM]) -> None:
    """`make` gives the model for a number of threads. One row at a time and one thread is what all else must equal."""
    rng = np.random.default_rng(0)
    model = make(1)
    alone = np.concatenate([run(model, plain_rows([row], [POSITIONS[row]])) for row in ALL])
    for threads in (1, 2, 3):
        model = make(threads)
        for n in range(2, ROWS + 1):
            for rows in (ALL[:n], rng.permutation(ALL)[:n]):
                assert_same_bits(run(model, plain_rows(rows, POSITIONS[rows])), alone[rows])


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
@by_kernels
def test_operations_compute_each_row_alike(kernels: str, case: Case) -> None:
    program = record(case.build)
    check_operation(lambda threads: native(program, kernels, threads))


SHAPES = (Heads(3, 1, 64), Heads(4, 4, 16), Heads(9, 3, 64), Heads(4, 2, 80), Heads(8, 2, 128))
"""With one thread and 1 to 3 key heads, a single row's segments are computed apart; in larger passes, together."""

CHAIN = tuple(range(1, 38))
CONTEXTS = (0, 20, 250, 600)
OTHERS = (Text(8, 400, (50, 51)), Text(9, 3, (52, 53, 54, 55, 56, 57, 58), TREE[:6]))


def check_chain(make: Callable[[int], CausalLM], context: int) -> None:
    text = Text(0, context, CHAIN)
    alone = one_by_one(make(1), text)
    for threads in (1, 2, 3):
        model = make(threads)
        assert_same_bits(attend(model, [text])[0], alone)
        assert_same_bits(attend(model, [text], fragmented=False)[0], alone)
        assert_same_bits(attend(model, [OTHERS[0], text, OTHERS[1]])[1], alone)
        for n in (1, 2, 3, 5, 9, 17):
            assert_same_bits(attend(model, [text.path(n - 1)])[0], alone[:n])
            assert_same_bits(attend(model, [text.path(n - 1), *OTHERS])[0], alone[:n])


@pytest.mark.parametrize("context", CONTEXTS)
@pytest.mark.parametrize("heads", SHAPES, ids=str)
@by_kernels
def test_attention_along_a_chain(kernels: str, heads: Heads, context: int) -> None:
    check_chain(lambda threads: native(heads.program(), kernels, threads, heads.cache), context)


def check_tree(make: Callable[[int], CausalLM], context: int) -> None:
    text = Text(0, context, tuple(range(10, 19)), TREE)
    alone = [one_by_one(make(1), text.path(row))[-1] for row in range(len(text.tokens))]
    for threads in (1, 2, 3):
        model = make(threads)
        for texts in ([text], [text, *OTHERS], [OTHERS[1], text]):
            assert_same_bits(attend(model, texts)[texts.index(text)], np.stack(alone))


@pytest.mark.parametrize("context", [0, 26, 250, 508])
@pytest.mark.parametrize("heads", SHAPES, ids=str)
@by_kernels
def test_attention_along_the_branches_of_a_tree(kernels: str, heads: Heads, context: int) -> None:
    check_tree(lambda threads: native(heads.program(), kernels, threads, heads.cache), context)


@pytest.mark.parametrize("heads", [Heads(2, 1, 16), Heads(6, 2, 16), Heads(3, 1, 64)], ids=str)
@by_kernels
def test_a_quantised_layer_after_attention(kernels: str, heads: Heads) -> None:
    program = heads.program(projection=TensorType.Q4_1)
    for check in (check_chain, check_tree):
        for context in (20, 600):
            check(lambda threads: native(program, kernels, threads, heads.cache), context)


def several_rows(rows: Rows) -> bool:
    return len(rows.tokens) == ROWS


def several_requests(rows: Rows) -> bool:
    return len(rows.tables) > 1


def one_row(rows: Rows) -> bool:
    return len(rows.tokens) == 1


def faulty(program: Program, shape: KVShape, fault: Callable[[Rows], bool]) -> Callable[[int], CausalLM]:
    return lambda threads: Faulty(native(program, KERNELS[-1], threads, shape), fault)


@pytest.mark.parametrize("fault", [several_rows, one_row])
def test_a_fault_in_the_last_place_of_an_operation_is_seen(fault: Callable[[Rows], bool]) -> None:
    """Negative control."""
    with pytest.raises(AssertionError):
        check_operation(faulty(record(linear(TensorType.Q4_1, 35).build), NO_CACHE, fault))


@pytest.mark.parametrize("check", [check_chain, check_tree])
@pytest.mark.parametrize("fault", [several_requests, one_row])
def test_a_fault_in_the_last_place_of_attention_is_seen(
    check: Callable[..., None], fault: Callable[[Rows], bool]
) -> None:
    """Negative control."""
    with pytest.raises(AssertionError):
        check(faulty(SHAPES[0].program(), SHAPES[0].cache, fault), 250)
