from __future__ import annotations

import torch

from outrider.distill import loss
from outrider.distill.loss import GREEDY, CrossEntropy, aims


def dense(hidden, output, tokens, aim):
    """The same loss the long way, by autograd."""
    logs = (hidden @ output.T).log_softmax(-1)
    return -(aim * logs.gather(1, tokens.clamp(min=0))).sum()


def case():
    torch.manual_seed(1)
    hidden = torch.randn(7, 8).bfloat16().float().requires_grad_()
    output = torch.randn(11, 8).bfloat16().float().requires_grad_()
    tokens = torch.stack([torch.randperm(11)[:4] for _ in range(7)])
    tokens[2, 0] = tokens[3, 2] = -1
    return hidden, output, tokens, torch.rand(7, 4) / 4


def test_loss_and_gradients_are_those_of_autograd(monkeypatch):
    hidden, output, tokens, p = case()
    expected = dense(hidden, output, tokens, aims(tokens, p))
    expected.backward()
    gradients = hidden.grad.clone(), output.grad.clone()
    hidden.grad = output.grad = None
    monkeypatch.setattr(loss, "_PIECE", 33)  # three rows at a time
    total, hits = CrossEntropy.apply(hidden, output, tokens, aims(tokens, p))
    (2 * total).backward()
    torch.testing.assert_close(total, expected, rtol=2e-2, atol=2e-2)
    torch.testing.assert_close(hidden.grad, 2 * gradients[0], rtol=5e-2, atol=5e-2)
    torch.testing.assert_close(output.grad, 2 * gradients[1], rtol=5e-2, atol=5e-2)
    assert hits.tolist() == ((hidden @ output.T).argmax(-1) == tokens[:, 0]).tolist()


def test_what_the_student_cannot_say_does_not_count():
    tokens = torch.tensor([[-1, 3], [2, -1]])
    aim = aims(tokens, torch.tensor([[0.6, 0.2], [0.6, 0.2]]))
    torch.testing.assert_close(aim, torch.tensor([[0.0, (1 - GREEDY) * 0.2], [(1 - GREEDY) * 0.6 + GREEDY, 0.0]]))


def test_the_best_distribution_is_the_aim():
    """The gradient with respect to the logits is q times the sum of the aims, less the aims: zero where q is them."""
    aim = torch.tensor([[0.5, 0.25, 0.25]])
    hidden = torch.eye(3)[:1].bfloat16().float().requires_grad_()
    output = torch.cat((aim.log().T, torch.zeros(3, 2)), 1).bfloat16().float()
    CrossEntropy.apply(hidden, output, torch.arange(3)[None], aim)[0].backward()
    assert hidden.grad.abs().max() < 1e-2
