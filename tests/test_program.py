"""A program is a list of operations over buffers whose widths follow from what is recorded."""

from __future__ import annotations

import numpy as np

from outrider.program import Attention, Buffer, Embed, Linear, Program, Rope, Select
from tests.kernels.workbench import random, weight

WIDTH = 64


def started() -> tuple[Program, Buffer]:
    program = Program()
    return program, program.embed(weight("embedding", random(0, 10, WIDTH)))


def test_each_operation_writes_a_new_buffer() -> None:
    program, x = started()
    y = program.linear(x, weight("w", random(0, WIDTH, WIDTH)), residual=x)
    z = program.rms_norm(y, np.ones(WIDTH, np.float32), 1e-5)
    assert program.buffers == [x, y, z]
    assert [operation.out for operation in program.operations] == [x, y, z]
    assert [buffer.index for buffer in program.buffers] == [0, 1, 2]


def test_weights_lie_side_by_side() -> None:
    program, x = started()
    weights = [weight(f"w{n}", random(0, n, WIDTH)) for n in (5, 1, 20)]
    out = program.linear(x, *weights)
    assert out.width == 26
    assert program.operations[-1] == Linear(x, tuple(weights), None, None, out)


def test_widths_follow_from_heads_and_halves() -> None:
    program, x = started()
    angles = program.angles([1.0, 0.5, 0.25])
    assert angles.width == 6
    rotated = program.rope(x, angles, heads=3, head_dim=16, interleaved=True)
    assert rotated.width == 48
    assert isinstance(program.operations[-1], Rope)
    attended = program.attention(rotated, x, value_column=48, layer=0, heads=2, kv_heads=1, head_dim=16)
    assert attended.width == 32
    assert isinstance(program.operations[-1], Attention)
    assert program.operations[-1].scale == 0.25
    assert program.swiglu(x).width == WIDTH // 2


def test_what_follows_a_selection_has_wanted_rows_only() -> None:
    program, x = started()
    chosen = program.select(x)
    assert program.operations[-1] == Select(x, chosen)
    normed = program.rms_norm(chosen, np.ones(WIDTH, np.float32), 1e-5)
    out = program.linear(program.swiglu(normed), weight("w", random(0, 7, WIDTH // 2)))
    assert not x.wanted
    assert all(buffer.wanted for buffer in (chosen, normed, out))


def test_outputs_are_named() -> None:
    program, x = started()
    program.output("logits", x)
    assert program.outputs == {"logits": x}
    assert isinstance(program.operations[0], Embed)
