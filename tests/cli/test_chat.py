"""`outrider chat`: what is remembered, what is typed beside messages, and a full context."""

from __future__ import annotations

import pytest

from outrider.llm import LLM
from outrider.sampling import SamplingParams

MANY = ("-n", "8")


@pytest.fixture
def chat(outrider):
    """Type lines into a chat; the texts printed, and stderr."""

    def run(*lines, args=MANY):
        result = outrider("chat", *args, stdin="".join(line + "\n" for line in lines))
        assert result.exit_code == 0, result.output
        return result

    return run


def conversations(seen):
    """The prompts, as text."""
    return [llm.tokenizer.decode(request.prompt) for llm, request in seen]


def test_each_answer_is_the_one_to_the_whole_conversation(chat, seen, model):
    result = chat("One", "Two")
    llm, messages, texts = LLM(model), [], []
    for text in ("One", "Two"):
        messages.append({"role": "user", "content": text})
        messages.append({"role": "assistant", "content": llm.chat(messages, SamplingParams(max_tokens=8)).text})
        texts.append(messages[-1]["content"])
    assert [request.text for _, request in seen[:2]] == texts
    assert result.stdout_bytes.decode() == "".join(text + "\n" * (not text.endswith("\n")) for text in texts)
    assert result.stderr.count("8 tokens, ") == 2


def test_a_memory_that_lost_the_answer_would_show(chat, seen):
    """Negative control: the second prompt holds the first answer."""
    chat("One", "Two")
    first, second = conversations(seen)
    assert second.startswith(first + seen[0][1].text)
    assert second != first + "\nuser\nTwo"


def test_what_was_written_before_ctrl_c_stays_in_the_conversation(chat, seen, press_ctrl_c):
    press_ctrl_c(20)
    result = chat("One", "Two", args=("-n", "90000"))
    assert result.stderr.count("interrupted") == 2
    first, second = conversations(seen)
    assert 20 <= seen[0][1].completion_tokens < 40
    assert second == first + seen[0][1].text + "\nuser\nTwo\nassistant\n"


def test_reset_forgets_all_but_the_system_message(chat, seen):
    result = chat("One", "/reset", "Two", args=(*MANY, "--system", "Be brief."))
    _, second = conversations(seen)
    assert second == "system\nBe brief.\nuser\nTwo\nassistant\n"
    assert "A new conversation." in result.stderr


def test_exit_leaves(chat, seen):
    chat("One", "/exit", "Two")
    assert len(seen) == 1


def test_help_and_what_does_not_exist(chat, seen):
    result = chat("/help", "/frobnicate", "", "   ")
    assert "/reset" in result.stderr
    assert "There is no /frobnicate; /help shows what there is." in result.stderr
    assert result.stdout == ""
    assert not seen


def test_a_message_may_begin_with_a_slash(chat, seen):
    chat("/etc/hosts is what?")
    assert "/etc/hosts is what?" in conversations(seen)[0]


def test_a_full_context_is_told_and_a_reset_helps(chat, seen):
    result = chat("A" * 10, "B" * 80, "C", "/reset", "D" * 30, args=("--context-length", "80", "-n", "8"))
    assert result.stderr.count("The context is full") == 1
    assert "/reset" in result.stderr
    prompts = conversations(seen)
    assert ["A" in prompts[0], "C" in prompts[1], "D" in prompts[2]] == [True] * 3
    assert not any("B" in prompt for prompt in prompts), "a message that was not sent is not remembered"


def test_an_answer_that_fills_the_context_says_so(chat):
    assert "cut off: the context is full" in chat("A" * 30, args=("--context-length", "60")).stderr


def test_an_error_ends_the_turn_and_not_the_chat(chat, seen, monkeypatch):
    original = LLM.request

    def request(self, prompt, params):
        made = original(self, prompt, params)
        if not seen:
            made.params = SamplingParams(max_tokens=8, logprobs=0)
        return made

    monkeypatch.setattr(LLM, "request", request)
    monkeypatch.setattr("outrider.engine.logprobs", lambda *_: 1 / 0)
    result = chat("One", "Two")
    assert result.stderr.count("error: division by zero") == 1
    assert conversations(seen)[1] == "user\nTwo\nassistant\n"


def test_show_drafts_needs_speculation_and_a_terminal(outrider, monkeypatch):
    assert outrider("chat", "--show-drafts", stdin="").exit_code == 2
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert outrider("chat", "--show-drafts", "--speculation", "off", stdin="").exit_code == 2
    assert outrider("chat", "--show-drafts", stdin="").exit_code == 0
