"""The command as a process: signals, pipes, locales, terminals, start-up."""

from __future__ import annotations

import json
import os
import pty
import re
import signal
import subprocess
import sys
import threading
import time

import pytest

LONG = ("-n", 90_000, "Hello")  # half a minute, unless it is stopped


def test_ctrl_c_ends_the_text_and_says_so(process):
    running = process("generate", *LONG)
    out = running.stdout.read(100)
    running.send_signal(signal.SIGINT)
    rest, err = running.communicate(timeout=10)
    assert running.returncode == 130
    assert (out + rest).endswith(b"\n")
    assert re.search(r"^\d+ tokens, .*, interrupted\n$", err.decode(), re.MULTILINE)


def test_text_is_written_as_it_comes(process):
    """A pipe, which Python would fill by blocks of 8 kB."""
    running = process("generate", *LONG)
    assert 0 < len(running.stdout.read1(100_000)) < 4000


def test_answers_to_many_prompts_are_written_as_they_come(process, tmp_path):
    prompts = tmp_path / "prompts.txt"
    prompts.write_text("A" * 60_000 + "\nHello\n")
    running = process("generate", "--prompts", prompts, "-n", 90_000, "--context-length", 50_000)
    assert json.loads(running.stdout.readline())["finish_reason"] == "error"
    assert running.poll() is None


def test_a_reader_that_goes_away_ends_it_quietly(process):
    running = process("generate", *LONG)
    running.stdout.read1(10)
    running.stdout.close()
    running.wait(timeout=10)
    assert running.returncode == 141
    assert running.stderr.read() == b""


def test_a_full_disk_is_one_line(process):
    with open("/dev/full", "w") as full:
        running = process("generate", "Hello", "-n", 5, stdout=full)
    _, err = running.communicate(timeout=10)
    assert (running.returncode, err) == (1, b"error: [Errno 28] No space left on device\n")


def test_ctrl_c_is_ignored_where_the_shell_says_so(process):
    """As a script's background job, which must not die of a Ctrl-C meant for another."""
    running = process("generate", "-n", 3000, "Hello", preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_IGN))
    running.stdout.read1(10)
    running.send_signal(signal.SIGINT)
    running.communicate(timeout=20)
    assert running.returncode == 0


@pytest.mark.parametrize("command", [("generate", "Hello", "-n", "50"), ("generate", "Hello", "-n", "50", "--json")])
def test_output_is_utf8_in_any_locale(process, command):
    ascii_only = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "PYTHONIOENCODING": ""}
    found = [process(*command, env=env).communicate(timeout=10) for env in (ascii_only, {"PYTHONUTF8": "1"})]
    texts = [json.loads(out)["text"] if "--json" in command else out.decode() for out, _ in found]
    assert texts[0] == texts[1]
    assert not texts[0].isascii()


def test_piped_stdin_is_the_prompt(process):
    running = process("generate", "-n", 3, "--json", stdin=subprocess.PIPE)
    out, _ = running.communicate("Hello 世界\n".encode(), timeout=10)
    assert json.loads(out)["completion_tokens"] == 3


def test_a_chat_reads_utf8_in_any_locale(process):
    ascii_only = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    running = process("chat", "-n", 3, stdin=subprocess.PIPE, env=ascii_only)
    _, err = running.communicate("世界\n".encode() + b"\xff\n", timeout=10)
    assert running.returncode == 0
    assert err.count(b"3 tokens, ") == 1
    assert err.count(b"error: the text holds a lone surrogate") == 1


def test_no_prompt_is_an_error(process):
    running = process("generate")
    assert running.communicate(timeout=10) == (b"", b"error: the prompt is empty\n")
    assert running.returncode == 1


def test_help_does_not_wait_for_numpy():
    """Start-up is fast as long as nothing heavy is imported; the time itself would depend on the machine."""
    code = "import sys; from outrider.cli import app; print(*sys.modules)"
    modules = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert "outrider.cli.generate" in modules
    assert not {"numpy", "tokenizers", "jinja2", "outrider.llm", "rich.progress"} & set(modules)


class Terminal:
    """A process with a terminal of its own, as a user would have it."""

    def __init__(self, *args, stdout=None):
        self.screen = ""
        self._master, slave = pty.openpty()
        # A process becomes the terminal's owner, whom Ctrl-C is meant for, by opening it by name.
        code = "import os, sys; os.open(os.ttyname(0), os.O_RDWR); from outrider.cli import main; main()"
        self.process = subprocess.Popen(
            [sys.executable, "-c", code, *map(str, args)],
            stdin=slave,
            stdout=slave if stdout is None else stdout,
            stderr=slave,
            start_new_session=True,
            env=os.environ | {"TERM": "xterm-256color"},
        )
        os.close(slave)
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self):
        try:
            while data := os.read(self._master, 65536):
                self.screen += data.decode(errors="replace")
        except OSError:  # the process is gone
            pass

    def type(self, text):
        os.write(self._master, text.encode())

    def wait_for(self, text, *, after=0):
        """Until the text is on the screen; returns where it ends."""
        end = time.monotonic() + 10
        while (place := self.screen.find(text, after)) < 0:
            assert time.monotonic() < end, f"no {text!r} in {self.screen[after:]!r}"
            time.sleep(0.01)
        return place + len(text)

    def close(self):
        self.process.kill()
        self.process.wait()
        self._reader.join()
        os.close(self._master)


@pytest.fixture
def terminal(model):
    opened = []

    def start(command, *args, **options):
        opened.append(Terminal(command, "-m", model, *args, **options))
        return opened[-1]

    yield start
    for each in opened:
        each.close()


def test_ctrl_c_stops_the_answer_and_not_the_chat(terminal):
    chat = terminal("chat", "-n", 90_000)
    chat.wait_for(">>> ")
    chat.type("Hello\n")
    answer = chat.wait_for("Hello\r\n")
    while len(chat.screen) < answer + 500:
        time.sleep(0.01)
    chat.type("\x03")
    place = chat.wait_for("interrupted", after=answer)
    place = chat.wait_for(">>> ", after=place)
    chat.type("\x03")
    place = chat.wait_for("Ctrl-D or /exit leaves.", after=place)
    chat.wait_for(">>> ", after=place)
    chat.type("\x04")
    assert chat.process.wait(timeout=10) == 0
    assert "Traceback" not in chat.screen


def test_a_terminal_sees_no_control_characters_and_a_dim_line_of_figures(terminal):
    generate = terminal("generate", "Hello", "-n", 300, "--show-drafts")
    generate.process.wait(timeout=10)
    generate.wait_for("cut off by --max-tokens")
    sequences = set(re.findall(r"\x1b\[[^A-Za-z]*[A-Za-z]", generate.screen))
    assert {"\x1b[32m", "\x1b[2m", "\x1b[0m"} == sequences
    assert not re.search(r"[\x00-\x08\x0b\x0c\x0e-\x1a\x1c-\x1f\x7f]", generate.screen)


def test_a_batch_on_a_terminal_shows_a_bar_and_whole_lines(terminal, tmp_path):
    prompts = tmp_path / "prompts.txt"
    prompts.write_text("A\nB\nC\n")
    generate = terminal("generate", "--prompts", prompts, "-n", 400, "--context-length", 2000)
    generate.wait_for("3 prompts, 1200 tokens")
    assert "/3" in generate.screen
    lines = re.sub(r"\x1b\[[^A-Za-z]*[A-Za-z]", "", generate.screen).replace("\r", "\n").split("\n")
    assert [json.loads(line)["index"] for line in lines if line.startswith('{"index"')] == [0, 1, 2]


def test_with_a_bar_on_the_terminal_answers_still_go_to_stdout(terminal, tmp_path):
    prompts, answers = tmp_path / "prompts.txt", tmp_path / "answers.jsonl"
    prompts.write_text("A\nB\nC\n")
    with answers.open("w") as stdout:
        generate = terminal("generate", "--prompts", prompts, "-n", 50, stdout=stdout)
        generate.wait_for("3 prompts, 150 tokens")
        generate.process.wait(timeout=10)
    assert [json.loads(line)["index"] for line in answers.read_text().splitlines()] == [0, 1, 2]
    assert "Prompts" in generate.screen
    assert "index" not in generate.screen
