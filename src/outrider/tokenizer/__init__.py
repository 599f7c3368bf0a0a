"""Text to token ids and back, by the tokenizer in a GGUF file, and conversations to prompts by its chat template.

tokenizer = Tokenizer.from_metadata(GGUF.open(path).metadata, path.name)
tokens = tokenizer.encode(tokenizer.render_chat([{"role": "user", "content": "Hello"}]))
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property

import tokenizers

from outrider.errors import ModelFileError, RequestError, UnsupportedModelError
from outrider.tokenizer.bpe import BYTE_OF, Vocabulary, build_encoder, read_vocabulary
from outrider.tokenizer.detokeniser import Detokeniser
from outrider.tokenizer.template import ChatTemplate, Message

__all__ = ["Detokeniser", "Message", "Tokenizer"]

_COMPOSED = 4
"""Bytes that normal form C makes one of, at most; the most seen is 3.5, of a Greek iota with two accents."""


class Tokenizer:
    """A model's tokenizer. Immutable as far as a caller can see; may be shared by threads.

    bos_id   the token that starts a text, if the file names one.
    eos_ids  the tokens that end an answer: the file's own first, then those known by name (`<|im_end|>`, ...);
             possibly none.
    """

    def __init__(self, vocabulary: Vocabulary, chat_template: str | None, source: str) -> None:
        self._vocabulary = vocabulary
        self._encoder: tokenizers.Tokenizer = build_encoder(vocabulary, source)
        self._bytes: list[bytes | None] = [None] * len(vocabulary.tokens)
        self._chat_template = chat_template
        self._source = source
        self.bos_id = vocabulary.specials.get("bos")
        self.eos_ids = vocabulary.eos_ids

    @classmethod
    def from_metadata(cls, metadata: Mapping[str, object], source: str) -> Tokenizer:
        """The tokenizer in a GGUF file's metadata; `source` names the file in messages.

        Raises ModelFileError if a field is missing or wrong, UnsupportedModelError if the file needs another kind of
        tokenizer; a missing or broken chat template is an error only when it is used.
        """
        template = metadata.get("tokenizer.chat_template")
        if template is not None and not isinstance(template, str):
            raise ModelFileError(f"{source}: tokenizer.chat_template is a {type(template).__name__}; expected a string")
        return cls(read_vocabulary(metadata, source), template, source)

    @property
    def vocabulary_size(self) -> int:
        """Number of token ids: 0 .. vocabulary_size - 1."""
        return len(self._bytes)

    def difference(self, other: Tokenizer) -> str | None:
        """The first id that means one thing here and another there, in words; None where there is none.

        Unused ids at the end of one of the two, which pad a vocabulary to a round size, are no difference.
        """
        mine, theirs = self._vocabulary, other._vocabulary
        if (mine.tokens, mine.kinds) == (theirs.tokens, theirs.kinds):
            return None
        for token in range(max(len(mine.tokens), len(theirs.tokens))):
            here, there = mine.entry(token), theirs.entry(token)
            if here != there:
                return f"token {token} is {here} in {self._source} and {there} in {other._source}"
        return None

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """The ids of `text`, raw prompt and rendered chat alike.

        Special tokens written in the text (`<|im_start|>`) are read as such, the default of Hugging Face and of
        llama.cpp's server. With `add_special_tokens`, BOS is put in front if the model wants one and the text does not
        itself start with it. As in both those implementations, bytes that the vocabulary lacks are dropped (the default
        model lacks a few control characters and two lead bytes of unassigned planes).

        Raises RequestError if `text` holds half a surrogate pair, which no UTF-8 text can.
        """
        try:
            text.encode()
        except UnicodeEncodeError as error:
            where = f"U+{ord(text[error.start]):04X} at character {error.start}"
            raise RequestError(f"the text holds a lone surrogate, {where}; expected valid Unicode") from error
        tokens: list[int] = self._encoder.encode(text, add_special_tokens=False).ids
        if add_special_tokens and self._vocabulary.add_bos and self.bos_id is not None and tokens[:1] != [self.bos_id]:
            tokens.insert(0, self.bos_id)
        return tokens

    def fewest(self, text: str) -> int:
        """A bound that takes no time: the ids of `text` are so many or more, as each stands for few bytes at most."""
        longest, missing = self._bounds
        return -(-len(text.encode("utf-8", "replace").translate(None, missing)) // longest)

    def decode(self, tokens: Iterable[int]) -> str:
        """The text of `tokens`, control tokens left out; invalid UTF-8 becomes U+FFFD. RequestError for unknown ids."""
        return b"".join(map(self.token_bytes, tokens)).decode("utf-8", "replace")

    def token_bytes(self, token: int) -> bytes:
        """What a token adds to the text, possibly only a part of a character; b"" for control tokens.

        Raises RequestError if `token` is not in 0 .. vocabulary_size - 1.
        """
        if not 0 <= token < len(self._bytes):
            raise RequestError(
                f"token id {token} is not in the vocabulary of {self._source}: 0 to {len(self._bytes) - 1}"
            )
        known = self._bytes[token]
        if known is None:
            known = self._bytes[token] = self._vocabulary.bytes_of(token)
        return known

    def token_name(self, token: int) -> str:
        """What the model's file calls a token; that of a control token, such as `<|im_end|>`, is fit to be read.

        Raises RequestError as `token_bytes` does.
        """
        self.token_bytes(token)
        return self._vocabulary.tokens[token]

    def render_chat(self, messages: Sequence[Message], *, add_generation_prompt: bool = True) -> str:
        """The prompt that the model's chat template makes of `messages`; see `ChatTemplate.render` for errors.

        Raises UnsupportedModelError if the file has no chat template.
        """
        return self._template.render(messages, add_generation_prompt=add_generation_prompt)

    @cached_property
    def _bounds(self) -> tuple[int, bytes]:
        """How many bytes of a text a token stands for at most; and the bytes that the vocabulary lacks."""
        vocabulary = self._vocabulary
        most = max(map(len, vocabulary.tokens))  # a character is a byte to four
        longest = max(
            len(vocabulary.bytes_of(token) or name.encode())
            for token, name in enumerate(vocabulary.tokens)
            if 4 * len(name) >= most
        )
        singles = set(vocabulary.tokens)
        missing = bytes(byte for letter, byte in BYTE_OF.items() if letter not in singles)
        return longest * (_COMPOSED if vocabulary.pre.nfc else 1), missing

    @cached_property
    def _template(self) -> ChatTemplate:
        if self._chat_template is None:
            raise UnsupportedModelError(
                f"{self._source}: tokenizer.chat_template is missing; only raw prompts are possible"
            )
        special_tokens = {
            f"{name}_token": self._vocabulary.tokens[token] for name, token in self._vocabulary.specials.items()
        }
        return ChatTemplate(self._chat_template, self._source, special_tokens)
