"""Text from token ids as they arrive: each push returns what is complete, never half a character.

detokeniser = Detokeniser(tokenizer)
for token in tokens: print(detokeniser.push(token), end="")
print(detokeniser.flush())
"""

from __future__ import annotations

import codecs
from typing import Protocol


class TokenBytes(Protocol):
    """Whatever knows the bytes of a token: a Tokenizer."""

    def token_bytes(self, token: int, /) -> bytes:
        """What the token adds to the text; b"" for control tokens."""
        ...


class Detokeniser:
    """Decodes the ids of one text, in order; the pushed pieces and the flushed tail join to `tokenizer.decode(ids)`.

    Invalid UTF-8 becomes U+FFFD, one for each maximal invalid part (the Unicode standard's recommendation, which
    Python and the `tokenizers` library both follow), so the result does not depend on how bytes fall into tokens.
    """

    def __init__(self, tokenizer: TokenBytes) -> None:
        self._token_bytes = tokenizer.token_bytes
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._unfinished = False

    def push(self, token: int) -> str:
        """The text that `token` completes, "" while a character is unfinished. RequestError for an unknown id."""
        added = self._token_bytes(token)
        if not self._unfinished:
            try:
                return added.decode()  # mostly whole characters, and then this is the shortest way
            except UnicodeDecodeError:
                pass
        text = self._decoder.decode(added)
        self._unfinished = bool(self._decoder.getstate()[0])
        return text

    def flush(self) -> str:
        """The tail: U+FFFD if the last character was left unfinished, else "". A new text may be pushed then."""
        tail = self._decoder.decode(b"", final=True)
        self._decoder.reset()
        self._unfinished = False
        return tail
