"""EAGLE-3 heads with random weights in the official layout, written with PyTorch and the `safetensors` package, and the
same layer in PyTorch as SafeAILab/EAGLE describes it: oracles that share no code with ours.
"""

from __future__ import annotations

import json
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

torch.set_num_threads(1)  # beside other tests, more take longer

HIDDEN, VOCABULARY, DRAFT_VOCABULARY, CONTEXT = 64, 269, 100, 256
"""Those of `tests.tiny.tiny_llama`, and a draft vocabulary that is a part of it."""


def tiny_head(
    folder: Path,
    *,
    seed: int = 0,
    hidden: int = HIDDEN,
    heads: int = 4,
    kv_heads: int = 2,
    head_dim: int = 16,
    ffn: int = 96,
    vocabulary: int = VOCABULARY,
    draft_vocabulary: int = DRAFT_VOCABULARY,
    context: int = CONTEXT,
    rope_theta: float = 10000.0,
    embedding: bool = False,
    dtype: torch.dtype = torch.float32,
) -> Path:
    """Write a head for a target with the same hidden size; return its folder."""
    generator = torch.Generator().manual_seed(seed)

    def random(*shape: int, gain: float = 1.5) -> torch.Tensor:
        return (torch.randn(shape, generator=generator) * gain / shape[-1] ** 0.5).to(dtype)

    def norm() -> torch.Tensor:
        return (1 + 0.1 * torch.randn(hidden, generator=generator)).to(dtype)

    drafted = torch.randperm(vocabulary, generator=generator)[:draft_vocabulary].sort().values
    tensors = {
        "fc.weight": random(hidden, 3 * hidden),
        "midlayer.self_attn.q_proj.weight": random(heads * head_dim, 2 * hidden),
        "midlayer.self_attn.k_proj.weight": random(kv_heads * head_dim, 2 * hidden),
        "midlayer.self_attn.v_proj.weight": random(kv_heads * head_dim, 2 * hidden),
        "midlayer.self_attn.o_proj.weight": random(hidden, heads * head_dim),
        "midlayer.mlp.gate_proj.weight": random(ffn, hidden),
        "midlayer.mlp.up_proj.weight": random(ffn, hidden),
        "midlayer.mlp.down_proj.weight": random(hidden, ffn),
        "midlayer.hidden_norm.weight": norm(),
        "midlayer.input_layernorm.weight": norm(),
        "midlayer.post_attention_layernorm.weight": norm(),
        "norm.weight": norm(),
        "lm_head.weight": random(draft_vocabulary, hidden, gain=3.0),
        "d2t": drafted - torch.arange(draft_vocabulary),
        "t2d": torch.isin(torch.arange(vocabulary), drafted),
    }
    if embedding:
        tensors["embed_tokens.weight"] = random(vocabulary, hidden, gain=3.0)
    config = {
        "architectures": ["LlamaForCausalLMEagle3"],
        "model_type": "llama",
        "hidden_size": hidden,
        "intermediate_size": ffn,
        "num_hidden_layers": 1,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": head_dim,
        "hidden_act": "silu",
        "max_position_embeddings": context,
        "vocab_size": vocabulary,
        "draft_vocab_size": draft_vocabulary,
        "rms_norm_eps": 1e-5,
        "rope_theta": rope_theta,
        "rope_scaling": None,
        "tie_word_embeddings": False,
    }
    folder.mkdir(parents=True, exist_ok=True)
    save_file(tensors, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(config))
    return folder


class TorchHead:
    """The head of a folder, without a cache: `forward` computes all positions from the first on."""

    def __init__(self, folder: Path, embedding: torch.Tensor) -> None:
        self.config = json.loads((folder / "config.json").read_text())
        self.tensors = {
            name: t.float() if t.is_floating_point() else t
            for name, t in load_file(folder / "model.safetensors").items()
        }
        self.embedding = self.tensors.get("embed_tokens.weight", embedding)
        count = self.config["draft_vocab_size"]
        self.target_ids = self.tensors["d2t"] + torch.arange(count)

    def fuse(self, taps: torch.Tensor) -> torch.Tensor:
        return taps @ self.tensors["fc.weight"].T

    def forward(self, hidden: torch.Tensor, tokens: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Logits and hidden states after each pair of a hidden state [n, hidden] and the token after it [n]."""
        config, n = self.config, len(tokens)
        head_dim, heads, kv_heads = config["head_dim"], config["num_attention_heads"], config["num_key_value_heads"]
        both = torch.cat(
            [
                self._norm("midlayer.input_layernorm", self.embedding[tokens]),
                self._norm("midlayer.hidden_norm", hidden),
            ],
            1,
        )
        q, k, v = (both @ self.tensors[f"midlayer.self_attn.{part}_proj.weight"].T for part in "qkv")
        q, k = (self._rotated(x.view(n, -1, head_dim)) for x in (q, k))
        k, v = (x.half().float().view(n, kv_heads, head_dim).repeat_interleave(heads // kv_heads, 1) for x in (k, v))
        scores = torch.einsum("ihd,jhd->hij", q, k) / head_dim**0.5
        scores = scores.masked_fill(torch.ones(n, n).triu(1).bool(), -torch.inf)
        attended = torch.einsum("hij,jhd->ihd", scores.softmax(-1), v).reshape(n, -1)
        x = hidden + attended @ self.tensors["midlayer.self_attn.o_proj.weight"].T
        h = self._norm("midlayer.post_attention_layernorm", x)
        gate, up = (h @ self.tensors[f"midlayer.mlp.{part}_proj.weight"].T for part in ("gate", "up"))
        x = x + (torch.nn.functional.silu(gate) * up) @ self.tensors["midlayer.mlp.down_proj.weight"].T
        return self._norm("norm", x) @ self.tensors["lm_head.weight"].T, x

    def draft(self, taps: torch.Tensor, tokens: torch.Tensor, k: int) -> list[int]:
        """The k most probable tokens after [n + 1] tokens, of whose first n there are taps [n, 3 * hidden]."""
        hidden, tokens, drafted = self.fuse(taps), tokens[1:], []
        for _ in range(k):
            logits, out = self.forward(hidden, tokens)
            drafted.append(int(self.target_ids[logits[-1].argmax()]))
            hidden, tokens = torch.cat([hidden, out[-1:]]), torch.cat([tokens, torch.tensor(drafted[-1:])])
        return drafted

    def _norm(self, name: str, x: torch.Tensor) -> torch.Tensor:
        return (
            x
            * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.config["rms_norm_eps"])
            * self.tensors[f"{name}.weight"]
        )

    def _rotated(self, x: torch.Tensor) -> torch.Tensor:
        half = self.config["head_dim"] // 2
        angles = torch.outer(torch.arange(len(x)), self.config["rope_theta"] ** (-torch.arange(half) / half))[:, None]
        first, second = x[..., :half], x[..., half:]
        cos, sin = angles.cos(), angles.sin()
        return torch.cat([first * cos - second * sin, second * cos + first * sin], -1)
