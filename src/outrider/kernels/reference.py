"""A program in NumPy float32, operation by operation: the oracle for every kernel and every model. Slow and plain.

    model = ReferenceModel(program, context_length=..., kv_shape=..., quantise_activations=True)

With `quantise_activations` the inputs of 4- and 8-bit weights are rounded to int8 as the kernels do, so that both agree
up to the rounding of float sums; without, it is the model that the file describes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType

import numpy as np
import numpy.typing as npt

from outrider.cache import BLOCK, KVCache, key_places, value_places
from outrider.models.base import KVShape
from outrider.program import (
    Angles,
    Attention,
    Embed,
    Input,
    Linear,
    Operation,
    Program,
    RMSNorm,
    Rope,
    Select,
    SwiGLU,
)
from outrider.types import FloatArray, IntArray, Output, Rows
from outrider.weights.gguf import TensorType
from outrider.weights.weight import Weight

GROUP = 32
SMALLEST = np.float32(1e-36)
"""A group of numbers no larger than this counts as zero: 127 / magnitude must be finite."""
QUANTISED = frozenset({TensorType.Q4_0, TensorType.Q4_1, TensorType.Q8_0})


class ReferenceProgram:
    """Interprets a program in NumPy."""

    def __init__(self, program: Program, *, quantise_activations: bool = True) -> None:
        self.program = program
        self.quantise_activations = quantise_activations
        self._floats: dict[Weight, FloatArray] = {}
        self._last: dict[str, FloatArray] = {}

    def run(
        self, rows: Rows, cache: KVCache, inputs: Mapping[str, FloatArray] = MappingProxyType({})
    ) -> dict[str, FloatArray]:
        """One pass over all rows: the outputs by name; `inputs` as for `NativeProgram.run`."""
        values: dict[int, FloatArray] = {}
        for operation in self.program.operations:
            values[operation.out.index] = self._compute(operation, values, rows, cache, inputs)
        self._last = {name: values[buffer.index] for name, buffer in self.program.outputs.items()}
        return self._last

    def draft(self, rows: Rows, cache: KVCache, ids: IntArray) -> list[tuple[list[int], list[float]]]:
        """Greedy chains as by `NativeProgram.draft`, one after another."""
        chains: list[tuple[list[int], list[float]]] = []
        for number, (logits, hidden) in enumerate(zip(self._last["logits"], self._last["hidden"], strict=True)):
            tokens, chances = [], []
            places = np.flatnonzero(rows.requests == number)
            for place in [*places, None]:
                best = int(logits.argmax())
                if not np.isfinite(logits[best]):
                    break
                tokens.append(int(ids[best]))
                chances.append(1 / float(np.exp(logits.astype(np.float64) - logits[best]).sum()))
                if place is not None:
                    row = _only(rows, place, tokens[-1])
                    output = self.run(row, cache, {"hidden": hidden[np.newaxis]})
                    logits, hidden = output["logits"][0], output["hidden"][0]
            chains.append((tokens, chances))
        return chains

    def _compute(
        self,
        operation: Operation,
        values: dict[int, FloatArray],
        rows: Rows,
        cache: KVCache,
        inputs: Mapping[str, FloatArray],
    ) -> FloatArray:
        match operation:
            case Input(name):
                return inputs[name]
            case Embed(weight):
                return self._matrix(weight)[rows.tokens]
            case RMSNorm(x, norm, epsilon):
                a = values[x.index]
                mean = np.mean(a * a, axis=1, keepdims=True, dtype=np.float32)
                return (a / np.sqrt(mean + np.float32(epsilon)) * norm).astype(np.float32)
            case Linear(x, weights, bias, residual):
                a = values[x.index]
                parts = []
                for weight in weights:
                    rounded = self.quantise_activations and weight.type in QUANTISED
                    b = quantise(a) if rounded else a
                    parts.append(b @ self._matrix(weight).T)
                y = np.concatenate(parts, axis=1)
                y = y if bias is None else y + bias
                return y if residual is None else y + values[residual.index]
            case Angles(frequencies):
                angle = rows.positions[:, None].astype(np.float64) * np.array(frequencies)
                return np.concatenate([np.cos(angle), np.sin(angle)], axis=1).astype(np.float32)
            case Rope(x, angles, heads, head_dim, interleaved):
                return rotate(values[x.index], values[angles.index], heads, head_dim, interleaved)
            case Attention():
                return attend(operation, values[operation.qk.index], values[operation.v.index], rows, cache)
            case SwiGLU(gate_up):
                gate, up = np.split(values[gate_up.index], 2, axis=1)
                with np.errstate(over="ignore"):  # of great negative gates nothing is left
                    return (gate / (np.float32(1) + np.exp(-gate)) * up).astype(np.float32)
            case Select(x):
                return values[x.index][rows.wanted]

    def _matrix(self, weight: Weight) -> FloatArray:
        if weight not in self._floats:
            self._floats[weight] = weight.floats()
        return self._floats[weight]


def _only(rows: Rows, place: int, token: int) -> Rows:
    """A pass of one of the rows, with that token."""
    one, none = np.zeros(1, np.int32), np.zeros(2, np.int32)
    at = slice(place, place + 1)
    return replace(
        rows,
        tokens=one + token,
        positions=rows.positions[at],
        slots=rows.slots[at],
        requests=rows.requests[at],
        tail_starts=rows.tail_starts[at],
        tail_offsets=none,
        tail_slots=one[:0],
        wanted=one,
    )


class ReferenceModel(ReferenceProgram):
    """A `CausalLM` that interprets its program in NumPy."""

    def __init__(
        self, program: Program, *, context_length: int, kv_shape: KVShape, quantise_activations: bool = True
    ) -> None:
        super().__init__(program, quantise_activations=quantise_activations)
        self.context_length = context_length
        self.kv_shape = kv_shape
        self.vocabulary_size = program.outputs["logits"].width

    def forward(self, rows: Rows, cache: KVCache) -> Output:
        """One pass over all rows."""
        outputs = self.run(rows, cache)
        logits = outputs.pop("logits")
        return Output(logits, {int(name.removeprefix("tap.")): value for name, value in outputs.items()})


def quantise(x: FloatArray) -> FloatArray:
    """x rounded to 255 levels per row and group of 32, symmetric about zero: what the int8 codes stand for."""
    groups = x.reshape(len(x), -1, GROUP)
    magnitude = np.abs(groups).max(axis=2, keepdims=True)
    inverse = np.divide(np.float32(127), magnitude, out=np.zeros_like(magnitude), where=magnitude > SMALLEST)
    # Without the last two bits of its mantissa: see native/kernels.h.
    scale = ((magnitude / np.float32(127)).view(np.uint32) & ~np.uint32(3)).view(np.float32)
    rounded: FloatArray = np.rint(groups * inverse) * scale
    return rounded.reshape(x.shape)


def rotate(x: FloatArray, angles: FloatArray, heads: int, head_dim: int, interleaved: bool) -> FloatArray:
    """The first `heads` heads of x [rows, width], rotated by angles [rows, cosines then sines]."""
    half = angles.shape[1] // 2
    cos, sin = angles[:, None, :half], angles[:, None, half:]
    a = x[:, : heads * head_dim].reshape(len(x), heads, head_dim)
    if interleaved:
        first, second = slice(0, 2 * half, 2), slice(1, 2 * half, 2)
    else:
        first, second = slice(half), slice(half, 2 * half)
    out = a.copy()
    out[:, :, first] = a[:, :, first] * cos - a[:, :, second] * sin
    out[:, :, second] = a[:, :, first] * sin + a[:, :, second] * cos
    return out.reshape(len(x), heads * head_dim)


def path_slots(rows: Rows, row: int) -> list[int]:
    """The KV slots that a row reads, position by position, its own last."""
    table = rows.tables[rows.requests[row]]
    stored = min(rows.positions[row] + 1, rows.tail_starts[row])
    slots = [int(table[p // BLOCK]) * BLOCK + p % BLOCK for p in range(stored)]
    tail = rows.tail_slots[rows.tail_offsets[row] : rows.tail_offsets[row + 1]]
    return slots + [int(slot) for slot in tail[: rows.positions[row] + 1 - stored]]


def attend(operation: Attention, qk: FloatArray, v: FloatArray, rows: Rows, cache: KVCache) -> FloatArray:
    """Writes the rows' keys and values into the cache (rounded), then softmax attention along each row's path.

    Queries are rounded like keys, the weights of each chunk of 32 positions, times the scales of the values, likewise.
    All that comes before is computed as in the kernels, so that a number at the edge of two codes falls to one side.
    """
    layer, heads, kv_heads, head_dim = operation.layer, operation.heads, operation.kv_heads, operation.head_dim
    new_keys = qk[:, heads * head_dim :].reshape(-1, kv_heads, head_dim)
    new_values = v[:, operation.value_column :][:, : kv_heads * head_dim].reshape(-1, kv_heads, head_dim)
    store(cache, layer, rows.slots, new_keys, new_values)
    codes, scales = encode(qk[:, : heads * head_dim].reshape(-1, heads, head_dim), largest_code(head_dim))
    queries = codes.reshape(-1, kv_heads, heads // kv_heads, head_dim).astype(np.float64)
    scales = (np.float32(operation.scale) * LOG2_E * scales).reshape(queries.shape[:-1])
    out = np.empty((len(qk), heads * head_dim), np.float32)
    for row in range(len(qk)):
        k_codes, k_scales, v_codes, v_scales = load(cache, layer, np.array(path_slots(rows, row)))
        products = np.einsum("kgd,tkd->kgt", queries[row], k_codes).astype(np.float32)  # whole numbers: exact
        weights, total = weigh(products * k_scales.T[:, None], scales[row], v_scales.T[:, None])
        out[row] = (np.einsum("kgt,tkd->kgd", weights, v_codes) / total[..., None]).reshape(-1)
    return out


def weigh(scores: FloatArray, units: FloatArray, scales: FloatArray) -> tuple[FloatArray, FloatArray]:
    """2^(units (scores - maximum)) [..., positions] times the scales of the values, rounded; their sums without scales.

    A weight of a chunk of 32 positions is a multiple of a 16,383rd of the largest there may be in the chunk.
    """
    maximum = scores.max(axis=-1)
    weights, total = np.empty_like(scores), np.zeros_like(maximum)
    for start in range(0, scores.shape[-1], BLOCK):
        chunk = slice(start, start + BLOCK)
        top = scores[..., chunk].max(axis=-1)
        share = exp2((top - maximum) * units)
        p = exp2((scores[..., chunk] - top[..., None]) * units[..., None])
        greatest = scales[..., chunk].max(axis=-1, keepdims=True)
        inverse = np.divide(LARGEST_WEIGHT, greatest, out=np.zeros_like(greatest), where=~(greatest <= NOTHING))
        codes = np.rint(p * (scales[..., chunk] * inverse))
        weights[..., chunk] = codes * (greatest / LARGEST_WEIGHT) * share[..., None]
        total += p.sum(axis=-1) * share
    return weights, total


def exp2(x: FloatArray) -> FloatArray:
    """2^x for x <= 0, to the bit as kernels with fused multiply-adds compute it (but for one in 2^29 roundings)."""
    x = np.maximum(x, np.float32(-126))
    whole = np.rint(x)
    rest = (x - whole).astype(np.float64)
    p = np.full_like(x, EXP2[0])
    for coefficient in EXP2[1:]:
        p = (p * rest + coefficient).astype(np.float32)
    return p * np.exp2(whole)


EXP2 = np.array(
    [
        1.326472731307149e-3,
        9.671512991189957e-3,
        5.550733581185341e-2,
        2.4022242426872253e-1,
        6.931470036506653e-1,
        1,
    ],
    np.float32,
)
LOG2_E = np.float32(1.44269504)
LARGEST_WEIGHT = np.float32(16383)
NOTHING = np.float32(1e-30)
"""A vector no larger counts as zero: its inverse times the largest code must be finite."""
LARGEST_VALUE = 4095


def largest_code(head_dim: int) -> int:
    """Of queries and keys: head_dim products of two such codes fit in 32 bits."""
    return math.isqrt((2**31 - 1) // head_dim)


def encode(x: FloatArray, largest: int) -> tuple[npt.NDArray[np.int16], FloatArray]:
    """Codes of vectors [..., head_dim], of at most `largest` in magnitude, and a scale for each vector."""
    magnitude = np.abs(x).max(axis=-1)
    inverse = np.divide(np.float32(largest), magnitude, out=np.zeros_like(magnitude), where=~(magnitude <= NOTHING))
    codes = np.nan_to_num(np.rint(x * inverse[..., None])).astype(np.int16)
    return codes, magnitude / np.float32(largest)


def store(cache: KVCache, layer: int, slots: IntArray, keys: FloatArray, values: FloatArray) -> None:
    """Write keys and values [slots, kv_heads, head_dim] into a layer of the cache."""
    codes, key_scales = encode(keys, largest_code(keys.shape[-1]))
    value_codes, value_scales = encode(values, LARGEST_VALUE)
    at = slice(layer, layer + 1)
    cache.keys[at][key_places(slots)] = codes.view(np.int32)[:, None]
    cache.values[at][value_places(slots)] = value_codes[:, None]
    cache.scales[at][key_places(slots)] = np.stack([key_scales, value_scales], axis=-1)[:, None]


def load(cache: KVCache, layer: int, slots: IntArray) -> tuple[FloatArray, FloatArray, FloatArray, FloatArray]:
    """Codes of keys [slots, kv_heads, head_dim] and their scales [slots, kv_heads], then those of values."""
    at = slice(layer, layer + 1)
    keys = np.ascontiguousarray(cache.keys[at][key_places(slots)][:, 0]).view(np.int16)
    values = cache.values[at][value_places(slots)][:, 0]
    scales = cache.scales[at][key_places(slots)][:, 0]
    return keys.astype(np.float64), scales[..., 0], values.astype(np.float32), scales[..., 1]
