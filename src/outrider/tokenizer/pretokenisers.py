"""How a text is cut into words before byte-pair encoding: one entry for each supported `tokenizer.ggml.pre`.

The names are llama.cpp's (`llama-vocab.cpp`), the rules are those of the models' own `tokenizer.json`. The two agree,
except that llama.cpp has no Unicode normalisation (Qwen's files ask for NFC) and does not read `'ſ` as `'s`, as the
case-insensitive contractions of Llama 3 and Qwen do. There we follow `tokenizer.json`, as the models were trained.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from tokenizers import Regex
from tokenizers import pre_tokenizers as hf

_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_QWEN2 = _LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")


@dataclass(frozen=True, slots=True)
class PreTokeniser:
    """The rules that a value of `tokenizer.ggml.pre` stands for.

    patterns       applied one after the other, each to the pieces that the one before left.
    ignore_merges  a word that is itself in the vocabulary is one token, whatever the merges say.
    add_bos        whether prompts start with BOS if the file does not say.
    nfc            the text is brought to Unicode normal form C first.
    """

    patterns: tuple[str, ...]
    ignore_merges: bool = False
    add_bos: bool = False
    nfc: bool = False

    def build(self) -> hf.PreTokenizer:
        """The same rules for the `tokenizers` library, bytes written in GPT-2's printable alphabet."""
        splits = [hf.Split(Regex(pattern), behavior="isolated") for pattern in self.patterns]
        return hf.Sequence([*splits, hf.ByteLevel(add_prefix_space=False, use_regex=False)])


_GPT2_RULES = PreTokeniser((_GPT2,))
_DIGITS_APART = PreTokeniser((r"\p{N}", _GPT2))
_LLAMA3_RULES = PreTokeniser((_LLAMA3,), ignore_merges=True, add_bos=True)

PRE_TOKENISERS: Mapping[str, PreTokeniser] = MappingProxyType(
    {
        "gpt-2": _GPT2_RULES,
        "phi-2": _GPT2_RULES,
        "smollm": _DIGITS_APART,
        "starcoder": _DIGITS_APART,
        "llama-bpe": _LLAMA3_RULES,
        "llama-v3": _LLAMA3_RULES,
        "llama3": _LLAMA3_RULES,
        "qwen2": PreTokeniser((_QWEN2,), nfc=True),
    }
)
