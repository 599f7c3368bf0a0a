"""A model as data: the list of operations of its forward pass, recorded once at load time.

A file in `models/` calls the methods of `Program` in the order of its mathematics. The native executor replays the
list in one call; `kernels/reference.py` interprets the same list in NumPy and is the oracle for every kernel.

A buffer is a float32 matrix with one row per row of the pass, or per *wanted* row (those whose logits are asked for).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from outrider.types import FloatArray
from outrider.weights.weight import Weight


@dataclass(frozen=True, slots=True)
class Buffer:
    """A float32 matrix [rows, width]; `wanted`: it has only the wanted rows."""

    index: int
    width: int
    wanted: bool = False


@dataclass(frozen=True, slots=True)
class Input:
    """out is filled by the caller before each pass."""

    name: str
    out: Buffer


@dataclass(frozen=True, slots=True)
class Embed:
    """out[i] = weight[tokens[i]]."""

    weight: Weight
    out: Buffer


@dataclass(frozen=True, slots=True)
class RMSNorm:
    """out = x / sqrt(mean(x^2) + epsilon) * weight (Zhang and Sennrich 2019, equation 4)."""

    x: Buffer
    weight: FloatArray
    epsilon: float
    out: Buffer


@dataclass(frozen=True, slots=True)
class Linear:
    """out = [x W1^T, x W2^T, ...] side by side, + bias, + residual.

    Where a weight is stored in 4 or 8 bits, x is quantised to int8 per row and group of 32 inputs first.
    """

    x: Buffer
    weights: tuple[Weight, ...]
    bias: FloatArray | None
    residual: Buffer | None
    out: Buffer


@dataclass(frozen=True, slots=True)
class Angles:
    """out[i] = cos(positions[i] * frequencies), then the sines (Su et al. 2021, equation 34)."""

    frequencies: tuple[float, ...]
    out: Buffer


@dataclass(frozen=True, slots=True)
class Rope:
    """The first `heads` heads of x, each pair of lanes rotated by its angle; lanes past the last angle pass through.

    A pair is (2i, 2i + 1) where `interleaved`, otherwise (i, i + number of angles).
    """

    x: Buffer
    angles: Buffer
    heads: int
    head_dim: int
    interleaved: bool
    out: Buffer


@dataclass(frozen=True, slots=True)
class Attention:
    """Stores the rows' keys and values in layer `layer` of the cache, then attends along each row's own path.

    `qk` holds `heads` rotated queries, then `kv_heads` rotated keys; the values are columns `value_column...` of `v`.
    Query head h reads key head h * kv_heads // heads (grouped heads, Ainslie et al. 2023).
    """

    qk: Buffer
    v: Buffer
    value_column: int
    layer: int
    heads: int
    kv_heads: int
    head_dim: int
    scale: float
    out: Buffer


@dataclass(frozen=True, slots=True)
class SwiGLU:
    """out = silu(gate) * up, where gate_up holds the gates, then the ups (Shazeer 2020, equation 6)."""

    gate_up: Buffer
    out: Buffer


@dataclass(frozen=True, slots=True)
class Select:
    """out = the wanted rows of x."""

    x: Buffer
    out: Buffer


Operation = Input | Embed | RMSNorm | Linear | Angles | Rope | Attention | SwiGLU | Select


class Program:
    """Records operations. Each method appends one and returns the buffer that it writes; no buffer is written twice."""

    def __init__(self) -> None:
        self.operations: list[Operation] = []
        self.buffers: list[Buffer] = []
        self.outputs: dict[str, Buffer] = {}

    def _buffer(self, width: int, wanted: bool = False) -> Buffer:
        buffer = Buffer(len(self.buffers), width, wanted)
        self.buffers.append(buffer)
        return buffer

    def input(self, name: str, width: int) -> Buffer:
        """Numbers that the caller brings, a row for each row of the pass."""
        out = self._buffer(width)
        self.operations.append(Input(name, out))
        return out

    def embed(self, weight: Weight) -> Buffer:
        """The embedding of each row's token."""
        out = self._buffer(weight.inputs)
        self.operations.append(Embed(weight, out))
        return out

    def rms_norm(self, x: Buffer, weight: FloatArray, epsilon: float) -> Buffer:
        """Root mean square normalisation; `weight` is [width]."""
        out = self._buffer(x.width, x.wanted)
        self.operations.append(RMSNorm(x, weight, epsilon, out))
        return out

    def linear(
        self, x: Buffer, *weights: Weight, bias: FloatArray | None = None, residual: Buffer | None = None
    ) -> Buffer:
        """x times each weight, side by side; `bias` is as wide as the result, `residual` a buffer of its shape."""
        out = self._buffer(sum(weight.outputs for weight in weights), x.wanted)
        self.operations.append(Linear(x, weights, bias, residual, out))
        return out

    def angles(self, frequencies: Sequence[float]) -> Buffer:
        """Cosines and sines of the rows' positions, in radians per position; computed once for all layers."""
        out = self._buffer(2 * len(frequencies))
        self.operations.append(Angles(tuple(frequencies), out))
        return out

    def rope(self, x: Buffer, angles: Buffer, *, heads: int, head_dim: int, interleaved: bool) -> Buffer:
        """The first `heads` heads of x with their rotary position embedding."""
        out = self._buffer(heads * head_dim)
        self.operations.append(Rope(x, angles, heads, head_dim, interleaved, out))
        return out

    def attention(
        self, qk: Buffer, v: Buffer, *, value_column: int, layer: int, heads: int, kv_heads: int, head_dim: int
    ) -> Buffer:
        """Causal attention with scale 1 / sqrt(head_dim) along each row's path (Vaswani et al. 2017, equation 1)."""
        out = self._buffer(heads * head_dim)
        scale = head_dim**-0.5
        self.operations.append(Attention(qk, v, value_column, layer, heads, kv_heads, head_dim, scale, out))
        return out

    def swiglu(self, gate_up: Buffer) -> Buffer:
        """The gated activation of the feed-forward layer; half as wide as its input."""
        out = self._buffer(gate_up.width // 2, gate_up.wanted)
        self.operations.append(SwiGLU(gate_up, out))
        return out

    def select(self, x: Buffer) -> Buffer:
        """Only the wanted rows of x."""
        out = self._buffer(x.width, wanted=True)
        self.operations.append(Select(x, out))
        return out

    def output(self, name: str, buffer: Buffer) -> None:
        """Names a buffer that the caller of the program reads after a pass."""
        self.outputs[name] = buffer
