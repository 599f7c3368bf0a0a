"""The native runtime: a program handed over to the C++ executor once, then replayed call by call.

    model = NativeModel(program, context_length=8192, kv_shape=shape, threads=2)
    output = model.forward(rows, cache)

The kernels of the best instruction set that the processor has are taken; OUTRIDER_KERNELS names others
("plain", "avx2", "avx512vnni"), for comparing them.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from types import MappingProxyType

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
from outrider.weights.weight import Weight

MAXIMUM = 32
"""Logits that share a maximum in `Output.maxima`."""

_KEPT = 256  # sizes of passes


class NativeProgram:
    """A program on the native kernels: `run` computes its outputs for the rows of one pass."""

    def __init__(
        self,
        program: Program,
        *,
        threads: int | None = None,
        kernels: str | None = None,
        beside: NativeProgram | None = None,
    ) -> None:
        """Pack the weights and lower the program.

        threads  of the team that runs each pass; None: see `default_threads`.
        kernels  the instruction set; None: OUTRIDER_KERNELS, or else the best that the processor has.
        beside   a program that never runs at the same time: its threads and kernels, and the packed form of weights
                 that both use, serve this one too.
        """
        if beside is None:
            self.threads = default_threads() if threads is None else checked_threads(threads)
            self.kernels = choose_kernels(kernels)
            self._team, self._arena = _native.Team(self.threads), _native.Arena()
            self._packed: dict[Weight, _native.PackedWeight] = {}
        else:
            self.threads, self.kernels = beside.threads, beside.kernels
            self._team, self._arena, self._packed = beside._team, beside._arena, dict(beside._packed)
        self._executor = _native.Executor(self._team, self.kernels)
        lowering = _Lowering(self._executor, self._arena, self._packed)  # the executor points into the packed weights
        places = lowering.lower(program)
        self._inputs = lowering.inputs
        self._read = lowering.read
        self._outputs = {name: (places[buffer.index], buffer.wanted) for name, buffer in program.outputs.items()}
        self._results: dict[tuple[int, int], dict[str, FloatArray]] = {}

    @property
    def weight_bytes(self) -> int:
        """Bytes of the packed weights that it reads."""
        return sum(weight.bytes for weight in self._read.values())

    def run(
        self, rows: Rows, cache: KVCache, inputs: Mapping[str, FloatArray] = MappingProxyType({})
    ) -> dict[str, FloatArray]:
        """One pass over all rows: the outputs by name, as views that the next pass overwrites.

        inputs  of each of the program's inputs, [rows, width].
        """
        for name, values in inputs.items():
            self._executor.fill(self._inputs[name], values)
        moved = self._executor.run(*_arrays(rows), cache.memory, cache.pool.size)
        if moved or len(self._results) > _KEPT:
            self._results.clear()
        sizes = len(rows.tokens), len(rows.wanted)
        if (found := self._results.get(sizes)) is None:  # kept, since to make views takes longer than all around a pass
            found = self._results[sizes] = {
                name: self._executor.output(place, sizes[wanted]) for name, (place, wanted) in self._outputs.items()
            }
        return found

    def draft(self, rows: Rows, cache: KVCache, ids: IntArray) -> list[tuple[list[int], list[float]]]:
        """A greedy chain from each wanted row of the last pass on: its tokens, and the probability of each.

        The program has an output "hidden", which is its input of that name in the row of the next token.

        rows  laid out for the tokens to come, whatever ids they have: those of request i are for chain i, which gets
              one token more than that.
        ids   what the places of the logits stand for.

        A chain ends early where the largest logit is not a finite number.
        """
        buffers = self._outputs["logits"][0], self._outputs["hidden"][0], self._inputs["hidden"]
        return self._executor.draft(*buffers, ids, *_arrays(rows), cache.memory, cache.pool.size)

    def profile(self, on: bool) -> None:
        """Start afresh, or stop, to measure the time of each operation; see `profiled`."""
        self._executor.profile(on)

    def profiled(self) -> list[tuple[str, float]]:
        """Name and seconds of each operation of the program, over all passes since `profile(True)`.

        A time includes waiting for the slower threads of the operation before.
        """
        return self._executor.profiled()


class NativeModel(NativeProgram):
    """A `CausalLM` on the native kernels. The program must have an output "logits"; outputs "tap.N" become taps."""

    def __init__(
        self,
        program: Program,
        *,
        context_length: int,
        kv_shape: KVShape,
        threads: int | None = None,
        kernels: str | None = None,
        beside: NativeProgram | None = None,
    ) -> None:
        """As `NativeProgram`."""
        super().__init__(program, threads=threads, kernels=kernels, beside=beside)
        self.context_length = context_length
        self.kv_shape = kv_shape
        self.vocabulary_size = program.outputs["logits"].width
        logits, wanted = self._outputs["logits"]
        maxima = self._executor.buffer(-(-self.vocabulary_size // MAXIMUM), wanted)
        self._executor.maxima(logits, maxima)
        self._outputs["maxima"] = maxima, wanted
        self._made: tuple[dict[str, FloatArray], Output] | None = None
        self._taps = {name: int(name.removeprefix("tap.")) for name in program.outputs if name != "logits"}

    def forward(self, rows: Rows, cache: KVCache) -> Output:
        """One pass over all rows; the arrays of the result are views that the next pass overwrites."""
        outputs = self.run(rows, cache)
        if self._made is None or self._made[0] is not outputs:
            taps = {layer: outputs[name] for name, layer in self._taps.items()}
            self._made = outputs, Output(outputs["logits"], taps, outputs["maxima"])
        return self._made[1]


_Arrays = tuple[IntArray, IntArray, IntArray, IntArray, IntArray, IntArray, IntArray, IntArray, IntArray]


def _arrays(rows: Rows) -> _Arrays:
    """In the order in which the executor takes them."""
    return (
        rows.tokens,
        rows.positions,
        rows.slots,
        rows.requests,
        rows.tables,
        rows.tail_starts,
        rows.tail_offsets,
        rows.tail_slots,
        rows.wanted,
    )


def choose_kernels(name: str | None = None) -> str:
    """That instruction set, or else OUTRIDER_KERNELS, or else the best; RequestError if the processor lacks it."""
    name = name or os.environ.get("OUTRIDER_KERNELS") or _native.best_kernels()
    if not _native.can_run(name):
        usable = ", ".join(k for k in ("plain", "avx2", "avx512vnni") if _native.can_run(k))
        raise RequestError(f"kernels {name!r} cannot run on this processor, expected one of {usable}")
    return name


class _Lowering:
    """From a program to calls of the executor; memory of buffers that nobody reads any more is used again."""

    def __init__(
        self, executor: _native.Executor, arena: _native.Arena, packed: dict[Weight, _native.PackedWeight]
    ) -> None:
        self.executor = executor
        self.arena = arena
        self.packed = packed
        self.read: dict[Weight, _native.PackedWeight] = {}
        self.inputs: dict[str, int] = {}
        self.places: dict[int, int] = {}  # program buffer -> executor buffer
        self.free: list[tuple[Buffer, int]] = []
        self.released: list[tuple[Buffer, int]] = []  # free for use after the next linear layer or attention

    def lower(self, program: Program) -> dict[int, int]:
        """Hand over all operations; the executor's buffer of each buffer of the program, by index."""
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
        return self.places

    def _place(self, buffer: Buffer) -> int:
        """Memory for a buffer that is about to be written."""
        shape = (buffer.width, buffer.wanted)
        found = next((i for i, (old, _) in enumerate(self.free) if (old.width, old.wanted) == shape), None)
        place = self.executor.buffer(*shape) if found is None else self.free.pop(found)[1]
        self.places[buffer.index] = place
        return place

    def _pack(self, weight: Weight) -> _native.PackedWeight:
        if weight not in self.packed:
            raw = np.ascontiguousarray(weight.raw)
            packed = _native.PackedWeight(self.arena, weight.type.name, raw, weight.outputs, weight.inputs)
            self.packed[weight] = packed
        self.read[weight] = self.packed[weight]
        return self.packed[weight]

    def _emit(self, operation: Operation) -> None:
        executor, at = self.executor, self.places
        match operation:
            case Input(name, out):
                self.inputs[name] = at[out.index] = executor.input(out.width)  # its own: others may not write there
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
        case Input() | Embed() | Angles():
            return []
        case Linear(x, _, _, residual, _):
            return [x] if residual is None else [x, residual]
        case Rope(x, angles):
            return [x, angles]
        case Attention(qk, v):
            return [qk, v]
        case SwiGLU(x) | RMSNorm(x) | Select(x):
            return [x]
