"""Against llama.cpp: tests/golden/tokenizer_vectors.json holds its answers, make_tokenizer_vectors.py made them.

Where llama.cpp differs from the models' own tokenizer.json (Hugging Face `tokenizers`, with which they were trained),
we follow the latter; the two known cases are listed below with the reason.
"""

from __future__ import annotations

import hashlib
import json
import time
import unicodedata
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from outrider.tokenizer import Tokenizer

GOLDEN: dict[str, Any] = json.loads((Path(__file__).parents[1] / "golden" / "tokenizer_vectors.json").read_text())
PRE_TOKENISERS = ("smollm", "gpt-2", "llama-bpe", "qwen2")


def with_rules(metadata: Mapping[str, Any], pre: str) -> Tokenizer:
    """The default model's vocabulary, extended as for llama.cpp, under other rules."""
    merges = GOLDEN["added_merges"]
    tokens = [*(merge.replace(" ", "") for merge in merges), GOLDEN["added_word"]]
    extensions = {"tokens": tokens, "token_type": [1] * len(tokens), "merges": merges}
    changes = {f"tokenizer.ggml.{key}": [*metadata[f"tokenizer.ggml.{key}"], *more] for key, more in extensions.items()}
    return Tokenizer.from_metadata({**metadata, **changes, "tokenizer.ggml.pre": pre}, "smollm2")


def differences(tokenizer: Tokenizer, golden: str) -> set[str]:
    """The texts that `tokenizer` and llama.cpp under the rules `golden` encode differently."""
    return {
        text
        for text, expected in zip(GOLDEN["texts"], GOLDEN[golden], strict=True)
        if tokenizer.encode(text, add_special_tokens=False) != expected
    }


def explained(pre: str) -> set[str]:
    """Bytes that the vocabulary lacks: dropped before merging by `tokenizers`, after it by llama.cpp.
    Qwen's tokenizer.json asks for Unicode normal form C, which llama.cpp does not have."""
    lacking = {text for text in GOLDEN["texts"] if "lacks" in text}
    decomposed = {text for text in GOLDEN["texts"] if not unicodedata.is_normalized("NFC", text)}
    return lacking | decomposed if pre == "qwen2" else lacking


@pytest.mark.parametrize("pre", PRE_TOKENISERS)
def test_ids_are_those_of_llama_cpp(default_metadata: Mapping[str, object], pre: str) -> None:
    assert differences(with_rules(default_metadata, pre), pre) <= explained(pre)


@pytest.mark.parametrize("pre", PRE_TOKENISERS)
def test_rules_of_another_model_are_noticed(default_metadata: Mapping[str, object], pre: str) -> None:
    """Negative control: each set of rules, put in place of another, changes ids."""
    tokenizer = with_rules(default_metadata, pre)
    assert all(differences(tokenizer, other) - explained(other) for other in PRE_TOKENISERS if other != pre)


def test_a_byte_that_the_vocabulary_lacks_is_dropped_before_merging(default_tokenizer: Tokenizer) -> None:
    assert default_tokenizer.encode("lacks: \x04|") == default_tokenizer.encode("lacks: |")


def test_qwen2_reads_composed_and_decomposed_letters_alike(default_metadata: Mapping[str, object]) -> None:
    qwen2, smollm = with_rules(default_metadata, "qwen2"), with_rules(default_metadata, "smollm")
    assert qwen2.encode("e\u0301") == qwen2.encode("\u00e9")
    assert smollm.encode("e\u0301") != smollm.encode("\u00e9")


def test_bytes_of_every_token_are_those_of_llama_cpp(default_metadata: Mapping[str, object]) -> None:
    tokenizer = with_rules(default_metadata, "smollm")
    digest = hashlib.sha256()
    for token in range(tokenizer.vocabulary_size):
        piece = tokenizer.token_bytes(token)
        digest.update(len(piece).to_bytes(4, "little") + piece)
    assert tokenizer.vocabulary_size == GOLDEN["vocabulary_size"]
    assert digest.hexdigest() == GOLDEN["pieces_sha256"]


def test_ends_of_turn_are_those_of_llama_cpp(default_tokenizer: Tokenizer) -> None:
    """But for <reponame> (4), which llama.cpp takes for the end of an infilled file; it does not end a turn."""
    assert default_tokenizer.eos_ids == (2, 0)
    assert {*default_tokenizer.eos_ids, 4} == set(GOLDEN["end_of_generation"])


def test_a_conversation_is_rendered_in_the_models_format(default_tokenizer: Tokenizer) -> None:
    prompt = default_tokenizer.render_chat([{"role": "user", "content": "Hi"}])
    assert prompt == (
        "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
        "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    )


def test_loading_and_encoding_are_fast(default_metadata: Mapping[str, object]) -> None:
    """Wide margins, since test machines are shared: 0.1 s and 2 us a token in quiet."""
    start = time.perf_counter()
    tokenizer = Tokenizer.from_metadata(default_metadata, "smollm2")
    loaded = time.perf_counter()
    tokens = tokenizer.encode("The quick brown fox jumps over the lazy dog.\n" * 10_000)
    encoded = time.perf_counter()
    assert loaded - start < 2
    assert (encoded - loaded) / len(tokens) < 50e-6
