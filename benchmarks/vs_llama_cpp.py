"""Plain decoding, verification passes and prefill, side by side with llama.cpp on the same weights and threads.

    pip install '.[bench]'
    python benchmarks/vs_llama_cpp.py            # about three minutes

llama.cpp runs the same Q4_1 file, and the weights requantised to Q4_0, its fastest 4-bit type. All engines are timed
in turn, round by round; ratios are medians of the ratios within a round. Run it on an idle machine.
"""

from __future__ import annotations

import argparse
import ctypes
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import common
import llama_cpp
import numpy as np

from outrider import LLM, SamplingParams
from outrider.cache import KVCache
from outrider.kernels.native import NativeModel
from outrider.models import record
from outrider.request import Request
from outrider.scheduler import Work
from outrider.types import EMPTY, Proposal
from outrider.weights import hub
from outrider.weights.gguf import GGUF

SILENT = llama_cpp.llama_log_callback(lambda level, text, data: None)  # kept: C holds no reference of its own
PROMPT, TOKENS, CONTEXT, PREFILL = 64, 128, 128, 512
ROWS = (1, 2, 4, 6, 8)


class LlamaCpp:
    """llama.cpp through its C interface, with as little Python as possible in the loop."""

    def __init__(self, path: Path, threads: int) -> None:
        parameters = llama_cpp.llama_model_default_params()
        self.model = llama_cpp.llama_model_load_from_file(str(path).encode(), parameters)
        settings = llama_cpp.llama_context_default_params()
        settings.n_ctx, settings.n_batch, settings.n_ubatch = 1024, 512, 512
        settings.n_threads = settings.n_threads_batch = threads
        self.context = llama_cpp.llama_init_from_model(self.model, settings)
        self.memory = llama_cpp.llama_get_memory(self.context)
        self.vocabulary = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(self.model))
        self.batch = llama_cpp.llama_batch_init(512, 0, 1)

    def forward(self, tokens: list[int], start: int, all_logits: bool = False) -> np.ndarray:
        """One pass over tokens at positions start...; the last row's logits."""
        batch = self.batch
        batch.n_tokens = len(tokens)
        for i, token in enumerate(tokens):
            batch.token[i], batch.pos[i], batch.n_seq_id[i], batch.seq_id[i][0] = token, start + i, 1, 0
            batch.logits[i] = all_logits or i == len(tokens) - 1
        if llama_cpp.llama_decode(self.context, batch) != 0:
            raise RuntimeError("llama_decode failed")
        pointer = llama_cpp.llama_get_logits_ith(self.context, len(tokens) - 1)
        return np.ctypeslib.as_array(pointer, (self.vocabulary,))

    def clear(self, start: int = 0) -> None:
        llama_cpp.llama_memory_seq_rm(self.memory, 0, start, -1)

    def decode(self, prompt: list[int]) -> float:
        """Greedy tokens per second after the prompt."""
        self.clear()
        token = int(self.forward(prompt, 0).argmax())
        start = time.perf_counter()
        for i in range(TOKENS - 1):
            token = int(self.forward([token], len(prompt) + i).argmax())
        return (TOKENS - 1) / (time.perf_counter() - start)

    def rows(self, prompt: list[int], n: int, passes: int) -> float:
        """Milliseconds of a pass of n rows after the prompt."""
        self.clear()
        self.forward(prompt, 0)
        times = []
        for _ in range(passes):
            self.clear(len(prompt))
            start = time.perf_counter()
            self.forward(prompt[:n], len(prompt), all_logits=True)
            times.append(time.perf_counter() - start)
        return statistics.median(times) * 1e3

    def prefill(self, prompt: list[int]) -> float:
        """Prompt tokens per second."""
        self.clear()
        start = time.perf_counter()
        self.forward(prompt, 0)
        return len(prompt) / (time.perf_counter() - start)


class Outrider:
    """This project: decoding through the public API, passes through the model."""

    def __init__(self, path: Path, threads: int) -> None:
        self.llm = LLM(path, speculation="off", threads=threads)
        self.model: NativeModel = self.llm.model
        self.cache = KVCache(self.model.kv_shape, (CONTEXT + PREFILL) // 32 + 2)
        self.params = SamplingParams(max_tokens=TOKENS, ignore_eos=True)

    def decode(self, prompt: list[int]) -> float:
        return self.llm.generate([prompt], self.params)[0].tokens_per_second

    def _prepare(self, prompt: list[int], draft: list[int], computed: int = 0) -> tuple[Request, Callable[[], object]]:
        """A pass over the tokens after the `computed` first ones, which are committed, and a drafted chain."""
        request = Request(prompt)
        if computed:
            prefix, forward = self._prepare(prompt[:computed], [])
            forward()
            self.cache.commit(prefix.kv, computed, ())
            request.kv = prefix.kv
        proposal = Proposal.chain(draft, "bench") if draft else EMPTY
        work = Work(request, computed, len(prompt), len(draft), wanted=True)
        rows = self.cache.reserve([work], [proposal])
        return request, lambda: self.model.forward(rows, self.cache)

    def rows(self, prompt: list[int], n: int, passes: int) -> float:
        request, forward = self._prepare([*prompt, prompt[0]], prompt[1:n], computed=len(prompt))
        times = []
        for _ in range(passes):
            start = time.perf_counter()
            forward()
            times.append(time.perf_counter() - start)
        self.cache.release(request.kv)
        return statistics.median(times) * 1e3

    def prefill(self, prompt: list[int]) -> float:
        request, forward = self._prepare(prompt, [])
        start = time.perf_counter()
        forward()
        seconds = time.perf_counter() - start
        self.cache.release(request.kv)
        return len(prompt) / seconds

    def python_share(self, prompt: list[int]) -> float:
        """Share of a plain decoding step that is not the native forward pass, in percent."""
        inside = 0.0
        forward = self.model.forward

        def timed(rows, cache):  # type: ignore[no-untyped-def]
            nonlocal inside
            start = time.perf_counter()
            output = forward(rows, cache)
            inside += time.perf_counter() - start
            return output

        iterator = self.llm.stream(prompt, self.params)
        next(iterator)
        self.model.forward = timed  # type: ignore[method-assign]
        start = time.perf_counter()
        for _ in iterator:
            pass
        total = time.perf_counter() - start
        del self.model.forward
        return (1 - inside / total) * 100


def requantise(path: Path, target: Path) -> None:
    """The same weights as Q4_0."""
    parameters = llama_cpp.llama_model_quantize_default_params()
    parameters.ftype = llama_cpp.LLAMA_FTYPE_MOSTLY_Q4_0
    parameters.allow_requantize = True
    if llama_cpp.llama_model_quantize(str(path).encode(), str(target).encode(), ctypes.byref(parameters)) != 0:
        raise RuntimeError("llama_model_quantize failed")


MEMORY = """
import sys
from pathlib import Path
from outrider import LLM, SamplingParams
llm = LLM(sys.argv[1], speculation="off", context_length=2048, kv_tokens=2048)
llm.generate(["Once upon a time"], SamplingParams(max_tokens=64))
llm.generate([[1] * 1000], SamplingParams(max_tokens=8))
cache = llm.engine.cache
resident = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmRSS"))
print(int(resident.split()[1]) * 1024, cache.keys.nbytes + cache.values.nbytes)
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2", help="alias or path of a .gguf file (default: smollm2)")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=7)
    arguments = parser.parse_args()

    llama_cpp.llama_backend_init()
    llama_cpp.llama_log_set(SILENT, None)
    path = hub.resolve(arguments.model)
    q4_0 = hub.cache_folder() / f"{path.stem}.requantised-Q4_0.gguf"
    if not q4_0.exists():
        requantise(path, q4_0)
    engines = {
        "outrider": Outrider(path, arguments.threads),
        "llama.cpp": LlamaCpp(path, arguments.threads),
        "llama.cpp Q4_0": LlamaCpp(q4_0, arguments.threads),
    }
    ours = engines["outrider"]
    rng = np.random.default_rng(0)
    prompt = [int(token) for token in rng.integers(100, 40000, PREFILL)]
    common.console.print(common.describe_machine("outrider", "numpy", "llama-cpp-python"))
    common.console.print(f"model {path.name}, {arguments.threads} threads, kernels {ours.model.kernels}\n")

    def compare(title: str, unit: str, measure: Callable[[object], float], higher_is_better: bool = True) -> None:
        figures = common.interleave(
            {name: lambda engine=engine: measure(engine) for name, engine in engines.items()}, arguments.rounds
        )
        first = figures["outrider"]
        rows = []
        for name, values in figures.items():
            ratio = common.median_ratio(first, values) if higher_is_better else common.median_ratio(values, first)
            rows.append([name, common.spread(values), f"{ratio:.2f}"])
        common.table(title, ["engine", unit, "outrider is faster by"], rows)

    compare(f"Plain greedy decoding, {TOKENS} tokens after {PROMPT}", "tokens/s", lambda e: e.decode(prompt[:PROMPT]))
    compare(f"Prefill of {PREFILL} tokens", "tokens/s", lambda e: e.prefill(prompt))

    passes = {
        (name, n): lambda engine=engine, n=n: engine.rows(prompt[:CONTEXT], n, 10)
        for n in ROWS
        for name, engine in engines.items()
    }
    figures = common.interleave(passes, arguments.rounds)
    rows = []
    for name in engines:
        one = figures[name, 1]
        cells = [
            f"{statistics.median(figures[name, n]):.2f} ({common.median_ratio(figures[name, n], one):.2f})"
            for n in ROWS
        ]
        rows.append([name, *cells])
    title = f"Whole forward pass of n rows at a context of {CONTEXT}: ms (v(n))"
    common.table(title, ["engine", *[f"n = {n}" for n in ROWS]], rows)

    share = statistics.median(ours.python_share(prompt[:PROMPT]) for _ in range(arguments.rounds))
    common.console.print(f"Outside the native pass in a plain decoding step: {share:.1f} percent")
    loads = []
    for _ in range(3):
        start = time.perf_counter()
        gguf = GGUF.open(path)
        recorded = record(gguf)
        NativeModel(recorded.program, context_length=recorded.context_length, kv_shape=recorded.kv_shape)
        ours.llm.tokenizer.from_metadata(gguf.metadata, str(path))
        loads.append(time.perf_counter() - start)
    common.console.print(f"Loading the model and its tokenizer: {statistics.median(loads):.2f} s")
    output = subprocess.run([sys.executable, "-c", MEMORY, str(path)], capture_output=True, text=True, check=True)
    resident, kv = map(int, output.stdout.split())
    other = (resident - path.stat().st_size - kv) / 2**20
    common.console.print(
        f"Resident memory: {resident / 2**20:.0f} MiB = model file {path.stat().st_size / 2**20:.0f} + "
        f"KV cache {kv / 2**20:.0f} + {other:.0f}"
    )


if __name__ == "__main__":
    main()
