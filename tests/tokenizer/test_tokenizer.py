"""Metadata to tokenizer, text to ids and back, on a vocabulary that can be checked by hand."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.errors import ModelFileError, RequestError, UnsupportedModelError
from outrider.tokenizer import Tokenizer
from outrider.tokenizer.bpe import BYTE_OF
from tests.tokenizer.small import BOS, END, THINK, UNUSED, metadata


def tokenizer(**changes: object) -> Tokenizer:
    return Tokenizer.from_metadata(metadata(**changes), "tiny.gguf")


def test_merges_apply_in_their_order() -> None:
    assert tokenizer().encode("hello") == [256, 257, ord("o")]


def test_merges_stop_at_the_words_of_the_pre_tokeniser() -> None:
    assert tokenizer().encode("h e") == [ord("h"), ord(" "), ord("e")]


def test_a_whole_word_of_the_vocabulary_is_one_token_only_where_merges_are_ignored() -> None:
    words = metadata()["tokenizer.ggml.tokens"]
    assert isinstance(words, list)
    changes = {"tokens": [*words, "hell"], "token_type": None, "add_bos_token": False}
    assert tokenizer(pre="llama-bpe", **changes).encode("hell") == [len(words)]
    assert tokenizer(pre="gpt-2", **changes).encode("hell") == [256, 257]


def test_special_tokens_in_a_text_are_read_as_such() -> None:
    assert tokenizer().encode("<|im_end|>h<think>") == [END, ord("h"), THINK]


@given(st.text(st.characters(codec="utf-8", exclude_characters="<")))  # thus without special tokens
def test_decoding_gives_the_text_back(text: str) -> None:
    assert TINY.decode(TINY.encode(text)) == text


TINY = tokenizer()


@given(st.lists(st.sampled_from(["hello", "he", "ll", "<|im_start|>", "<think>", "é!", "\0", "世"])).map("".join))
def test_a_text_never_has_fewer_tokens_than_its_bytes_say(text: str) -> None:
    assert TINY.fewest(text) <= len(TINY.encode(text))


def test_the_longest_token_is_known() -> None:
    """Here the 13 letters of `<|endoftext|>`: it may be written in a text."""
    assert [TINY.fewest("x" * count) for count in (0, 1, 13, 14, 2600)] == [0, 1, 1, 2, 200]
    words = metadata()["tokenizer.ggml.tokens"]
    assert isinstance(words, list)
    longer = tokenizer(tokens=[*words, "é" * 20], token_type=[1] * (len(words) + 1))
    assert longer.fewest("x" * 21) == 2, "é stands for one byte there"


def test_bytes_that_the_vocabulary_lacks_do_not_count() -> None:
    """They are dropped, so a text may hold any number of them."""
    words = metadata()["tokenizer.ggml.tokens"]
    assert isinstance(words, list)
    letter = next(letter for letter, byte in BYTE_OF.items() if byte == 4)
    changed = ["[nothing]" if word == letter else word for word in words]
    lacking = tokenizer(tokens=changed)
    assert lacking.encode("\x04" * 1000 + "h") == [ord("h")]
    assert lacking.fewest("\x04" * 1000 + "h") == 1


def test_what_normal_form_c_composes_counts_a_quarter() -> None:
    text = "\u1fbe\u0308\u0301" * 100
    composing = tokenizer(pre="qwen2", add_bos_token=False)
    assert composing.fewest(text) <= len(composing.encode(text)) == 200


def test_control_tokens_decode_to_nothing_and_user_defined_ones_to_themselves() -> None:
    assert [TINY.token_bytes(token) for token in (BOS, END, THINK, UNUSED)] == [b"", b"", b"<think>", b""]
    assert TINY.decode([BOS, 256, END, THINK]) == "he<think>"


def test_a_token_can_end_inside_a_character() -> None:
    assert TINY.token_bytes(258) == b"\xa9!"
    assert TINY.decode([0xC3, 258]) == "é!"
    assert TINY.decode([258]) == "\ufffd!"


@pytest.mark.parametrize("token", [-1, UNUSED + 1, 10**9])
def test_ids_outside_the_vocabulary_are_refused(token: int) -> None:
    assert TINY.vocabulary_size == UNUSED + 1
    with pytest.raises(RequestError, match=rf"token id {token} .*tiny\.gguf: 0 to {UNUSED}"):
        TINY.decode([token])


def test_half_a_surrogate_pair_is_refused() -> None:
    with pytest.raises(RequestError, match=r"lone surrogate, U\+D800 at character 2"):
        TINY.encode("ab\ud800")


@pytest.mark.parametrize(
    ("text", "expected"), [("h", [BOS, ord("h")]), ("<|endoftext|>h", [BOS, ord("h")]), ("", [BOS])]
)
def test_bos_is_put_in_front_exactly_once(text: str, expected: list[int]) -> None:
    assert tokenizer(add_bos_token=True).encode(text) == expected


def test_bos_is_left_out_where_not_wanted() -> None:
    assert tokenizer(add_bos_token=True).encode("h", add_special_tokens=False) == [ord("h")]
    assert tokenizer(add_bos_token=False).encode("h") == [ord("h")]
    assert tokenizer().encode("h") == [ord("h")]


def test_llama_3_files_that_do_not_say_want_bos() -> None:
    assert tokenizer(pre="llama-bpe").encode("h") == [BOS, ord("h")]


@pytest.mark.parametrize("template", ["{{ bos_token }}{{ messages[0].content }}", "{{ messages[0].content }}"])
def test_bos_is_not_doubled_by_the_chat_template(template: str) -> None:
    chat = tokenizer(add_bos_token=True, chat_template=template)
    assert chat.encode(chat.render_chat([{"role": "user", "content": "h"}])) == [BOS, ord("h")]


def test_ends_of_turn_are_the_files_own_and_those_known_by_name() -> None:
    assert tokenizer().eos_ids == (END, BOS)  # <|im_end|> by the file; <|endoftext|>, here also BOS, by name
    assert tokenizer(eos_token_id=None, eot_token_id=THINK).eos_ids == (THINK, BOS, END)


def test_a_file_may_have_no_end_of_turn() -> None:
    assert tokenizer(eos_token_id=None, bos_token_id=None, token_type=[1] * (UNUSED + 1)).eos_ids == ()


def test_an_end_of_turn_mislabelled_as_text_is_still_one() -> None:
    kinds = [*[1] * END, 4, 4, 5]
    mislabelled = tokenizer(token_type=kinds, eos_token_id=None)
    assert mislabelled.eos_ids == (END,)
    assert mislabelled.token_bytes(END) == b""


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model": "llama"}, r"tokenizer\.ggml\.model is 'llama'; this version supports gpt2"),
        (
            {"pre": "tekken"},
            r"tokenizer\.ggml\.pre is 'tekken'; this version supports gpt-2, .*smollm.*llama-bpe.*qwen2",
        ),
        ({"add_eos_token": True}, r"tokenizer\.ggml\.add_eos_token is True; this version supports false"),
        ({"add_space_prefix": True}, r"tokenizer\.ggml\.add_space_prefix is True"),
    ],
)
def test_other_kinds_of_tokenizer_are_refused(changes: dict[str, object], message: str) -> None:
    with pytest.raises(UnsupportedModelError, match=rf"tiny\.gguf: {message}"):
        tokenizer(**changes)


@pytest.mark.parametrize("field", ["model", "pre", "tokens", "merges"])
def test_a_missing_field_is_named(field: str) -> None:
    with pytest.raises(ModelFileError, match=rf"tiny\.gguf: tokenizer\.ggml\.{field} is missing"):
        tokenizer(**{field: None})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model": 7}, "model is 7; expected a string"),
        ({"tokens": "abc"}, "tokens is 'abc'; expected an array of strings"),
        ({"tokens": [1, 2]}, r"tokens is \[1, 2\]; expected an array of strings"),
        ({"merges": [b"h e"]}, "merges is .*; expected an array of strings"),
        ({"token_type": [1]}, "token_type has 1 values; expected one for each of the 264 tokens"),
        ({"token_type": [1.5] * 264}, "token_type is .*; expected an array of integers"),
        ({"merges": ["he"]}, "merges has 'he'; expected two tokens, a space between"),
        ({"merges": ["h o"]}, "merges has 'h o'; .* that join to a token"),
        ({"merges": ["h ee"]}, "merges has 'h ee'"),
        ({"tokens": ["a"] * 264, "merges": []}, "tokens has 'a' twice, as ids 0 and 263"),
        ({"eos_token_id": 264}, "eos_token_id is 264; expected an id below 264"),
        ({"bos_token_id": -1}, "bos_token_id is -1; expected an id below 264"),
        ({"bos_token_id": "x"}, "bos_token_id is 'x'; expected an integer"),
        ({"add_bos_token": 1}, "add_bos_token is 1; expected true or false"),
        ({"add_bos_token": True, "bos_token_id": None}, "bos_token_id is missing"),
    ],
)
def test_a_broken_field_is_named_with_its_value(changes: dict[str, object], message: str) -> None:
    with pytest.raises(ModelFileError, match=rf"^tiny\.gguf: tokenizer\.ggml\.{message}"):
        tokenizer(**changes)


def test_a_chat_template_of_the_wrong_type_is_refused() -> None:
    with pytest.raises(ModelFileError, match=r"tiny\.gguf: tokenizer\.chat_template is a int; expected a string"):
        tokenizer(chat_template=3)


def test_a_missing_chat_template_matters_only_for_chat() -> None:
    raw = tokenizer(chat_template=None)
    assert raw.encode("h") == [ord("h")]
    with pytest.raises(UnsupportedModelError, match=r"tiny\.gguf: tokenizer\.chat_template is missing"):
        raw.render_chat([{"role": "user", "content": "h"}])
