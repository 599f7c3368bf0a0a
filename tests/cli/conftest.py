"""A tiny model, and the command line inside this process and as one of its own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys

import pytest
from typer.testing import CliRunner

from outrider.cli import app
from outrider.llm import LLM
from outrider.policy.costs import FREE
from tests.tiny import tiny_llama


@pytest.fixture(scope="session")
def model(tmp_path_factory):
    """Path of a model whose context is so long that its texts take half a minute unless they are stopped."""
    return str(tiny_llama(tmp_path_factory.mktemp("cli") / "tiny.gguf", seed=1, context=100_000))


@pytest.fixture(scope="session")
def cache(tmp_path_factory):
    """Where costs are stored: not where those of the user's own models are."""
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(autouse=True)
def free_rows(cache, monkeypatch):
    """All rows of a pass cost what one does, so that what is drafted does not depend on the machine."""
    monkeypatch.setenv("OUTRIDER_CACHE", str(cache))
    monkeypatch.setattr("outrider.llm.measure", lambda model, progress: FREE)


@pytest.fixture(autouse=True)
def plain_terminal(monkeypatch):
    """Whoever runs the tests may have any terminal and settings."""
    for name in ("NO_COLOR", "FORCE_COLOR", "TTY_COMPATIBLE", "PYTHONUNBUFFERED"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setenv("OUTRIDER_THREADS", "1")  # two that spin would wait for each other on a busy machine


@pytest.fixture
def outrider(model):
    """Run a command on the tiny model: outrider("generate", "Hello", "-n", "5")."""

    def run(command, *args, stdin=None):
        return CliRunner().invoke(app, [command, "-m", model, *map(str, args)], input=stdin)

    return run


@pytest.fixture
def objects(outrider):
    """Run `generate` and read its stdout as JSON lines."""

    def run(*args, stdin=None):
        result = outrider("generate", *args, stdin=stdin)
        return [json.loads(line) for line in result.stdout.splitlines()]

    return run


@pytest.fixture
def seen(monkeypatch):
    """What reaches the library: (llm, request) of each request that is run."""
    calls = []
    original = LLM.run

    def recording(llm, requests):
        calls.extend((llm, request) for request in requests)
        return original(llm, requests)

    monkeypatch.setattr(LLM, "run", recording)
    return calls


@pytest.fixture
def press_ctrl_c(monkeypatch):
    """press_ctrl_c(n): the user does so when a command has seen n steps' additions to texts."""

    def arrange(steps):
        original = LLM.run

        def run(llm, requests):
            for count, emitted in enumerate(original(llm, requests), start=1):
                yield emitted
                if count == steps:
                    signal.raise_signal(signal.SIGINT)

        monkeypatch.setattr(LLM, "run", run)

    return arrange


@pytest.fixture
def process(model):
    """Start a command on the tiny model as a process; it is killed if the test leaves it running."""
    started = []

    def start(command, *args, env=None, **options):
        argv = [sys.executable, "-m", "outrider", command, "-m", model, *map(str, args)]
        pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE} | options
        started.append(subprocess.Popen(argv, env=os.environ | (env or {}), **pipes))
        return started[-1]

    yield start
    for each in started:
        with each:
            each.kill()
