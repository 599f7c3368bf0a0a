"""What is trained: a student foretells tokens in chains, as a drafter does. `head` and `draft` are the two kinds."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from outrider.distill.batches import Batch

_PADDING = 256  # rows


class Chains(Protocol):
    """A student at several places of several dialogues at once, a step at a time.

    starts  int64 [batch, count], of the chains that go on.
    """

    starts: Tensor

    def advance(self) -> Tensor:
        """The normalised hidden states [batch, count, hidden], which `Student.output` turns into logits."""
        ...

    def keep(self, columns: Tensor) -> None:
        """Go on with some of the chains only: int64 [batch, fewer], their columns."""
        ...


class Student(nn.Module):
    """A model in training.

    target_ids  int64 [draft vocabulary], ascending: the target's id of each token that it can foretell.
    draft_ids   int64 [vocabulary]: the other way round, -1 for the others.
    steps       how far its chains run on in training: further than 1 only if it then reads what it said itself.
    """

    steps: int
    target_ids: Tensor
    draft_ids: Tensor

    def __init__(self, target_ids: Tensor, vocabulary: int) -> None:
        super().__init__()
        draft_ids = torch.full((vocabulary,), -1)
        draft_ids[target_ids] = torch.arange(len(target_ids))
        self.register_buffer("target_ids", target_ids, persistent=False)
        self.register_buffer("draft_ids", draft_ids, persistent=False)

    def output(self) -> Tensor:
        """[draft vocabulary, hidden], what makes logits of hidden states."""
        raise NotImplementedError

    def chains(self, batch: Batch) -> Chains:
        """Chains at the starts of the batch."""
        raise NotImplementedError


class Linear(nn.Linear):
    """A matrix without a bias. Rows are padded to one of few numbers: on a processor, PyTorch compiles a kernel for
    each shape that it has not seen, which takes longer (10 ms) than the products, and batches differ in shape.
    """

    def __init__(self, width: int, out: int) -> None:
        super().__init__(width, out, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """[..., width] -> [..., out]"""
        result: Tensor = super().forward(padded(x.reshape(-1, x.shape[-1])))
        return result[: x.shape[:-1].numel()].view(*x.shape[:-1], self.out_features)


def padded(rows: Tensor) -> Tensor:
    """[rows, width] with rows of zeros behind it, so that few numbers of rows occur."""
    return F.pad(rows, (0, 0, 0, -len(rows) % _PADDING))


class RMSNorm(nn.Module):
    """Root mean square normalisation in float32 (Zhang and Sennrich 2019, equation 4)."""

    def __init__(self, width: int, epsilon: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.epsilon = epsilon

    def forward(self, x: Tensor) -> Tensor:
        """Of the last dimension."""
        return F.rms_norm(x.float(), (x.shape[-1],), self.weight, self.epsilon)


class MLP(nn.Module):
    """SwiGLU (Shazeer 2020, equation 6)."""

    def __init__(self, hidden: int, ffn: int) -> None:
        super().__init__()
        self.gate_proj = Linear(hidden, ffn)
        self.up_proj = Linear(hidden, ffn)
        self.down_proj = Linear(ffn, hidden)

    def forward(self, x: Tensor) -> Tensor:
        """[..., hidden] -> [..., hidden]"""
        result: Tensor = self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))
        return result


def angles(positions: int, head_dim: int, base: float, device: torch.device) -> tuple[Tensor, Tensor]:
    """Cosines and sines of the rotary embedding, [positions, head_dim / 2] each (Su et al. 2021, equation 15)."""
    half = torch.arange(0, head_dim, 2, device=device, dtype=torch.float64) / head_dim
    turned = torch.arange(positions, device=device, dtype=torch.float64)[:, None] * base**-half
    return turned.cos().float(), turned.sin().float()


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary embedding of the pairs (i, i + head_dim / 2), Hugging Face's convention."""
    a, b = x.float().chunk(2, -1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), -1).to(x.dtype)


def halves(weight: Tensor, heads: int) -> Tensor:
    """A GGUF file's attn_q or attn_k, which turns neighbouring pairs, in Hugging Face's order of rows."""
    return weight.view(heads, -1, 2, weight.shape[1]).transpose(1, 2).reshape(weight.shape)


def neighbours(weight: Tensor, heads: int) -> Tensor:
    """The inverse of `halves`."""
    return weight.view(heads, 2, -1, weight.shape[1]).transpose(1, 2).reshape(weight.shape)
