"""Small programs on the native kernels and on the reference, and the rows that they run on.

A program's inputs are float tables that it embeds: row i of a pass with token t reads row t of each table.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import gguf
import numpy as np
import numpy.typing as npt

from outrider.cache import BLOCK, KVCache, KVSequence
from outrider.kernels import _native
from outrider.kernels.native import NativeModel
from outrider.kernels.reference import ReferenceModel
from outrider.models.base import CausalLM, KVShape
from outrider.program import Buffer, Program
from outrider.types import EMPTY, FloatArray, Output, Proposal, Rows
from outrider.weights.gguf import TensorType
from outrider.weights.weight import Weight

KERNELS = tuple(name for name in ("plain", "avx2", "avx512vnni") if _native.can_run(name))
QUANTISED = (TensorType.Q4_0, TensorType.Q4_1, TensorType.Q8_0)
TYPES = (*QUANTISED, TensorType.F16, TensorType.BF16, TensorType.F32)
NO_CACHE = KVShape(layers=1, heads=1, head_dim=16)

Build = Callable[[Program], Buffer]


def random(seed: int, *shape: int) -> FloatArray:
    """Standard normal numbers."""
    return np.random.default_rng(seed).standard_normal(shape, np.float32)


def weight(name: str, values: FloatArray, kind: TensorType = TensorType.F32) -> Weight:
    """A matrix in the blocks of a type, quantised by the `gguf` package."""
    raw = gguf.quants.quantize(values, gguf.GGMLQuantizationType(kind)).view(np.uint8).reshape(-1)
    return Weight(name, kind, *values.shape, raw)


def four_bit_weight(name: str, kind: TensorType, codes: npt.NDArray[np.integer], halves: Sequence[float]) -> Weight:
    """A Q4_0 or Q4_1 matrix of these codes, 0 to 15, all groups with the same scale (and minimum)."""
    groups = codes.astype(np.uint8).reshape(-1, 32)
    head = np.broadcast_to(np.array(halves, np.float16).view(np.uint8), (len(groups), 2 * len(halves)))
    raw = np.concatenate([head, groups[:, :16] | groups[:, 16:] << 4], axis=1)
    return Weight(name, kind, *codes.shape, np.ascontiguousarray(raw).reshape(-1))


def eight_bit_weight(name: str, codes: npt.NDArray[np.integer], scale: float) -> Weight:
    """A Q8_0 matrix of these codes, -128 to 127, all groups with the same scale."""
    groups = codes.astype(np.int8).view(np.uint8).reshape(-1, 32)
    head = np.broadcast_to(np.array([scale], np.float16).view(np.uint8), (len(groups), 2))
    raw = np.concatenate([head, groups], axis=1)
    return Weight(name, TensorType.Q8_0, *codes.shape, np.ascontiguousarray(raw).reshape(-1))


def record(build: Build) -> Program:
    """A program with the one output "logits"."""
    program = Program()
    program.output("logits", build(program))
    return program


def native(program: Program, kernels: str, threads: int = 1, shape: KVShape = NO_CACHE) -> NativeModel:
    return NativeModel(program, context_length=4096, kv_shape=shape, threads=threads, kernels=kernels)


def reference(program: Program, shape: KVShape = NO_CACHE, *, quantise_activations: bool = True) -> ReferenceModel:
    return ReferenceModel(program, context_length=4096, kv_shape=shape, quantise_activations=quantise_activations)


def run(model: CausalLM, rows: Rows, cache: KVCache | None = None) -> FloatArray:
    """The wanted rows' logits, copied, since the next pass overwrites them."""
    return model.forward(rows, cache or KVCache(NO_CACHE, 8)).logits.copy()


def plain_rows(tokens: Sequence[int], positions: Sequence[int] | None = None) -> Rows:
    """Rows of a program without attention, all wanted; positions count from 0 unless given."""
    n = len(tokens)
    places = np.arange(n) if positions is None else np.array(positions)
    return Rows(
        tokens=np.array(tokens, np.int32),
        positions=places.astype(np.int32),
        slots=np.arange(n, dtype=np.int32),
        requests=np.zeros(n, np.int32),
        tables=np.zeros((1, int(places.max()) // BLOCK + 1), np.int32),
        tail_starts=(places + 1).astype(np.int32),
        tail_offsets=np.zeros(n + 1, np.int32),
        tail_slots=np.zeros(0, np.int32),
        wanted=np.arange(n, dtype=np.int32),
    )


@dataclass
class Stretch:
    """What a sequence brings to a pass, as `KVCache.reserve` wants it."""

    sequence: KVSequence
    tokens: Sequence[int]
    wanted: bool = True


def lay_out(cache: KVCache, stretches: Sequence[Stretch], proposals: Sequence[Proposal] | None = None) -> Rows:
    """The rows of a pass, every one of them wanted."""
    rows = cache.reserve(stretches, proposals or [EMPTY] * len(stretches))
    return replace(rows, wanted=np.arange(len(rows.tokens), dtype=np.int32))


def fragment(cache: KVCache, seed: int = 0) -> None:
    """From here on the pool hands out its blocks in random order."""
    blocks = cache.pool.take(cache.pool.free)
    cache.pool.give_back([int(block) for block in np.random.default_rng(seed).permutation(blocks)])


def chunks(tokens: Sequence[int], size: int) -> list[Sequence[int]]:
    return [tokens[i : i + size] for i in range(0, len(tokens), size)]


def read(model: CausalLM, cache: KVCache, sequence: KVSequence, tokens: Sequence[int], size: int = 10**9) -> FloatArray:
    """Compute and commit tokens, `size` at a time; the logits of all of them."""
    logits = [np.zeros((0, model.vocabulary_size), np.float32)]
    for chunk in chunks(tokens, size):
        logits.append(run(model, lay_out(cache, [Stretch(sequence, chunk)]), cache))
        cache.commit(sequence, sequence.length + len(chunk), ())
    return np.concatenate(logits)


class Faulty:
    """A model one of whose numbers is off by one unit in the last place where `fault` says so of a pass."""

    def __init__(self, model: CausalLM, fault: Callable[[Rows], bool]) -> None:
        self.vocabulary_size, self.context_length = model.vocabulary_size, model.context_length
        self.kv_shape = model.kv_shape
        self._model = model
        self._fault = fault

    def forward(self, rows: Rows, cache: KVCache) -> Output:
        output = self._model.forward(rows, cache)
        if not self._fault(rows):
            return output
        logits = output.logits.copy()
        logits[0, -1] = np.nextafter(logits[0, -1], np.float32(np.inf))
        return replace(output, logits=logits)


def path(parents: Sequence[int], node: int) -> list[int]:
    """The nodes from the root to a node, itself included."""
    return [] if node < 0 else [*path(parents, parents[node]), node]


def bits(values: FloatArray) -> npt.NDArray[np.uint32]:
    return np.ascontiguousarray(values).view(np.uint32)


def assert_same_bits(actual: FloatArray, expected: FloatArray) -> None:
    np.testing.assert_array_equal(bits(actual), bits(expected))


def tokens_of(seed: int, count: int, vocabulary: int) -> list[int]:
    generator = np.random.default_rng(seed)
    return [int(token) for token in generator.integers(0, vocabulary, count)]
