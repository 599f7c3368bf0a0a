"""The native runtime: a program handed over to the C++ executor once, then replayed call by call.

    model = NativeModel(program, context_length=8192, kv_shape=shape, threads=2)
    output = model.forward(rows, cache)

The kernels of the best instruction set that the processor has are taken; OUTRIDER_KERNELS names others
("plain", "avx2", "avx512vnni"), for comparing them.
"""

from __future__ import annotations

import os

import numpy as np

from outrider.cache import KVCache
from outrider.errors import RequestError
from outrider.kernels import _native
from outrider.kernels.threads import checked_threads, default_threads
from outrider.models.base import KVShape
from outrider.program import (
    Angles,
    Attention,
    Buffer,
    Embed,
    Linear,
    Operation,
    Program,
    RMSNorm,
    Rope,
    Select,
    SwiGLU,
)
from outrider.types import Output, Rows
from outrider.weights.weight import Weight


class NativeModel:
    """A `CausalLM` on the native kernels. The program must have an output "logits"; outputs "tap.N" become taps."""

    def __init__(
        self,
        program: Program,
        *,
        context_length: int,
        kv_shape: KVShape,
        threads: int | None = None,
        kernels: str | None = None,
    ) -> None:
        """Pack the weights and lower the program.

        threads  of the team that runs each pass; None: see `default_threads`.
        kernels  the instruction set; None: OUTRIDER_KERNELS, or else the best that the processor has.
        """
        self.context_length = context_length
        self.kv_shape = kv_shape
        self.threads = default_threads() if threads is None else checked_threads(threads)
        self.kernels = choose_kernels(kernels)
        self.vocabulary_size = program.outputs["logits"].width
        self._executor = _native.Executor(_native.Team(self.threads), self.kernels)
        lowering = _Lowering(self._executor)
        buffers = lowering.lower(program)
        self._logits = buffers["logits"]
        self._taps = {int(name.removeprefix("tap.")): i for name, i in buffers.items() if name != "logits"}
        self._weights = list(lowering.packed.values())  # the executor points into them

    @property
    def weight_bytes(self) -> int:
        """Bytes of all packed weights."""
        return sum(weight.bytes for weight in self._weights)

    def forward(self, rows: Rows, cache: KVCache) -> Output:
        """One pass over all rows; the arrays of the result are views that the next pass overwrites."""
        self._executor.run(
            rows.tokens,
            rows.positions,
            rows.slots,
            rows.requests,
            rows.tables,
            rows.tail_starts,
            rows.tail_offsets,
            rows.tail_slots,
            rows.wanted,
            cache.keys,
            cache.values,
        )
        logits = self._executor.output(self._logits, len(rows.wanted))
        taps = {layer: self._executor.output(i, len(rows.tokens)) for layer, i in self._taps.items()}
        return Output(logits, taps)

    def profile(self, on: bool) -> None:
        """Start afresh, or stop, to measure the time of each operation; see `profiled`."""
        self._executor.profile(on)

    def profiled(self) -> list[tuple[str, float]]:
        """Name and seconds of each operation of the program, over all passes since `profile(True)`.

        A time includes waiting for the slower threads of the operation before.
        """
        return self._executor.profiled()


def choose_kernels(name: str | None = None) -> str:
    """That instruction set, or else OUTRIDER_KERNELS, or else the best; RequestError if the processor lacks it."""
    name = name or os.environ.get("OUTRIDER_KERNELS") or _native.best_kernels()
    if not _native.can_run(name):
        usable = ", ".join(k for k in ("plain", "avx2", "avx512vnni") if _native.can_run(k))
        raise RequestError(f"kernels {name!r} cannot run on this processor, expected one of {usable}")
    return name


class _Lowering:
    """From a program to calls of the executor; memory of buffers that nobody reads any more is used again."""

    def __init__(self, executor: _native.Executor) -> None:
        self.executor = executor
        self.arena = _native.Arena()
        self.packed: dict[str, _native.PackedWeight] = {}
        self.places: dict[int, int] = {}  # program buffer -> executor buffer
        self.free: list[tuple[Buffer, int]] = []
        self.released: list[tuple[Buffer, int]] = []  # free for use after the next linear layer or attention

    def lower(self, program: Program) -> dict[str, int]:
        """Hand over all operations; the executor's buffer of each output, by name."""
        last_use: dict[int, int] = {}
        for at, operation in enumerate(program.operations):
            for buffer in _reads(operation):
                last_use[buffer.index] = at
        kept = {buffer.index for buffer in program.outputs.values()}
        for at, operation in enumerate(program.operations):
            if isinstance(operation, Linear | Attention):
                # All threads meet before these, so what was read before them may be overwritten from here on.
                self.free += self.released
                self.released.clear()
            self._emit(operation)
            for buffer in _reads(operation):
                if last_use[buffer.index] == at and buffer.index not in kept:
                    self.released.append((buffer, self.places[buffer.index]))
                    last_use[buffer.index] = -1
        return {name: self.places[buffer.index] for name, buffer in program.outputs.items()}

    def _place(self, buffer: Buffer) -> int:
        """Memory for a buffer that is about to be written."""
        shape = (buffer.width, buffer.wanted)
        found = next((i for i, (old, _) in enumerate(self.free) if (old.width, old.wanted) == shape), None)
        place = self.executor.buffer(*shape) if found is None else self.free.pop(found)[1]
        self.places[buffer.index] = place
        return place

    def _pack(self, weight: Weight) -> _native.PackedWeight:
        if weight.name not in self.packed:
            raw = np.ascontiguousarray(weight.raw)
            packed = _native.PackedWeight(self.arena, weight.type.name, raw, weight.outputs, weight.inputs)
            self.packed[weight.name] = packed
        return self.packed[weight.name]

    def _emit(self, operation: Operation) -> None:
        executor, at = self.executor, self.places
        match operation:
            case Embed(weight, out):
                executor.embed(self._pack(weight), self._place(out))
            case RMSNorm(x, norm, epsilon, out):
                executor.rms_norm(at[x.index], norm.tolist(), epsilon, self._place(out))
            case Linear(x, weights, bias, residual, out):
                packed = [self._pack(weight) for weight in weights]
                values = [] if bias is None else bias.tolist()
                added = -1 if residual is None else at[residual.index]
                executor.linear(at[x.index], packed, values, added, self._place(out))
            case Angles(frequencies, out):
                executor.angles(list(frequencies), self._place(out))
            case Rope(x, angles, heads, head_dim, interleaved, out):
                place = self._place(out)
                executor.rope(at[x.index], at[angles.index], heads, head_dim, interleaved, place)
            case Attention(qk, v, column, layer, heads, kv_heads, head_dim, scale, out):
                place = self._place(out)
                executor.attention(at[qk.index], at[v.index], column, layer, heads, kv_heads, head_dim, scale, place)
            case SwiGLU(gate_up, out):
                executor.swiglu(at[gate_up.index], self._place(out))
            case Select(x, out):
                executor.select(at[x.index], self._place(out))


def _reads(operation: Operation) -> list[Buffer]:
    """The buffers that an operation reads."""
    match operation:
        case Embed() | Angles():
            return []
        case Linear(x, _, _, residual, _):
            return [x] if residual is None else [x, residual]
        case Rope(x, angles):
            return [x, angles]
        case Attention(qk, v):
            return [qk, v]
        case SwiGLU(x) | RMSNorm(x) | Select(x):
            return [x]
