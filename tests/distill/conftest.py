"""A tiny target that ends its turns, and a corpus that it wrote."""

from __future__ import annotations

from contextlib import closing

import gguf
import pytest

from outrider.distill import corpus
from outrider.distill.target import Target
from outrider.llm import LLM
from outrider.tokenizer import Tokenizer
from tests.tiny import BYTE_TOKENS, CONTROLS, tiny_llama

END_OF_TURN = len(BYTE_TOKENS) + CONTROLS.index("<|im_end|>")


@pytest.fixture(autouse=True)
def one_thread(monkeypatch):
    """Two that spin would wait for each other on a busy machine."""
    monkeypatch.setenv("OUTRIDER_THREADS", "1")


@pytest.fixture(scope="session")
def model(tmp_path_factory):
    """Path of a model of as many layers as a head needs. It ends its turn as often as it says "a"."""
    path = tiny_llama(tmp_path_factory.mktemp("distill") / "tiny.gguf", seed=3, layers=8, context=512)
    for tensor in gguf.GGUFReader(path, "r+").tensors:
        if tensor.name == "output.weight":
            tensor.data[END_OF_TURN] = tensor.data[ord("a")]
    return path


@pytest.fixture(scope="session")
def target(model):
    return Target(model)


@pytest.fixture(scope="session")
def tokenizer(target):
    return Tokenizer.from_metadata(target.gguf.metadata, "tiny")


@pytest.fixture(scope="session")
def corpus_path(model, tmp_path_factory):
    """A corpus of at least 800 answer tokens."""
    path = tmp_path_factory.mktemp("corpus") / "corpus.jsonl"
    llm = LLM(model, context_length=512, max_batch=corpus.TOGETHER, kv_tokens=corpus.TOGETHER * 512, threads=1)
    with closing(corpus.interview(llm, path, seed=5)) as growing:
        next(tokens for tokens in growing if tokens >= 800)
    return path


@pytest.fixture(scope="session")
def dialogues(corpus_path, tokenizer):
    return corpus.read(corpus_path, tokenizer)
