"""The EAGLE-3 head as a PyTorch module, with the names of the official checkpoint layout (Li et al. 2025, arXiv
2503.01840; github.com/SafeAILab/EAGLE, eagle/traineagle3/cnets.py).

Its chains run on over its own outputs, as drafting does: training-time test, section 3.2 of the paper.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from outrider.distill.batches import Batch
from outrider.distill.student import MLP, Linear, RMSNorm, Student, angles, halves, rotate
from outrider.distill.target import Shape, Target
from outrider.errors import ModelFileError
from outrider.heads import EMBEDDING, HeadConfig
from outrider.heads.checkpoint import read_compact, read_official

STEPS = 5
"""How far chains run on in training: as far as they are drafted."""


class Attention(nn.Module):
    """The projections; `HeadChains` attends."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.q_proj = Linear(2 * shape.hidden, shape.heads * shape.head_dim)
        self.k_proj = Linear(2 * shape.hidden, shape.kv_heads * shape.head_dim)
        self.v_proj = Linear(2 * shape.hidden, shape.kv_heads * shape.head_dim)
        self.o_proj = Linear(shape.heads * shape.head_dim, shape.hidden)


class MidLayer(nn.Module):
    """The one decoder layer, which reads the token's embedding beside the hidden state."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.self_attn = Attention(shape)
        self.mlp = MLP(shape.hidden, shape.ffn)
        self.hidden_norm = RMSNorm(shape.hidden, shape.epsilon)
        self.input_layernorm = RMSNorm(shape.hidden, shape.epsilon)
        self.post_attention_layernorm = RMSNorm(shape.hidden, shape.epsilon)


class Head(Student):
    """An EAGLE-3 head. Its parameters have the official names; the embedding stays the target's."""

    embedding: Tensor
    steps = STEPS

    def __init__(self, shape: Shape, target_ids: Tensor, embedding: Tensor) -> None:
        """embedding: of the target, [vocabulary, hidden]."""
        super().__init__(target_ids, shape.vocabulary)
        self.shape = shape
        self.fc = Linear(3 * shape.hidden, shape.hidden)
        self.midlayer = MidLayer(shape)
        self.norm = RMSNorm(shape.hidden, shape.epsilon)
        self.lm_head = Linear(shape.hidden, len(target_ids))
        self.register_buffer("embedding", embedding.bfloat16(), persistent=False)

    @classmethod
    def of(cls, target: Target, target_ids: Tensor) -> Head:
        """A head to start with: the target's last layer, its last tap as hidden state, its rows of the vocabulary."""
        shape = target.shape
        head = cls(shape, target_ids, torch.from_numpy(target.embedding))
        tensor = {name: torch.from_numpy(target.tensor(name)) for name in target.layer(shape.layers - 1)}
        block, layer, hidden = f"blk.{shape.layers - 1}.", head.midlayer, shape.hidden
        with torch.no_grad():
            head.fc.weight.zero_()
            head.fc.weight[:, 2 * hidden :] = torch.eye(hidden)
            for part, heads in (("q", shape.heads), ("k", shape.kv_heads), ("v", None)):
                weight = tensor[f"{block}attn_{part}.weight"]
                weight = weight if heads is None else halves(weight, heads)
                projection: Tensor = getattr(layer.self_attn, f"{part}_proj").weight
                projection[:, hidden:] = weight
                projection[:, :hidden].normal_(0, float(weight.std()) / 2)
            layer.self_attn.o_proj.weight.copy_(tensor[f"{block}attn_output.weight"])
            for part in ("gate", "up", "down"):
                getattr(layer.mlp, f"{part}_proj").weight.copy_(tensor[f"{block}ffn_{part}.weight"])
            layer.hidden_norm.weight.copy_(tensor[f"{block}attn_norm.weight"])
            layer.input_layernorm.weight.copy_(torch.from_numpy(target.tensor("blk.0.attn_norm.weight")))
            layer.post_attention_layernorm.weight.copy_(tensor[f"{block}ffn_norm.weight"])
            head.norm.weight.copy_(torch.from_numpy(target.tensor("output_norm.weight")))
            head.lm_head.weight.copy_(torch.from_numpy(target.output_rows())[target_ids])
        return head

    @classmethod
    def on_from(cls, path: Path, target: Target) -> Head:
        """A head to start with: the one of some files, in either layout, however it was quantised.

        Raises ModelFileError if it does not fit the target: its sizes are those that `of` would give it.
        """
        shape = target.shape
        weights = read_official(path) if path.is_dir() else read_compact(path)
        if (vocabulary := weights.config.vocabulary) != shape.vocabulary:
            raise ModelFileError(f"{path}: its vocab_size is {vocabulary}, that of {target.path} is {shape.vocabulary}")
        head = cls(shape, torch.from_numpy(weights.target_ids.astype(np.int64)), torch.from_numpy(target.embedding))
        for name, needed in head.config.matrices().items():
            if (found := weights.config.matrices()[name]) != needed:
                raise ModelFileError(
                    f"{path}: tensor {name!r} is {list(found)}, for {target.path} it is {list(needed)}"
                )
        parameters = dict(head.named_parameters())
        with torch.no_grad():
            for name, weight in weights.matrices.items():
                if name != EMBEDDING:
                    parameters[name].copy_(torch.from_numpy(weight.floats()))
            for name, norm in weights.norms.items():
                parameters[name].copy_(torch.from_numpy(norm))
        return head

    def widened(self, target_ids: Tensor, target: Target) -> Head:
        """The same head, which can say more: all of these ids, ascending, among which its own are.

        Training has turned the output rows away from the target's; the new ones are the target's, turned likewise (by
        least squares).
        """
        wider = Head(self.shape, target_ids, self.embedding)
        rows = torch.from_numpy(target.output_rows())
        with torch.no_grad():
            turn = torch.linalg.lstsq(rows[self.target_ids], self.lm_head.weight).solution
            output = rows[target_ids] @ turn
            known = self.draft_ids[target_ids]
            output[known >= 0] = self.lm_head.weight[known[known >= 0]]
            wider.load_state_dict({**self.state_dict(), "lm_head.weight": output})
        return wider

    @property
    def config(self) -> HeadConfig:
        """What its files say of it."""
        shape = self.shape
        return HeadConfig(
            hidden=shape.hidden,
            target_hidden=shape.hidden,
            ffn=shape.ffn,
            heads=shape.heads,
            kv_heads=shape.kv_heads,
            head_dim=shape.head_dim,
            context=shape.context,
            vocabulary=shape.vocabulary,
            draft_vocabulary=len(self.target_ids),
            epsilon=shape.epsilon,
            rope_base=shape.rope_base,
        )

    def output(self) -> Tensor:
        return self.lm_head.weight

    def chains(self, batch: Batch) -> HeadChains:
        return HeadChains(self, batch)

    def joined(self, tokens: Tensor, hidden: Tensor) -> Tensor:
        """What the layer's attention reads: [..., 2 * hidden]."""
        layer = self.midlayer
        embedded = layer.input_layernorm(self.embedding[tokens])
        result: Tensor = torch.cat((embedded, layer.hidden_norm(hidden)), -1).to(hidden.dtype)
        return result


class HeadChains:
    """Step j of a chain attends to the first step's keys up to the chain's start, and to the chain's own."""

    def __init__(self, head: Head, batch: Batch) -> None:
        shape, layer = head.shape, head.midlayer
        size, length = batch.taps.shape[:2]
        self.head, self.tokens, self.starts, self.step = head, batch.tokens[:, 1:], batch.starts, 0
        self.cos, self.sin = angles(length + head.steps, shape.head_dim, shape.rope_base, batch.tokens.device)
        hidden = head.fc(batch.taps)
        x = head.joined(self.tokens, hidden)
        keys = layer.self_attn.k_proj(x).view(size, length, shape.kv_heads, shape.head_dim)
        keys = rotate(keys, self.cos[:length, None], self.sin[:length, None])
        self.keys = keys.permute(0, 2, 3, 1)  # [batch, kv heads, head_dim, length]
        values = layer.self_attn.v_proj(x).view(size, length, shape.kv_heads, shape.head_dim)
        self.values = values.transpose(1, 2)  # [batch, kv heads, length, head_dim]
        self.hidden = picked(hidden, self.starts)
        self.x = picked(x, self.starts)
        self.own: list[tuple[Tensor, Tensor]] = []  # keys and values, [batch, kv heads, count, head_dim]

    def keep(self, columns: Tensor) -> None:
        """See `Chains`."""
        self.starts = self.starts.gather(1, columns)
        self.hidden = picked(self.hidden, columns)
        at = columns[:, None, :, None].expand(-1, self.head.shape.kv_heads, -1, self.head.shape.head_dim)
        self.own = [(keys.gather(2, at), values.gather(2, at)) for keys, values in self.own]

    def advance(self) -> Tensor:
        """See `Chains`."""
        head, layer, shape = self.head, self.head.midlayer, self.head.shape
        attn, groups = layer.self_attn, shape.heads // shape.kv_heads
        size, count = self.starts.shape
        at = self.starts + self.step
        cos, sin = self.cos[at][:, :, None], self.sin[at][:, :, None]
        x = self.x
        if self.step > 0:
            x = head.joined(self.tokens.gather(1, at.clamp(max=self.tokens.shape[1] - 1)), self.hidden)
            key = rotate(attn.k_proj(x).view(size, count, shape.kv_heads, shape.head_dim), cos, sin)
            value = attn.v_proj(x).view(size, count, shape.kv_heads, shape.head_dim)
            self.own.append((key.transpose(1, 2), value.transpose(1, 2)))
        queries = attn.q_proj(x).view(size, count, shape.heads, shape.head_dim) * shape.head_dim**-0.5
        queries = rotate(queries, cos, sin).view(size, count, shape.kv_heads, groups, shape.head_dim)
        attended = self._attend(queries.permute(0, 2, 3, 1, 4))  # [batch, kv heads, groups, count, head_dim]
        hidden = self.hidden + attn.o_proj(attended.permute(0, 3, 1, 2, 4).reshape(size, count, -1))
        self.hidden = hidden + layer.mlp(layer.post_attention_layernorm(hidden).to(hidden.dtype))
        self.step += 1
        normalised: Tensor = head.norm(self.hidden)
        return normalised

    def _attend(self, queries: Tensor) -> Tensor:
        """[batch, kv heads, groups, count, head_dim] -> the same."""
        size, kv_heads, groups, count, width = queries.shape
        length = self.keys.shape[-1]
        scores = (queries.reshape(size, kv_heads, groups * count, width) @ self.keys).float()
        scores = scores.view(size, kv_heads, groups, count, length)
        unseen = torch.arange(length, device=queries.device) > self.starts[:, :, None]
        parts = [scores.masked_fill(unseen[:, None, None], float("-inf"))]
        parts += [(queries * key[:, :, None]).sum(-1, keepdim=True).float() for key, _ in self.own]
        weights = torch.cat(parts, -1).softmax(-1).to(self.values.dtype)
        attended = weights[..., :length].reshape(size, kv_heads, groups * count, length) @ self.values
        attended = attended.view(size, kv_heads, groups, count, width)
        for i, (_, value) in enumerate(self.own):
            attended = attended + weights[..., length + i, None] * value[:, :, None]
        result: Tensor = attended
        return result


def picked(x: Tensor, columns: Tensor) -> Tensor:
    """[batch, length, width] at int64 [batch, count] -> [batch, count, width]."""
    size, length, width = x.shape
    flat = columns + length * torch.arange(size, device=columns.device)[:, None]
    return x.reshape(-1, width).index_select(0, flat.reshape(-1)).view(size, columns.shape[1], width)
