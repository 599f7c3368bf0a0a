"""A byte-level vocabulary small enough to know by heart: 256 bytes, three merges, some added tokens."""

from __future__ import annotations

from outrider.tokenizer.bpe import BYTE_OF, Kind

# ids 256.. : "he", "ll", and a merge across the end of a character: the last byte of "é" and "!"
MERGES = ("h e", "l l", "© !")
ADDED = {
    "<|endoftext|>": Kind.CONTROL,
    "<|im_start|>": Kind.CONTROL,
    "<|im_end|>": Kind.CONTROL,
    "<think>": Kind.USER_DEFINED,
    "[unused]": Kind.UNUSED,
}
BOS, END, THINK, UNUSED = 259, 261, 262, 263

TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def metadata(**changes: object) -> dict[str, object]:
    """The metadata of a tiny model file; `changes` by the last part of a field's name, None to leave a field out."""
    byte_tokens = sorted(BYTE_OF, key=BYTE_OF.__getitem__)
    fields: dict[str, object] = {
        "model": "gpt2",
        "pre": "gpt-2",
        "tokens": [*byte_tokens, *(merge.replace(" ", "") for merge in MERGES), *ADDED],
        "token_type": [*[1] * (256 + len(MERGES)), *map(int, ADDED.values())],
        "merges": list(MERGES),
        "bos_token_id": BOS,
        "eos_token_id": END,
    } | changes
    template = fields.pop("chat_template", TEMPLATE)
    named = {f"tokenizer.ggml.{name}": value for name, value in fields.items() if value is not None}
    return named | ({} if template is None else {"tokenizer.chat_template": template})
