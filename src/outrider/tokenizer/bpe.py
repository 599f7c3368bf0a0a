"""From a GGUF file's metadata to a vocabulary, and from that to a byte-level BPE encoder of the `tokenizers` library.

Everything that a broken or foreign file can get wrong is refused here, with the file's name, the field and its value.
"""

from __future__ import annotations

import reprlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from types import MappingProxyType

import tokenizers
from tokenizers import AddedToken, models, normalizers

from outrider.errors import ModelFileError, UnsupportedModelError
from outrider.tokenizer.pretokenisers import PRE_TOKENISERS, PreTokeniser

_PREFIX = "tokenizer.ggml."

_END_OF_TURN = {
    "<|im_end|>",
    "<|endoftext|>",
    "<|eot_id|>",
    "<|eom_id|>",
    "<|end_of_text|>",
    "<|end|>",
    "<end_of_turn>",
    "</s>",
    "<｜end▁of▁sentence｜>",
}
"""Tokens that end a turn whatever the file's eos_token_id says, by name, as in llama.cpp."""


class Kind(IntEnum):
    """What `tokenizer.ggml.token_type` says of a token; decided here for the rest of the package."""

    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


def _byte_alphabet() -> dict[str, int]:
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(0x100) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(0x100 + n): byte for n, byte in enumerate(others)}


BYTE_OF: Mapping[str, int] = MappingProxyType(_byte_alphabet())
"""GPT-2's alphabet: a printable character for each byte, in which vocabulary and merges are written."""


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """A byte-level BPE vocabulary.

    tokens, kinds  by id; the texts of normal tokens are in GPT-2's alphabet.
    specials       the ids that the file names, by Hugging Face's short names: bos, eos, unk, pad, ...
    eos_ids        the tokens that end a turn.
    add_bos        whether prompts start with BOS.
    """

    tokens: Sequence[str]
    kinds: Sequence[int]
    merges: Sequence[str]
    pre: PreTokeniser
    specials: Mapping[str, int]
    eos_ids: tuple[int, ...]
    add_bos: bool

    def entry(self, token: int) -> str:
        """An id in words; those past the end are unused."""
        if token >= len(self.tokens) or self.kinds[token] == Kind.UNUSED:
            return "unused"
        return f"{self.tokens[token]!r} (token_type {self.kinds[token]})"

    def bytes_of(self, token: int) -> bytes:
        """What a token adds to the text, in UTF-8, possibly only a part of a character; b"" for control tokens."""
        text, kind = self.tokens[token], self.kinds[token]
        if kind == Kind.USER_DEFINED:
            return text.encode()
        if kind != Kind.NORMAL:
            return b""
        try:
            return bytes([BYTE_OF[character] for character in text])
        except KeyError:  # not in the alphabet: llama.cpp and `tokenizers` differ; as the latter, the text itself
            return text.encode()


def read_vocabulary(metadata: Mapping[str, object], source: str) -> Vocabulary:
    """The vocabulary in the metadata of the GGUF file `source` (the name is for messages).

    Raises ModelFileError if a field is missing, has the wrong type or contradicts another; UnsupportedModelError if
    the file needs another kind of tokenizer.
    """
    fields = _Fields(metadata, source)
    if (model := fields.text("model")) != "gpt2":
        raise fields.unsupported("model", model, ["gpt2"])
    if (pre := fields.text("pre")) not in PRE_TOKENISERS:
        raise fields.unsupported("pre", pre, PRE_TOKENISERS)
    for flag in ("add_eos_token", "add_space_prefix"):
        if fields.flag(flag, default=False):
            raise fields.unsupported(flag, True, ["false"])
    rules = PRE_TOKENISERS[pre]
    tokens, merges = fields.texts("tokens"), fields.texts("merges")
    kinds = fields.integers("token_type", default=[Kind.NORMAL] * len(tokens))
    if len(kinds) != len(tokens):
        raise ModelFileError(
            f"{source}: {_PREFIX}token_type has {len(kinds)} values; expected one for each of the {len(tokens)} tokens"
        )

    names = {"bos": "bos", "eos": "eos", "eot": "eot", "eom": "eom", "unknown": "unk", "padding": "pad"}
    specials: dict[str, int] = {}
    for name, short in names.items():
        token = fields.integer(f"{name}_token_id")
        if token is None:
            continue
        if not 0 <= token < len(tokens):
            raise fields.wrong(f"{name}_token_id", token, f"an id below {len(tokens)}")
        specials[short] = token
    add_bos = fields.flag("add_bos_token", default=rules.add_bos)
    if add_bos and "bos" not in specials:
        raise fields.missing("bos_token_id")

    added = {token for token, kind in enumerate(kinds) if kind in (Kind.CONTROL, Kind.USER_DEFINED)}
    ends = {token for token in added if tokens[token] in _END_OF_TURN}
    named = [specials[name] for name in ("eos", "eot", "eom") if name in specials]
    eos_ids = tuple(dict.fromkeys([*named, *sorted(ends)]))
    if hidden := ends & {token for token in added if kinds[token] != Kind.CONTROL}:  # mislabelled by some converters
        kinds = [Kind.CONTROL if token in hidden else kind for token, kind in enumerate(kinds)]
    return Vocabulary(tokens, kinds, merges, rules, specials, eos_ids, add_bos)


def build_encoder(vocabulary: Vocabulary, source: str) -> tokenizers.Tokenizer:
    """The encoder of a vocabulary. Raises ModelFileError if tokens repeat or merges do not fit the tokens."""
    ids = {text: token for token, text in enumerate(vocabulary.tokens)}
    if len(ids) != len(vocabulary.tokens):
        first, text = next((token, text) for token, text in enumerate(vocabulary.tokens) if ids[text] != token)
        raise ModelFileError(
            f"{source}: {_PREFIX}tokens has {text!r} twice, as ids {first} and {ids[text]}; each token must be unique"
        )
    merges: list[tuple[str, str]] = []
    for merge in vocabulary.merges:
        left, _, right = merge.partition(" ")
        if left not in ids or right not in ids or left + right not in ids:
            raise ModelFileError(
                f"{source}: {_PREFIX}merges has {merge!r}; expected two tokens, a space between, that join to a token"
            )
        merges.append((left, right))

    model = models.BPE(vocab=ids, merges=merges, ignore_merges=vocabulary.pre.ignore_merges)
    encoder = tokenizers.Tokenizer(model)
    if vocabulary.pre.nfc:
        encoder.normalizer = normalizers.NFC()
    encoder.pre_tokenizer = vocabulary.pre.build()
    added = [
        AddedToken(vocabulary.tokens[token], special=kind != Kind.USER_DEFINED, normalized=False)
        for token, kind in enumerate(vocabulary.kinds)
        if kind in (Kind.UNKNOWN, Kind.CONTROL, Kind.USER_DEFINED)
    ]
    encoder.add_tokens(added)
    return encoder


@dataclass(frozen=True, slots=True)
class _Fields:
    """The `tokenizer.ggml.*` fields of a file, with their types checked."""

    metadata: Mapping[str, object]
    source: str

    def text(self, field: str) -> str:
        value = self._required(field)
        if not isinstance(value, str):
            raise self.wrong(field, value, "a string")
        return value

    def flag(self, field: str, *, default: bool) -> bool:
        value = self.metadata.get(_PREFIX + field, default)
        if not isinstance(value, bool):
            raise self.wrong(field, value, "true or false")
        return value

    def integer(self, field: str) -> int | None:
        value = self.metadata.get(_PREFIX + field)
        if value is not None and (isinstance(value, bool) or not isinstance(value, int)):
            raise self.wrong(field, value, "an integer")
        return value

    def texts(self, field: str) -> Sequence[str]:
        value = self._required(field)
        if not isinstance(value, (list, tuple)) or not all(isinstance(item, str) for item in value):
            raise self.wrong(field, value, "an array of strings")
        return value

    def integers(self, field: str, *, default: Sequence[int]) -> Sequence[int]:
        value = self.metadata.get(_PREFIX + field, default)
        if not isinstance(value, (list, tuple)) or not all(isinstance(item, int) for item in value):
            raise self.wrong(field, value, "an array of integers")
        return value

    def _required(self, field: str) -> object:
        if _PREFIX + field not in self.metadata:
            raise self.missing(field)
        return self.metadata[_PREFIX + field]

    def missing(self, field: str) -> ModelFileError:
        return ModelFileError(f"{self.source}: {_PREFIX}{field} is missing; a model file must hold its tokenizer")

    def wrong(self, field: str, value: object, expected: str) -> ModelFileError:
        return ModelFileError(f"{self.source}: {_PREFIX}{field} is {reprlib.repr(value)}; expected {expected}")

    def unsupported(
        self, field: str, value: object, supported: Sequence[str] | Mapping[str, object]
    ) -> UnsupportedModelError:
        return UnsupportedModelError(
            f"{self.source}: {_PREFIX}{field} is {reprlib.repr(value)}; this version supports {', '.join(supported)}"
        )
