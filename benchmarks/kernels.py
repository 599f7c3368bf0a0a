"""The kernels against what this machine can do at most: linear layers by shape and rows, and whole passes, v(n).

    pip install '.[bench]'
    python benchmarks/kernels.py                 # the default model; some two minutes
    python benchmarks/kernels.py --shapes 1b 3b  # Llama shapes of that size with random 4-bit weights

Ceilings (read bandwidth, 8-bit multiply-adds in registers) are measured in the same run with the same threads, between
the rows of each table. A weight is read once a pass, so its bytes over the bandwidth bound the time of one row from
below; multiply-adds over their rate bound the time of many rows. Run it on an idle machine.
"""

from __future__ import annotations

import argparse
import ctypes
import statistics
import subprocess
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import common
import numpy as np

from outrider.cache import KVCache
from outrider.kernels.native import NativeModel, choose_kernels
from outrider.models import record
from outrider.models.base import KVShape
from outrider.program import Linear, Program
from outrider.request import Request
from outrider.scheduler import Work
from outrider.types import EMPTY, Proposal, Rows
from outrider.weights import hub
from outrider.weights.gguf import GGUF, TensorType
from outrider.weights.tensor_types import BLOCKS
from outrider.weights.weight import Weight

ROWS = (1, 2, 4, 6, 8, 16)
CONTEXTS = (128, 1024, 4096)
PREFILL = 512


class Ceilings:
    """This machine's limits, compiled from ceilings.cpp."""

    def __init__(self, threads: int, avx512: bool) -> None:
        folder = tempfile.mkdtemp()
        library = Path(folder) / "ceilings.so"
        source = Path(__file__).with_name("ceilings.cpp")
        command = ["c++", "-O2", "-std=c++20", "-shared", "-fPIC", "-pthread", "-o", library, source]
        subprocess.run(command, check=True)
        self._library = ctypes.CDLL(str(library))
        self._library.read_bandwidth.restype = self._library.multiply_adds.restype = ctypes.c_double
        self._library.read_bandwidth.argtypes = [ctypes.c_int, ctypes.c_size_t]
        self._threads, self._avx512 = threads, avx512

    def bandwidth(self, size: int) -> float:
        """Bytes per second read from a working set of that many bytes."""
        return float(self._library.read_bandwidth(self._threads, size))

    def multiply_adds(self) -> float:
        """8-bit multiply-adds per second."""
        return float(self._library.multiply_adds(self._threads, self._avx512))


@dataclass(frozen=True)
class Shape:
    """A Llama's dimensions."""

    layers: int
    hidden: int
    ffn: int
    heads: int
    kv_heads: int
    head_dim: int
    vocabulary: int


SHAPES = {
    "1b": Shape(16, 2048, 8192, 32, 8, 64, 128256),  # Llama 3.2 1B
    "3b": Shape(28, 3072, 8192, 24, 8, 128, 128256),  # Llama 3.2 3B
}


def random_weight(name: str, kind: TensorType, outputs: int, inputs: int) -> Weight:
    """Random codes with sane scales: enough to time."""
    block = BLOCKS[kind]
    rng = np.random.default_rng(abs(hash(name)) % 2**32)
    raw = rng.integers(0, 256, (outputs * inputs // block.elements, block.nbytes), dtype=np.uint8)
    raw[:, :2] = np.frombuffer(np.float16(0.01).tobytes(), np.uint8)
    if kind is TensorType.Q4_1:
        raw[:, 2:4] = np.frombuffer(np.float16(-0.07).tobytes(), np.uint8)
    return Weight(name, kind, outputs, inputs, raw.reshape(-1))


def random_llama(shape: Shape) -> Program:
    """A Llama of that shape, Q4_1 with a Q8_0 head; the layers share no memory, as in a real one."""
    program, s = Program(), shape
    head = random_weight("embedding", TensorType.Q8_0, s.vocabulary, s.hidden)
    x = program.embed(head)
    angles = program.angles([10000.0 ** (-2 * i / s.head_dim) for i in range(s.head_dim // 2)])
    norm = np.ones(s.hidden, np.float32)
    q4 = TensorType.Q4_1
    for i in range(s.layers):
        widths = {"q": s.heads, "k": s.kv_heads, "v": s.kv_heads}
        weights = [random_weight(f"{i}{n}", q4, heads * s.head_dim, s.hidden) for n, heads in widths.items()]
        qkv = program.linear(program.rms_norm(x, norm, 1e-5), *weights)
        qk = program.rope(qkv, angles, heads=s.heads + s.kv_heads, head_dim=s.head_dim, interleaved=True)
        attended = program.attention(
            qk, qkv, value_column=qk.width, layer=i, heads=s.heads, kv_heads=s.kv_heads, head_dim=s.head_dim
        )
        x = program.linear(attended, random_weight(f"{i}o", q4, s.hidden, s.heads * s.head_dim), residual=x)
        gates = [random_weight(f"{i}{n}", q4, s.ffn, s.hidden) for n in ("gate", "up")]
        active = program.swiglu(program.linear(program.rms_norm(x, norm, 1e-5), *gates))
        x = program.linear(active, random_weight(f"{i}down", q4, s.hidden, s.ffn), residual=x)
    program.output("logits", program.linear(program.rms_norm(program.select(x), norm, 1e-5), head))
    return program


class Passes:
    """Forward passes of n rows after a context, on a cache of its own."""

    def __init__(self, model: NativeModel, context: int) -> None:
        self.model = model
        self.cache = KVCache(model.kv_shape, (context + PREFILL) // 32 + 2)
        rng = np.random.default_rng(0)
        self.tokens = [int(token) for token in rng.integers(0, model.vocabulary_size, context + PREFILL)]
        self.request = Request(self.tokens[: context + 1])
        for start in range(0, context, 256):
            end = min(start + 256, context)
            self.model.forward(self._rows(start, end, ()), self.cache)
            self.cache.commit(self.request.kv, end, ())

    def _rows(self, start: int, end: int, draft: tuple[int, ...], wanted: bool = False) -> Rows:
        proposal = Proposal.chain(draft, "bench") if draft else EMPTY
        return self.cache.reserve([Work(self.request, start, end, len(draft), wanted)], [proposal])

    def rows(self, n: int) -> Rows:
        context = self.request.kv.length
        self.cache.trim(self.request.kv)
        return self._rows(context, context + 1, tuple(self.tokens[: n - 1]), wanted=True)

    def milliseconds(self, rows: Rows, passes: int) -> float:
        times = []
        for _ in range(passes):
            start = time.perf_counter()
            self.model.forward(rows, self.cache)
            times.append(time.perf_counter() - start)
        return statistics.median(times) * 1e3

    def profile(self, rows: Rows, passes: int) -> dict[str, float]:
        """Milliseconds per pass of each kind of operation."""
        self.model.profile(True)
        for _ in range(passes):
            self.model.forward(rows, self.cache)
        self.model.profile(False)
        times: dict[str, float] = defaultdict(float)
        for name, seconds in self.model.profiled():
            times[name] += seconds * 1e3 / passes
        return times


def linear_work(program: Program) -> tuple[int, int]:
    """Multiply-adds per row, and bytes of weights, of a program's linear layers."""
    weights = [w for operation in program.operations if isinstance(operation, Linear) for w in operation.weights]
    size = sum(w.outputs * w.inputs * BLOCKS[w.type].nbytes // BLOCKS[w.type].elements for w in weights)
    return sum(w.outputs * w.inputs for w in weights), size


def layers_of(program: Program) -> Iterator[tuple[str, tuple[Weight, ...]]]:
    """The linear layers of the first block and the head, by name."""
    linear = [operation for operation in program.operations if isinstance(operation, Linear)]
    for name, operation in zip(("qkv", "output", "gate, up", "down"), linear, strict=False):
        yield name, operation.weights
    yield "head", linear[-1].weights


def measure_layers(program: Program, ceilings: Ceilings, threads: int, rounds: int) -> None:
    """Each linear layer alone, as many copies of it as make a working set that no cache holds."""
    rows = []
    for name, weights in layers_of(program):
        multiply_adds = sum(w.outputs * w.inputs for w in weights)
        size = sum(w.raw.nbytes for w in weights)
        copies = max(1, 100_000_000 // size)
        lone = Program()
        x = lone.embed(random_weight("x", TensorType.F32, 64, weights[0].inputs))
        for copy in range(copies):
            out = lone.linear(x, *[Weight(f"{w.name}{copy}", w.type, w.outputs, w.inputs, w.raw) for w in weights])
        lone.output("logits", lone.select(out))
        model = NativeModel(lone, context_length=64, kv_shape=KVShape(1, 1, 16), threads=threads)
        cache = KVCache(model.kv_shape, 20)
        label = f"{name} {sum(w.outputs for w in weights)} x {weights[0].inputs} {weights[0].type.name}"
        limits = [ceilings.bandwidth(copies * size), ceilings.multiply_adds()]
        for n in (*ROWS, PREFILL):
            request = Request([1] * n)
            batch = cache.reserve([Work(request, 0, n, 0, True)], [EMPTY])
            times = []
            for _ in range(rounds if n < PREFILL else 3):
                start = time.perf_counter()
                model.forward(batch, cache)
                times.append((time.perf_counter() - start) / copies)
            cache.release(request.kv)
            best = statistics.median(times)
            rows.append(
                [
                    label if n == 1 else "",
                    n,
                    f"{best * 1e6:.1f}",
                    f"{size / best / 1e9:.1f}",
                    f"{size / best / limits[0]:.0%}",
                    f"{n * multiply_adds / best / 1e9:.0f}",
                    f"{n * multiply_adds / best / limits[1]:.0%}",
                ]
            )
    columns = ["linear layer", "rows", "µs", "GB/s", "of reads", "G multiply-adds/s", "of multiply-adds"]
    common.table("Linear layers, alone", columns, rows)


def measure_model(name: str, program: Program, context_length: int, kv_shape: KVShape, options: argparse.Namespace,
                  ceilings: Ceilings) -> None:  # fmt: skip
    model = NativeModel(program, context_length=context_length, kv_shape=kv_shape, threads=options.threads)
    multiply_adds, size = linear_work(program)
    contexts = [context for context in CONTEXTS if context + PREFILL <= context_length]
    passes = {context: Passes(model, context) for context in contexts}
    batches = {(context, n): passes[context].rows(n) for context in contexts for n in ROWS}
    subjects = {key: lambda key=key: passes[key[0]].milliseconds(batches[key], options.passes) for key in batches}
    bandwidths: list[float] = []
    rates: list[float] = []

    def limits() -> float:
        bandwidths.append(ceilings.bandwidth(size))
        rates.append(ceilings.multiply_adds())
        return 0.0

    figures = common.interleave({**subjects, (0, 0): limits}, options.rounds)
    bandwidth, rate = statistics.median(bandwidths), statistics.median(rates)
    rows = []
    for context in contexts:
        one = figures[context, 1]
        cells = [
            f"{statistics.median(figures[context, n]):.2f} ({common.median_ratio(figures[context, n], one):.2f})"
            for n in ROWS
        ]
        rows.append([context, *cells])
    title = f"{name}: whole pass of n rows, ms (v(n)), kernels {model.kernels}, {model.threads} threads"
    common.table(title, ["context", *[f"n = {n}" for n in ROWS]], rows)
    floor = size / bandwidth * 1e3
    best = statistics.median(figures[contexts[0], 1])
    common.console.print(
        f"weights {size / 1e6:.1f} MB at {bandwidth / 1e9:.1f} GB/s ({min(bandwidths) / 1e9:.1f} to "
        f"{max(bandwidths) / 1e9:.1f}): at least {floor:.2f} ms; one row takes {best / floor:.2f} times that"
    )
    eight = 8 * multiply_adds / rate * 1e3
    common.console.print(
        f"8 rows, {8 * multiply_adds / 1e6:.0f} M multiply-adds at {rate / 1e9:.0f} G/s: at least {eight:.2f} ms\n"
    )
    rows = []
    for n in (1, 8):
        times = passes[contexts[0]].profile(batches[contexts[0], n], 30)
        total = sum(times.values())
        ordered = sorted(times.items(), key=lambda item: -item[1])
        rows.append([n, ", ".join(f"{kind} {value / total:.1%}" for kind, value in ordered)])
    common.table(f"{name}: shares of a pass at a context of {contexts[0]}", ["rows", "operations"], rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2", help="alias or path of a .gguf file (default: smollm2)")
    parser.add_argument("--shapes", nargs="*", choices=SHAPES, default=[], help="random models to time as well")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--passes", type=int, default=8, help="passes per round")
    options = parser.parse_args()
    gguf = GGUF.open(hub.resolve(options.model))
    recorded = record(gguf)
    ceilings = Ceilings(options.threads, choose_kernels() == "avx512vnni")
    common.console.print(common.describe_machine("outrider", "numpy") + "\n")
    measure_layers(recorded.program, ceilings, options.threads, options.rounds)
    measure_model(gguf.path.name, recorded.program, recorded.context_length, recorded.kv_shape, options, ceilings)
    for name in options.shapes:
        shape = SHAPES[name]
        kv_shape = KVShape(shape.layers, shape.kv_heads, shape.head_dim)
        measure_model(f"Llama {name} shape", random_llama(shape), 8192, kv_shape, options, ceilings)


if __name__ == "__main__":
    main()
