"""The library as its users call it: prompts of every kind, several threads, forks, and settings that cannot be had."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from outrider import LLM, RequestError, SamplingParams
from outrider.llm import completion
from outrider.models.base import KVShape
from tests.tiny import tiny_llama

SHORT = SamplingParams(max_tokens=8, ignore_eos=True)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_llama(tmp_path_factory.mktemp("model") / "tiny.gguf")


@pytest.fixture
def llm(path: Path) -> Iterator[LLM]:
    llm = LLM(path, threads=1)
    yield llm
    assert llm.engine.idle or not llm.engine.scheduler.running
    assert llm.engine.cache.pool.free == llm.engine.cache.pool.size, "all KV is free again"


def test_texts_ids_and_conversations_are_prompts(llm: LLM) -> None:
    conversation = [{"role": "user", "content": "Hi"}]
    texts = llm.generate(["Hello", [72, 105], conversation], SHORT)  # type: ignore[list-item]
    assert [len(each.token_ids) for each in texts] == [8, 8, 8]
    assert texts[2].token_ids == llm.chat(conversation, SHORT).token_ids  # type: ignore[arg-type]
    assert texts[1].token_ids == llm.generate("Hi", SHORT)[0].token_ids


def test_ids_may_be_numpys(llm: LLM) -> None:
    ids = np.array([72, 105])
    assert llm.generate([ids], SHORT)[0].token_ids == llm.generate([[72, 105]], SHORT)[0].token_ids  # type: ignore[list-item]


def test_what_was_computed_before_is_not_computed_again_unless_asked(llm: LLM) -> None:
    prompt = "A prompt of several blocks, " * 4
    cold, warm = llm.generate(prompt, SHORT)[0], llm.generate(prompt, SHORT)[0]
    assert (cold.cached_tokens, warm.cached_tokens) == (0, cold.prompt_tokens - 2)
    request = llm.request(prompt, SHORT, reuse=False)
    for _ in llm.run([request]):
        pass
    assert completion(request).cached_tokens == 0
    assert completion(request).token_ids == cold.token_ids == warm.token_ids


@pytest.mark.parametrize("prompts", [[1, 2, 3], [[1, "a"]], [[True]], [None], [[{"role": "user"}, 3]], [[1.0]]])
def test_other_things_are_refused_by_name(llm: LLM, prompts: object) -> None:
    with pytest.raises(RequestError):
        llm.generate(prompts, SHORT)  # type: ignore[arg-type]


def test_streamed_pieces_join_to_the_text(llm: LLM) -> None:
    emitted = list(llm.stream("Hello", SHORT))
    done = completion(emitted[-1].request)
    assert "".join(each.text for each in emitted) == done.text == llm.generate("Hello", SHORT)[0].text
    assert [token for each in emitted for token in each.token_ids] == list(done.token_ids)


def test_a_closed_stream_frees_everything_and_disturbs_nobody(llm: LLM) -> None:
    alone = llm.generate("Second", SHORT)[0].token_ids
    first, second = llm.stream("First", SHORT), llm.stream("Second", SHORT)
    next(first)
    next(second)
    first.close()  # type: ignore[attr-defined]
    assert completion(list(second)[-1].request).token_ids == alone


def test_streams_of_several_threads_have_the_texts_that_they_have_alone(llm: LLM) -> None:
    prompts = [f"Text {number}" for number in range(4)]
    alone = [each.token_ids for each in llm.generate(prompts, SHORT)]
    texts: dict[int, tuple[int, ...]] = {}

    def consume(number: int) -> None:
        texts[number] = completion(list(llm.stream(prompts[number], SHORT))[-1].request).token_ids

    threads = [threading.Thread(target=consume, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [texts[number] for number in range(4)] == alone


def test_a_model_loaded_before_a_fork_says_so_in_the_child(path: Path) -> None:
    llm = LLM(path, threads=2)
    llm.generate("a", SHORT)
    child = os.fork()
    if child == 0:  # must neither hang nor crash
        try:
            llm.generate("a", SHORT)
        except RuntimeError as error:
            os._exit(7 if "forked" in str(error) else 1)
        os._exit(2)
    deadline = time.monotonic() + 20
    while (ended := os.waitpid(child, os.WNOHANG)) == (0, 0) and time.monotonic() < deadline:
        time.sleep(0.01)
    if ended == (0, 0):
        os.kill(child, 9)
    assert os.waitstatus_to_exitcode(ended[1]) == 7
    assert llm.generate("a", SHORT)[0].finish_reason == "length", "the parent goes on"


def test_a_cache_that_the_system_refuses_names_its_size(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(shape: KVShape, blocks: int) -> None:
        raise OSError(12, "Cannot allocate memory")

    monkeypatch.setattr("outrider.llm.KVCache", refuse)
    with pytest.raises(RequestError, match=r"KV cache for 1024 tokens needs 0\.0 GiB.*lower context_length"):
        LLM(path, threads=1)


@pytest.mark.parametrize(
    ("setting", "value"),
    [("context_length", 257), ("context_length", 1), ("kv_tokens", 31), ("threads", 0), ("speculation", "magic"),
     ("max_batch", 0), ("max_draft", -1)],
)  # fmt: skip
def test_impossible_settings_are_named(path: Path, setting: str, value: object) -> None:
    with pytest.raises(RequestError, match=setting.replace("_", ".")):
        LLM(path, **{setting: value})  # type: ignore[arg-type]
