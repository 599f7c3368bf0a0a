"""What a request says about drafting, in one word."""

from __future__ import annotations

import pytest

from outrider.errors import RequestError
from outrider.speculation import AUTO, OFF, Speculation

FORMS = {
    "auto": AUTO,
    "off": OFF,
    "ngram": Speculation("ngram"),
    "4": Speculation(length=4),
    "0": OFF,
    "ngram:4": Speculation("ngram", 4),
    " auto ": AUTO,
}


@pytest.mark.parametrize(("text", "expected"), FORMS.items())
def test_every_form_is_read(text: str, expected: Speculation) -> None:
    assert Speculation.parse(text) == expected


@pytest.mark.parametrize("speculation", [*FORMS.values(), Speculation("suffix", 0)])
def test_what_is_written_is_read_again(speculation: Speculation) -> None:
    again = Speculation.parse(str(speculation))
    assert again == speculation or again.length == speculation.length == 0


@pytest.mark.parametrize("text", ["", "on it", "-1", "1.5", "ngram:", ":4", "ngram:x", "ngram:-1", "a:b:3", "٤"])
def test_anything_else_is_refused_with_the_forms(text: str) -> None:
    with pytest.raises(RequestError, match=r"speculation=.*auto, off, a drafter's name"):
        Speculation.parse(text)


def test_a_negative_length_is_refused() -> None:
    with pytest.raises(RequestError, match="speculation=-1"):
        Speculation(length=-1)
