"""Every operation without attention as a small program, each with a planted fault that a good oracle must notice."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from outrider.program import Buffer, Program
from outrider.weights.gguf import TensorType
from tests.kernels.workbench import TYPES, Build, random, weight

ROWS = 17
"""Rows of the input tables: tokens 0 .. ROWS - 1; more than two blocks of rows of any kernel."""


@dataclass(frozen=True)
class Case:
    """A program, and the same one with a fault."""

    name: str
    build: Build
    fault: Build


def inputs(program: Program, width: int, seed: int = 0) -> Buffer:
    return program.embed(weight(f"inputs {width} {seed}", random(seed, ROWS, width)))


def embed(kind: TensorType) -> Case:
    values = random(1, ROWS, 96)
    return Case(
        f"embed {kind.name}",
        lambda p: p.embed(weight("w", values, kind)),
        lambda p: p.embed(weight("w", np.roll(values, 1, axis=0), kind)),
    )


def rms_norm(width: int) -> Case:
    gains = random(2, width)
    return Case(
        f"rms_norm {width}",
        lambda p: p.rms_norm(inputs(p, width), gains, 0.1),
        lambda p: p.rms_norm(inputs(p, width), gains, 0.11),
    )


def linear(kind: TensorType, outputs: int, width: int = 96) -> Case:
    values = random(3, outputs, width)
    return Case(
        f"linear {kind.name} {width} to {outputs}",
        lambda p: p.linear(inputs(p, width), weight("w", values, kind)),
        lambda p: p.linear(inputs(p, width), weight("w", np.roll(values, 1, axis=1), kind)),
    )


def side_by_side() -> Case:
    """Five weights of all kinds, of 61 outputs together, none a multiple of 16."""
    kinds = (TensorType.Q4_0, TensorType.F16, TensorType.Q8_0, TensorType.F32, TensorType.Q4_1)
    weights = [weight(kind.name, random(kind, n, 64), kind) for kind, n in zip(kinds, (7, 20, 1, 15, 18), strict=True)]
    return Case(
        "linear side by side",
        lambda p: p.linear(inputs(p, 64), *weights),
        lambda p: p.linear(inputs(p, 64), *weights[::-1]),
    )


def bias(kind: TensorType) -> Case:
    weights = (weight("a", random(4, 21, 64), kind), weight("b", random(5, 12, 64), kind))
    return Case(
        f"linear with bias {kind.name}",
        lambda p: p.linear(inputs(p, 64), *weights, bias=random(6, 33)),
        lambda p: p.linear(inputs(p, 64), *weights, bias=random(7, 33)),
    )


def residual(kind: TensorType) -> Case:
    matrix = weight("w", random(8, 37, 64), kind)
    return Case(
        f"linear with residual and bias {kind.name}",
        lambda p: p.linear(inputs(p, 64), matrix, bias=random(6, 37), residual=inputs(p, 37, 1)),
        lambda p: p.linear(inputs(p, 64), matrix, bias=random(6, 37), residual=inputs(p, 37, 2)),
    )


def rope(head_dim: int, rotated: int, interleaved: bool) -> Case:
    """Three of four heads are rotated, `rotated` lanes of each."""

    def build(program: Program, interleaved: bool) -> Buffer:
        angles = program.angles([10000 ** (-2 * i / rotated) for i in range(rotated // 2)])
        x = inputs(program, 4 * head_dim)
        return program.rope(x, angles, heads=3, head_dim=head_dim, interleaved=interleaved)

    return Case(
        f"rope {'interleaved' if interleaved else 'halves'} {rotated} of {head_dim}",
        lambda p: build(p, interleaved),
        lambda p: build(p, not interleaved),
    )


def swiglu(width: int, largest: float = 4) -> Case:
    values = largest * random(9, ROWS, 2 * width)
    return Case(
        f"swiglu {width} of {largest:g}",
        lambda p: p.swiglu(p.embed(weight("w", values))),
        lambda p: p.swiglu(p.embed(weight("w", np.roll(values, width, axis=1)))),
    )


def gated(width: int, *, apart: bool = True, again: bool = False) -> Case:
    """Gates and ups that are made together or apart, in one weight or two, and perhaps read by another layer too."""
    matrices = {
        name: weight(name, random(seed, width, 64), TensorType.Q4_1) for seed, name in enumerate(("gate", "up"))
    }
    both = weight("both", random(2, 2 * width, 64), TensorType.Q8_0)
    down = weight("down", random(3, 33, width), TensorType.F16 if width % 32 else TensorType.Q4_0)
    more = weight("more", random(4, 33, 2 * width), TensorType.F16)

    def build(program: Program, swap: bool) -> Buffer:
        names = ("up", "gate") if swap else ("gate", "up")
        parts = [matrices[name] for name in names] if apart else [both]
        gate_up = program.linear(inputs(program, 64, 1 if swap else 0), *parts)
        out = program.linear(program.swiglu(gate_up), down)
        return program.linear(gate_up, more, residual=out) if again else out

    return Case(
        f"gated layer {width}{'' if apart else ' in one'}{' read again' if again else ''}",
        lambda p: build(p, swap=False),
        lambda p: build(p, swap=True),
    )


def select() -> Case:
    return Case("select", lambda p: p.select(inputs(p, 40)), lambda p: p.select(inputs(p, 40, 1)))


def block() -> Case:
    """A feed-forward layer: several operations whose buffers are used again.

    Of floats: rounded to int8 after an exponential, a value may fall on either side of a half with the processor's own.
    """
    gate_up = (weight("gate", random(10, 96, 64), TensorType.F16), weight("up", random(11, 96, 64), TensorType.BF16))
    down = weight("down", random(12, 64, 96), TensorType.F32)
    head = weight("head", random(13, 50, 64), TensorType.F16)

    def build(program: Program, times: int) -> Buffer:
        x = inputs(program, 64)
        for _ in range(times):
            h = program.rms_norm(x, random(14, 64), 1e-5)
            x = program.linear(program.swiglu(program.linear(h, *gate_up)), down, residual=x)
        return program.linear(program.rms_norm(program.select(x), random(15, 64), 1e-5), head)

    return Case("feed-forward layers", lambda p: build(p, 3), lambda p: build(p, 2))


def _cases() -> Iterator[Case]:
    yield from map(embed, TYPES)
    yield from map(rms_norm, (1, 16, 33, 48, 100, 576))
    for kind in TYPES:
        yield linear(kind, 16)
        yield linear(kind, 35)
    yield linear(TensorType.Q4_1, 1)
    yield linear(TensorType.F32, 5, width=7)
    yield linear(TensorType.BF16, 20, width=33)
    yield side_by_side()
    for kind in (TensorType.Q4_0, TensorType.F16):
        yield bias(kind)
        yield residual(kind)
    for interleaved in (True, False):
        yield rope(64, 64, interleaved)
        yield rope(80, 32, interleaved)
        yield rope(80, 40, interleaved)
        yield rope(16, 6, interleaved)
    yield from map(swiglu, (7, 16, 40, 96))
    yield from (swiglu(48, largest) for largest in (40, 100, 1000))  # past what an exponential can be
    yield from map(gated, (7, 16, 40, 48, 64, 96))
    yield gated(64, apart=False)
    yield gated(48, again=True)
    yield gated(64, again=True)
    yield select()
    yield block()


CASES: tuple[Case, ...] = tuple(_cases())
