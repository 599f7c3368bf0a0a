"""The incremental detokeniser against decoding all at once, here and in the `tokenizers` library."""

from __future__ import annotations

from itertools import chain

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tokenizers import decoders

from outrider.errors import RequestError
from outrider.tokenizer import Detokeniser, Tokenizer
from outrider.tokenizer.bpe import build_encoder, read_vocabulary
from tests.tokenizer.small import BOS, END, THINK, UNUSED, metadata

TINY = Tokenizer.from_metadata(metadata(), "tiny.gguf")
LIBRARY = build_encoder(read_vocabulary(metadata(token_type=[*[1] * BOS, 3, 3, 3, 4, 3]), "tiny.gguf"), "tiny.gguf")
LIBRARY.decoder = decoders.ByteLevel()

any_bytes = st.lists(st.integers(0, UNUSED), max_size=40)
pieces_of_text = st.text(max_size=20).map(lambda text: list(text.encode()))
token_lists = st.one_of(
    any_bytes,
    pieces_of_text,
    st.lists(st.one_of(any_bytes, pieces_of_text)).map(lambda lists: [*chain.from_iterable(lists)]),
)


def pushed(tokens: list[int], detokeniser: Detokeniser) -> list[str]:
    return [*(detokeniser.push(token) for token in tokens), detokeniser.flush()]


def disagrees(tokens: list[int]) -> bool:
    """Whether decoding each token by itself, the mistake to avoid, would show."""
    return "".join(TINY.decode([token]) for token in tokens) != TINY.decode(tokens)


@given(token_lists)
@example(list("😀".encode()))
@example([0xF0, 0x9F, THINK, 0x98, 0x80])
@example([0xF0, 0x9F, END, 0x98, 0x80])
@example([0xED, 0xA0, 0x80, 0xC0, 0x80, 0xF4, 0x90, 0x80, 0x80, 0xFF])
@example([0xC3, 258, 0xC3])
def test_pieces_join_to_the_text_decoded_at_once(tokens: list[int]) -> None:
    text = "".join(pushed(tokens, Detokeniser(TINY)))
    assert text == TINY.decode(tokens)
    assert text == LIBRARY.decode(tokens, skip_special_tokens=True)


def test_decoding_token_by_token_would_be_noticed() -> None:
    """Negative control of the test above."""
    assert disagrees(list("😀".encode()))
    assert disagrees([0xC3, 258])


@given(st.text(max_size=20))
def test_a_character_appears_with_its_last_byte_and_never_in_part(text: str) -> None:
    detokeniser = Detokeniser(TINY)
    for character in text:
        *first, last = character.encode()
        assert [detokeniser.push(byte) for byte in first] == [""] * len(first)
        assert detokeniser.push(last) == character
    assert detokeniser.flush() == ""


def test_a_token_may_end_one_character_and_hold_another() -> None:
    assert pushed([0xC3, 258], Detokeniser(TINY)) == ["", "é!", ""]


def test_an_unfinished_character_is_flushed_once() -> None:
    detokeniser = Detokeniser(TINY)
    assert pushed([ord("a"), 0xF0, 0x9F], detokeniser) == ["a", "", "", "\ufffd"]
    assert detokeniser.flush() == ""


def test_a_flushed_detokeniser_starts_afresh() -> None:
    detokeniser = Detokeniser(TINY)
    pushed([0xC3], detokeniser)
    assert pushed([258, ord("b")], detokeniser) == ["\ufffd!", "b", ""]


def test_unknown_ids_are_refused_and_leave_the_text_as_it_was() -> None:
    detokeniser = Detokeniser(TINY)
    detokeniser.push(0xC3)
    with pytest.raises(RequestError, match="token id 264"):
        detokeniser.push(264)
    assert detokeniser.push(258) == "é!"
