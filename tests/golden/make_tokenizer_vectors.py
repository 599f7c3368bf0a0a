"""Write tokenizer_vectors.json: what llama.cpp makes of many texts, the oracle of tests/tokenizer/test_golden.py.

    pip install llama-cpp-python gguf
    python tests/golden/make_tokenizer_vectors.py SmolLM2-135M-Instruct.Q4_1.gguf

One vocabulary serves for all pre-tokenisers: a copy of the model's header, without weights, names another each time. It's
extended a little, since the model's own shows no difference between some of them: it has no numbers of several digits.
"""

from __future__ import annotations

import argparse
import ctypes
import hashlib
import json
import tempfile
from pathlib import Path

import llama_cpp
from gguf import GGUFReader, GGUFValueType, GGUFWriter

ADDED_MERGES = [
    *(f"{a} {b}" for a in "0123456789" for b in "0123456789"),
    *(f"{a}{a} {a}" for a in "0123456789"),
    *("12 3", "23 4", "45 6", "78 9", "55 6"),
]
ADDED_WORD = "unreachable"  # by merges; one token only where the rules look a word up first
PRE_TOKENISERS = ("smollm", "gpt-2", "llama-bpe", "qwen2")

TEXTS = (
    "",
    " ",
    "  ",
    "   ",
    "\t",
    "\n",
    "\n\n\n",
    "\r\n",
    "\r\n\r\n \r\n",
    " \n \n",
    "a\tb\t\tc",
    "a b  c   d    e",
    " leading",
    "   leading three",
    "trailing ",
    "trailing three   ",
    "trailing line\n",
    "mixed \t \n\t end",
    "non-breaking\u00a0space \u2003em space \u3000ideographic space",
    "zero\u200bwidth \ufeffmark \u00adhyphen",
    "next\u0085line \u2028separator \u2029paragraph",
    "Hello, world!",
    "Explain how a bicycle stays upright.",
    "ALL CAPS and CamelCase and snake_case and kebab-case",
    "0 1 12 123 1234 12345 123456789",
    "3.14159, 1,000,000 and 1e-9; 0xDEADBEEF; 2024-02-29T23:59:60Z",
    "\u0663\u0664\u0665 \u096a\u096b \u2160\u2164 \u00bd \u00b2 \u2466",
    "a1b22c333d4444 55667788 9",
    "an unreachable word, unreachable",
    "I'm you're he's she'd we'll they've isn't",
    "I'M YOU'RE HE'S SHE'D WE'LL THEY'VE ISN'T",
    "'s 't 're 've 'm 'll 'd 'S 'T 'RE 'VE 'M 'LL 'D 'x 'z '' '",
    "don\u2019t use \u2018curly\u2019 \u201cquotes\u201d",
    "o'clock rock'n'roll 'twas l'\u00e9t\u00e9 d'accord",
    "!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~",
    "...!!!??? --- *** ### ___ ====",
    "(a+b)*[c]/{d}; x->y; x=>y; a||b&&!c",
    "(punctuation)\n\n[then lines]\r\n{more}\n",
    "def f(x: int) -> str:\n    if x > 0:\n        return f'{x!r:>10}'\n\treturn \"\"\n",
    '#include <stdio.h>\nint main(void) {\n  printf("%d\\n", 42);\n  return 0;\n}\n',
    '{"key": [1, 2.5, null, true], "nested": {"a": "\\u00e9"}}',
    "SELECT * FROM t WHERE a <> 'b' -- comment",
    '<div class="x">text &amp; more</div><!-- end -->',
    "https://example.com/a/b?q=1&r=%20#frag user@example.org C:\\path\\file.txt",
    "| a | b |\n|---|---|\n| 1 | 2 |\n",
    "$e^{i\\pi} + 1 = 0$ and \u222b\u2080\u00b9 x\u00b2 dx \u2248 \u2153 \u2260 \u221e",
    "caf\u00e9 na\u00efve \u00dcber stra\u00dfe \u0141\u00f3d\u017a \u0110\u00e0 N\u1eb5ng",
    "\u041f\u0440\u0438\u0432\u0435\u0442, \u043a\u0430\u043a \u0434\u0435\u043b\u0430? \u0401\u043b\u043a\u0430",
    "\u039a\u03b1\u03bb\u03b7\u03bc\u03ad\u03c1\u03b1 \u03ba\u03cc\u03c3\u03bc\u03b5",
    "\u0645\u0631\u062d\u0628\u0627 \u0628\u0627\u0644\u0639\u0627\u0644\u0645 \u0643\u064e\u062a\u064e\u0628\u064e",
    "\u05e9\u05dc\u05d5\u05dd \u05e2\u05d5\u05dc\u05dd",
    "\u0928\u092e\u0938\u094d\u0924\u0947 \u0926\u0941\u0928\u093f\u092f\u093e",
    "\u0e2a\u0e27\u0e31\u0e2a\u0e14\u0e35\u0e0a\u0e32\u0e27\u0e42\u0e25\u0e01",
    "\u4f60\u597d\uff0c\u4e16\u754c\uff01\u4eca\u5929\u662f2024\u5e74\u3002",
    "\u3053\u3093\u306b\u3061\u306f\u4e16\u754c \u30ab\u30bf\u30ab\u30ca",
    "\uc548\ub155\ud558\uc138\uc694 \uc138\uacc4",
    "\U00020000\U0002a6d6 rare ideographs",
    "\U0001f600 \U0001f44d\U0001f3fd \U0001f1eb\U0001f1f7 text\U0001f680text",
    "\U0001f468\u200d\U0001f469\u200d\U0001f467\u200d\U0001f466 \U0001f3f3\ufe0f\u200d\U0001f308 1\ufe0f\u20e3",
    "e\u0301 o\u0308 n\u0303 a\u0323\u0302 Z\u0351\u036b\u0343\u0321a\u0320\u0314l\u0324g\u032fo\u033b",
    "bell\x07 escape\x1b[31m null\x00 delete\x7f",
    "bytes that the default vocabulary lacks: \x04\x06\x13\x14\x16\x1d|\U00040000|\U000a0000|",
    "private \ue000 \U000f0000 \U0010ffff, unassigned \u0378, replacement \ufffd",
    "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n",
    "text<|endoftext|>more <|im_end|> <|im_start|",
    "<|im_start|><|im_start|>  <|im_end|>\n\n<|im_end|><repo_name>x<filename>",
    "<|IM_START|> <|im_ start|> <||im_end||>",
    "a" * 2000,
    "Donaudampfschifffahrtselektrizit\u00e4tenhauptbetriebswerkbauunterbeamtengesellschaft",
    "ab" * 300 + "!" * 300 + " " * 300 + "7" * 300,
    "The quick brown fox jumps over the lazy dog. " * 10,
)


def with_pre_tokeniser(model: Path, pre: str, copy: Path) -> None:
    """Write the metadata of `model`, without its tensors, with another `tokenizer.ggml.pre` and a few more tokens."""
    added = [*(merge.replace(" ", "") for merge in ADDED_MERGES), ADDED_WORD]
    more = {"tokens": added, "token_type": [1] * len(added), "merges": ADDED_MERGES}
    reader = GGUFReader(model)
    writer = GGUFWriter(copy, str(reader.fields["general.architecture"].contents()))
    for name, field in reader.fields.items():
        if name.startswith("GGUF.") or name == "general.architecture":
            continue
        value = pre if name == "tokenizer.ggml.pre" else field.contents()
        if extension := more.get(name.removeprefix("tokenizer.ggml.")):
            value = [*value, *extension]
        kind, *item_kinds = field.types
        writer.add_key_value(name, value, kind, item_kinds[-1] if kind == GGUFValueType.ARRAY else None)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    model = parser.parse_args().model
    tokens: dict[str, list[list[int]]] = {}
    for pre in PRE_TOKENISERS:
        with tempfile.TemporaryDirectory() as folder:
            copy = Path(folder) / "vocabulary.gguf"
            with_pre_tokeniser(model, pre, copy)
            llama = llama_cpp.Llama(str(copy), vocab_only=True, verbose=False)
            tokens[pre] = [llama.tokenize(text.encode(), add_bos=False, special=True) for text in TEXTS]
    vocabulary = llama_cpp.llama_model_get_vocab(llama.model)
    buffer = ctypes.create_string_buffer(1024)
    lengths_and_pieces = hashlib.sha256()
    for token in range(llama.n_vocab()):
        length = llama_cpp.llama_token_to_piece(vocabulary, token, buffer, len(buffer), 0, False)
        lengths_and_pieces.update(length.to_bytes(4, "little") + buffer.raw[:length])
    result = {
        "source": f"llama-cpp-python {llama_cpp.__version__}",
        "model": model.name,
        "added_merges": ADDED_MERGES,
        "added_word": ADDED_WORD,
        "vocabulary_size": llama.n_vocab(),
        "pieces_sha256": lengths_and_pieces.hexdigest(),
        "end_of_generation": [t for t in range(llama.n_vocab()) if llama_cpp.llama_vocab_is_eog(vocabulary, t)],
    }
    lines = [f"  {json.dumps(name)}: {json.dumps(value)}" for name, value in result.items()]
    for name, rows in {"texts": TEXTS, **tokens}.items():
        items = ",\n".join("    " + json.dumps(row, separators=(",", ":")) for row in rows)
        lines.append(f"  {json.dumps(name)}: [\n{items}\n  ]")
    Path(__file__).with_name("tokenizer_vectors.json").write_text("{\n" + ",\n".join(lines) + "\n}\n")


if __name__ == "__main__":
    main()
