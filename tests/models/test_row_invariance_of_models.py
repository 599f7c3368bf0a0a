"""A whole model gives a token the same logits, bit for bit, however it comes to be computed.

Alone or with others, along a chain or a branch of a tree, after a prompt that was cut up in any way, on any threads.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest

from outrider.cache import KVCache, KVSequence
from outrider.models.base import CausalLM
from outrider.types import EMPTY, Proposal
from outrider.weights.gguf import TensorType
from tests.kernels.scenes import TREE
from tests.kernels.workbench import (
    KERNELS,
    Faulty,
    Stretch,
    assert_same_bits,
    fragment,
    lay_out,
    path,
    read,
    run,
    tokens_of,
)
from tests.models.loading import logits, native
from tests.tiny import default_model, tiny_llama

Make = Callable[[int], CausalLM]
"""The model, for a number of threads."""

by_kernels = pytest.mark.parametrize("kernels", KERNELS)


def check_chunks(make: Make, tokens: Sequence[int]) -> None:
    """The same logits one row at a time on one thread, and in chunks of every size on one, two and three."""
    one_by_one = logits(make(1), tokens, 1)
    for threads, sizes in ((1, (7, 32, 33, 100, len(tokens))), (2, (7, 33, len(tokens))), (3, (100,))):
        model = make(threads)
        for size in sizes:
            assert_same_bits(logits(model, tokens, size), one_by_one)


def check_company(
    make: Make,
    vocabulary: int,
    contexts: Sequence[int],
    *,
    threads: Sequence[int] = (1, 2, 3),
    most: Sequence[int] = range(1, 18),
    chunk: int = 10**9,
) -> None:
    """Rows after long texts: any number of one text together, alone, and first and last in a pass with other texts."""
    texts = [tokens_of(n, context + 17, vocabulary) for n, context in enumerate(contexts)]
    model = make(1)
    cache = KVCache(model.kv_shape, 2 * sum(KVCache.blocks_for(len(text)) for text in texts))
    fragment(cache)
    sequences = [KVSequence() for _ in texts]
    expected = []
    for text, sequence in zip(texts, sequences, strict=True):
        read(model, cache, sequence, text[:-17], chunk)
        expected.append(read(model, cache, sequence, text[-17:], 1))
        sequence.length = len(text) - 17
    for model in map(make, threads):
        for n in most:
            counts = [n, *(1 + n // 5 for _ in texts[1:])]
            for order in {(0,), tuple(range(len(texts))), tuple(reversed(range(len(texts))))}:
                stretches = [Stretch(sequences[i], texts[i][-17:][: counts[i]]) for i in order]
                actual = run(model, lay_out(cache, stretches), cache)
                assert_same_bits(actual, np.concatenate([expected[i][: counts[i]] for i in order]))


def check_tree(
    make: Make, vocabulary: int, context: int, *, threads: Sequence[int] = (1, 2, 3), chunk: int = 10**9
) -> None:
    """Every node of a tree, alone and beside a chain, against its path computed row by row."""
    text, nodes, other = (tokens_of(seed, n, vocabulary) for seed, n in ((1, context), (2, len(TREE)), (3, 40)))
    root = [text.pop()]
    proposal = Proposal(tuple(nodes), TREE, "", (1.0,) * len(nodes), (None,) * len(nodes))
    model = make(1)
    cache = KVCache(model.kv_shape, KVCache.blocks_for(context + 20) + 4)
    sequence = KVSequence()
    read(model, cache, sequence, text, chunk)
    expected = []
    for node in range(-1, len(nodes)):
        tokens = root + [nodes[i] for i in path(TREE, node)]
        expected.append(read(model, cache, sequence, tokens, 1)[-1])
        sequence.length = len(text)
        cache.trim(sequence)
    for model in map(make, threads):
        stretch = Stretch(sequence, root)
        alone = run(model, lay_out(cache, [stretch], [proposal]), cache)
        assert_same_bits(alone, np.stack(expected))
        neighbour = Stretch(KVSequence(), other)
        beside = run(model, lay_out(cache, [neighbour, stretch], [EMPTY, proposal]), cache)
        assert_same_bits(beside[len(other) :], np.stack(expected))
        cache.release(neighbour.sequence)


MODELS = [*((kernels, TensorType.Q4_1) for kernels in KERNELS), (KERNELS[-1], TensorType.F16)]

by_model = pytest.mark.parametrize(("kernels", "kind"), MODELS, ids=[f"{k}-{t.name}" for k, t in MODELS])


def tiny(folder: Path, kernels: str, kind: TensorType) -> Make:
    file = tiny_llama(folder / "tiny.gguf", weight_type=kind, embedding_type=TensorType.Q8_0, context=1024)
    return lambda threads: native(file, kernels, threads)


@by_model
def test_a_prompt_may_be_cut_up_in_any_way(kernels: str, kind: TensorType, tmp_path: Path) -> None:
    check_chunks(tiny(tmp_path, kernels, kind), tokens_of(0, 560, 256))


@by_model
def test_rows_may_have_any_company(kernels: str, kind: TensorType, tmp_path: Path) -> None:
    check_company(tiny(tmp_path, kernels, kind), 256, (600, 20, 250))


@pytest.mark.parametrize("context", [1, 27, 250, 530])
@by_kernels
def test_the_branches_of_a_tree_are_chains(kernels: str, context: int, tmp_path: Path) -> None:
    check_tree(tiny(tmp_path, kernels, TensorType.Q4_1), 256, context)


CHECKS: dict[str, Callable[[Make], None]] = {
    "chunks": lambda make: check_chunks(make, tokens_of(0, 120, 256)),
    "company": lambda make: check_company(make, 256, (40, 20)),
    "tree": lambda make: check_tree(make, 256, 40),
}


@pytest.mark.parametrize("check", CHECKS.values(), ids=CHECKS)
def test_one_unit_in_the_last_place_does_not_go_unseen(check: Callable[[Make], None], tmp_path: Path) -> None:
    """Negative control."""
    make = tiny(tmp_path, KERNELS[-1], TensorType.Q4_1)
    check(make)
    with pytest.raises(AssertionError):
        check(lambda threads: Faulty(make(threads), lambda rows: len(rows.tokens) > 1))


FILE = default_model()


@pytest.mark.skipif(FILE is None, reason="needs the default model")
def test_all_this_holds_for_the_default_model() -> None:
    models = {threads: native(FILE, threads=threads) for threads in (1, 2)}
    check_company(models.__getitem__, 49152, (280,), threads=(1, 2), most=(1, 2, 3, 4, 5, 8, 9, 17), chunk=100)
    check_tree(models.__getitem__, 49152, 250, threads=(1, 2), chunk=33)
