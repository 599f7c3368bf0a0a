"""The loss: cross-entropy of the student's distribution against the target's, from hidden states and sparse targets.

Gradients with respect to logits are known in closed form, so they are made in the forward pass, a piece of the rows at
a time: the logits of a whole batch, [rows, vocabulary] in float32, never exist.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from outrider.distill.student import padded

GREEDY = 0.5
"""Share of the loss that is about the target's most probable token alone, which decides at temperature 0."""

_PIECE = 2**23  # logits at a time


def aims(tokens: Tensor, p: Tensor) -> Tensor:
    """What the student is to say of each candidate: probabilities that sum up to what its vocabulary can say.

    tokens  int64 [rows, candidates], draft ids, likeliest first; -1 for those that it cannot say.
    p       [rows, candidates], the target's probabilities.
    """
    first = torch.zeros_like(p)
    first[:, 0] = 1
    return ((1 - GREEDY) * p + GREEDY * first).masked_fill(tokens < 0, 0)


class CrossEntropy(torch.autograd.Function):
    """(sum over rows of -sum_i aim_i log q_i, whether each row's most probable token is the first candidate).

    q = softmax(hidden @ output^T). A row counts as much as its aims sum up to, so one whose token the student cannot
    say counts little.
    """

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, output: Tensor, tokens: Tensor, aim: Tensor) -> tuple[Tensor, Tensor]:
        """hidden [rows, width]; output [vocabulary, width]; tokens and aim [rows, candidates] as of `aims`."""
        rows = hidden.shape[0]
        low = output.bfloat16()
        to_hidden, to_output = torch.empty_like(hidden), torch.zeros_like(output)
        hits = torch.zeros(rows, dtype=torch.bool, device=hidden.device)
        total = torch.zeros((), device=hidden.device)
        size = max(1, _PIECE // output.shape[0])
        for begin in range(0, rows, size):
            piece = slice(begin, begin + size)
            at, aimed = tokens[piece].clamp(min=0), aim[piece]
            count = len(at)
            x = padded(hidden[piece].bfloat16())
            logits = (x @ low.T)[:count].float()
            hits[piece] = logits.argmax(-1) == tokens[piece, 0]
            logs = logits.log_softmax(-1)
            total -= (aimed * logs.gather(1, at)).sum()
            gradient = logs.exp_().mul_(aimed.sum(-1, keepdim=True)).scatter_add_(1, at, -aimed)
            gradient = padded(gradient.bfloat16())
            to_hidden[piece] = (gradient @ low)[:count]
            to_output += (gradient.T @ x).float()
        ctx.save_for_backward(to_hidden, to_output)
        ctx.mark_non_differentiable(hits)
        return total, hits

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, None, None]:
        """The gradients made in `forward`, scaled."""
        to_hidden, to_output = ctx.saved_tensors
        return to_hidden * gradients[0], to_output * gradients[0], None, None
