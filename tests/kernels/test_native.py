"""The native runtime: which kernels and threads it takes, and what may go on at the same time."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from outrider.cache import KVCache, KVSequence
from outrider.errors import RequestError
from outrider.kernels import _native
from outrider.kernels.native import NativeModel
from outrider.types import FloatArray
from outrider.weights.gguf import TensorType
from tests.kernels.operations import linear
from tests.kernels.workbench import (
    KERNELS,
    NO_CACHE,
    Stretch,
    assert_same_bits,
    lay_out,
    native,
    random,
    read,
    record,
    run,
    tokens_of,
    weight,
)
from tests.models import loading
from tests.tiny import tiny_llama

PROGRAM = record(linear(TensorType.Q4_0, 16).build)


def made(*, threads: int | None = 1, kernels: str | None = None) -> NativeModel:
    return NativeModel(PROGRAM, context_length=1, kv_shape=NO_CACHE, threads=threads, kernels=kernels)


def test_the_best_kernels_are_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OUTRIDER_KERNELS", raising=False)
    assert made().kernels == _native.best_kernels() == KERNELS[-1]


@pytest.mark.parametrize("kernels", KERNELS)
def test_others_can_be_named(kernels: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OUTRIDER_KERNELS", kernels)
    assert made().kernels == kernels
    monkeypatch.setenv("OUTRIDER_KERNELS", "unheard of")
    assert made(kernels=kernels).kernels == kernels


@pytest.mark.parametrize("name", ["avx9", "AVX2", "", " plain"])
def test_unknown_kernels_are_refused(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert not _native.can_run(name)
    with pytest.raises(ValueError, match="no kernels named"):
        _native.Executor(_native.Team(1), name)
    if name:
        with pytest.raises(RequestError, match=f"kernels '{name}' cannot run on this processor, expected one of plain"):
            made(kernels=name)
        monkeypatch.setenv("OUTRIDER_KERNELS", name)
        with pytest.raises(RequestError, match=name):
            made()


def test_threads_are_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    for threads in (0, -1, 1025):
        with pytest.raises(RequestError, match=f"threads is {threads}"):
            made(threads=threads)
    monkeypatch.setenv("OUTRIDER_THREADS", "3")
    assert made(threads=None).threads == 3
    assert made(threads=2).threads == 2


def test_packed_weights_are_counted_once() -> None:
    """In whole tiles of 16 outputs and whole cache lines; a group of 32 inputs has 16 bytes of codes and a scale."""
    matrix = weight("w", random(0, 33, 96), TensorType.Q4_0)
    table = weight("x", random(1, 16, 96))
    program = record(lambda p: p.linear(p.linear(p.embed(table), weight("v", random(2, 96, 96))), matrix, matrix))
    assert native(program, "plain").weight_bytes == 48 * 3 * 18 + 16 * 96 * 4 + 96 * 96 * 4


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("models")
    return [
        tiny_llama(folder / f"{seed}.gguf", seed=seed, weight_type=kind, embedding_type=TensorType.Q8_0)
        for seed, kind in enumerate((TensorType.Q4_0, TensorType.Q4_1))
    ]


def generate(model: NativeModel, seed: int) -> FloatArray:
    """Prompts of many lengths, then single rows."""
    cache = KVCache(model.kv_shape, 8)
    parts = []
    for length in range(1, 40):
        sequence = KVSequence()
        parts.append(read(model, cache, sequence, tokens_of(seed + length, length, 256)))
        parts.append(read(model, cache, sequence, tokens_of(seed, 3, 256), 1))
        cache.release(sequence)
    return np.concatenate(parts)


@pytest.mark.parametrize("kernels", KERNELS)
def test_more_threads_than_processors_compute_the_same(kernels: str, files: list[Path]) -> None:
    tokens = tokens_of(0, 50, 256)
    expected = loading.logits(loading.native(files[1], kernels), tokens, 9)
    for threads in (4, 8):
        assert_same_bits(loading.logits(loading.native(files[1], kernels, threads), tokens, 9), expected)


@pytest.mark.parametrize("threads", [1, 2])
def test_models_in_several_python_threads_do_not_disturb_each_other(threads: int, files: list[Path]) -> None:
    expected = [generate(loading.native(file), seed) for seed, file in enumerate(files)]
    models = [loading.native(file, threads=threads) for file in files]
    with ThreadPoolExecutor(2) as pool:
        for logits, alone in zip(pool.map(generate, models, range(2)), expected, strict=True):
            assert_same_bits(logits, alone)


def test_other_python_threads_run_during_a_pass() -> None:
    """If the pass held the interpreter's lock, the main thread would not tick until it is over."""
    matrix = weight("w", random(0, 512, 512), TensorType.F32)
    x = record(lambda p: p.linear(p.embed(weight("x", random(1, 64, 512))), matrix))
    model, cache = native(x, "plain"), KVCache(NO_CACHE, 256)
    rows = lay_out(cache, [Stretch(KVSequence(), [n % 64 for n in range(8192)])])
    started, over = threading.Event(), threading.Event()

    def work() -> None:
        started.set()
        run(model, rows, cache)
        over.set()

    thread = threading.Thread(target=work)
    thread.start()
    started.wait()
    ticks = 0
    while not over.is_set():
        time.sleep(0.001)
        ticks += 1
    thread.join()
    assert ticks > 20


def test_models_come_and_go(files: list[Path]) -> None:
    """Also one whose threads never ran, and one that was just now at work."""
    for threads in (1, 2, 5):
        for _ in range(5):
            loading.native(files[0], threads=threads)
            loading.logits(loading.native(files[0], threads=threads), [1, 2, 3])


def test_passes_of_all_sizes_may_follow_each_other(files: list[Path]) -> None:
    """Memory grows with the largest pass so far, and what a larger one left behind is not read."""
    model = loading.native(files[0], threads=2)
    tokens = tokens_of(0, 70, 256)
    expected = loading.logits(loading.native(files[0]), tokens, 1)
    for size in (1, 70, 3, 33, 2, 64, 70):
        assert_same_bits(loading.logits(model, tokens, size), expected)
