"""Checks that need one processor each, done side by side by processes of their own.

with Crew(2, partial(LLM, path, threads=1)) as crew:
    results = list(crew.map([partial(check, setting=setting) for setting in settings]))  # each is called with its LLM
"""

from __future__ import annotations

import os
import pickle
import queue
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from types import TracebackType
from typing import TypeVar

from outrider.llm import LLM

T = TypeVar("T")

Task = Callable[[LLM], T]
"""What is to be done with a model."""

_COMMAND = (sys.executable, "-c", "from outrider.certify.crew import serve; serve()")


class Crew:
    """So many processes, each with a model of its own; with one, all is done in this one. A context manager.

    load  makes the model of a process; like the tasks and what they return it must be picklable.

    The processes are started anew, and not forked, since this one has threads; nor by `multiprocessing`, which would
    run the caller's script again.
    """

    def __init__(self, size: int, load: Callable[[], LLM]) -> None:
        self._load = cache(load)
        self._workers = [_Worker(load) for _ in range(size)] if size > 1 else []

    def __enter__(self) -> Crew:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for worker in self._workers:
            worker.stop()

    def map(self, tasks: Iterable[Task[T]]) -> Iterator[T]:
        """What the tasks return, in their order. Raises what the first of them that fails raises."""
        if not self._workers:
            llm = self._load()
            yield from (task(llm) for task in tasks)
            return
        idle: queue.SimpleQueue[_Worker] = queue.SimpleQueue()
        for worker in self._workers:
            idle.put(worker)

        def run(task: Task[T]) -> T:
            worker = idle.get()
            try:
                result: T = worker.do(task)
            finally:
                idle.put(worker)
            return result

        pool = ThreadPoolExecutor(len(self._workers))
        try:
            yield from pool.map(run, tasks)
        finally:
            pool.shutdown(wait=False, cancel_futures=True)


class _Worker:
    """A process that does one task after another."""

    def __init__(self, load: Callable[[], LLM]) -> None:
        self._process = subprocess.Popen(
            _COMMAND,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        )
        self._send(load)

    def do(self, task: Task[T]) -> T:
        """What the task returns; raises what it raises."""
        self._send(task)
        assert self._process.stdout
        try:
            result, error = pickle.load(self._process.stdout)
        except EOFError:
            raise RuntimeError(f"a process of the certificate ended, with code {self._process.wait()}") from None
        if error is not None:
            raise error
        answer: T = result
        return answer

    def stop(self) -> None:
        """End the process, whatever it does."""
        self._process.terminate()
        self._process.communicate()

    def _send(self, value: object) -> None:
        assert self._process.stdin
        pickle.dump(value, self._process.stdin)
        self._process.stdin.flush()


def serve() -> None:
    """What a process of a crew does: all that it is told, until it is ended."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the first process is told, and ends the others
    with os.fdopen(os.dup(1), "wb") as answers:
        os.dup2(2, 1)  # nobody else writes there
        load = cache(pickle.load(sys.stdin.buffer))
        while True:
            try:
                task = pickle.load(sys.stdin.buffer)
            except EOFError:
                return
            try:
                result, error = task(load()), None
            except Exception as raised:
                result, error = None, raised
            pickle.dump((result, error), answers)
            answers.flush()
