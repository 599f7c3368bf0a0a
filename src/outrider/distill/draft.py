"""A small standalone Llama on the target's vocabulary, as a PyTorch module: a draft model that needs no hidden states.

Input and output share one embedding, which starts as the target's, reduced to fewer dimensions.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from outrider.distill.batches import Batch
from outrider.distill.head import picked
from outrider.distill.student import MLP, Linear, RMSNorm, Student, angles, rotate
from outrider.distill.target import Shape, Target

LAYERS = 3
HEAD_DIM = 64
SHRINK = 3
"""How many times narrower than the target: most of the cost is the vocabulary times the width."""


def shape_for(target: Shape) -> Shape:
    """The sizes of a draft for a target."""
    heads = max(1, round(target.hidden / SHRINK / HEAD_DIM))
    hidden = heads * HEAD_DIM
    return replace(target, hidden=hidden, layers=LAYERS, ffn=3 * hidden, heads=heads, kv_heads=heads)


class Layer(nn.Module):
    """A decoder layer: attention and a feed-forward network, each on the normalised stream and added to it."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        self.attn_norm = RMSNorm(shape.hidden, shape.epsilon)
        self.attn_q = Linear(shape.hidden, shape.hidden)
        self.attn_k = Linear(shape.hidden, shape.hidden)
        self.attn_v = Linear(shape.hidden, shape.hidden)
        self.attn_output = Linear(shape.hidden, shape.hidden)
        self.ffn_norm = RMSNorm(shape.hidden, shape.epsilon)
        self.mlp = MLP(shape.hidden, shape.ffn)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """[batch, length, hidden] -> the same."""
        size, length, _ = x.shape
        h = self.attn_norm(x).to(x.dtype)

        def heads(projected: Tensor) -> Tensor:
            return projected.view(size, length, self.shape.heads, -1).transpose(1, 2)

        queries, keys = (rotate(heads(project(h)), cos, sin) for project in (self.attn_q, self.attn_k))
        attended = F.scaled_dot_product_attention(queries, keys, heads(self.attn_v(h)), is_causal=True)
        x = x + self.attn_output(attended.transpose(1, 2).reshape(size, length, -1))
        result: Tensor = x + self.mlp(self.ffn_norm(x).to(x.dtype))
        return result


class Draft(Student):
    """A Llama of a few layers. It reads the text's own tokens, so one step of each chain says all there is to learn."""

    steps = 1

    def __init__(self, shape: Shape) -> None:
        super().__init__(torch.arange(shape.vocabulary), shape.vocabulary)
        self.shape = shape
        self.token_embd = nn.Embedding(shape.vocabulary, shape.hidden)
        self.layers = nn.ModuleList(Layer(shape) for _ in range(shape.layers))
        self.output_norm = RMSNorm(shape.hidden, shape.epsilon)

    @classmethod
    def of(cls, target: Target) -> Draft:
        """A draft to start with. Its embedding is the target's output rows on their principal axes."""
        draft = cls(shape_for(target.shape))
        rows = torch.from_numpy(target.output_rows())
        _, axes = torch.linalg.eigh(rows.T @ rows)  # ascending
        reduced = rows @ axes[:, -draft.shape.hidden :]
        with torch.no_grad():
            draft.token_embd.weight.normal_(0, 1e-3)
            draft.token_embd.weight[:, : reduced.shape[1]] = reduced
        return draft

    def output(self) -> Tensor:
        return self.token_embd.weight

    def chains(self, batch: Batch) -> DraftChains:
        return DraftChains(self, batch)

    def forward(self, tokens: Tensor) -> Tensor:
        """int64 [batch, length] -> the normalised hidden states, [batch, length, hidden]."""
        shape = self.shape
        x = self.token_embd(tokens)
        cos, sin = angles(tokens.shape[1], shape.head_dim, shape.rope_base, tokens.device)
        for layer in self.layers:
            x = layer(x, cos, sin)
        result: Tensor = self.output_norm(x)
        return result


class DraftChains:
    """A chain goes on along the text, as a draft model does while its tokens are accepted."""

    def __init__(self, draft: Draft, batch: Batch) -> None:
        self.hidden = draft(batch.tokens[:, :-1])
        self.starts, self.step = batch.starts, 0

    def keep(self, columns: Tensor) -> None:
        """See `Chains`."""
        self.starts = self.starts.gather(1, columns)

    def advance(self) -> Tensor:
        """See `Chains`."""
        self.step += 1
        return picked(self.hidden, (self.starts + self.step).clamp(max=self.hidden.shape[1] - 1))
