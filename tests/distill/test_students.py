"""Chains of both kinds of student against drafting step by step, each chain on its own."""

from __future__ import annotations

import pytest
import torch

from outrider.distill.batches import make
from outrider.distill.draft import Draft
from outrider.distill.features import Features
from outrider.distill.head import Head
from outrider.distill.student import Linear, halves, neighbours, rotate
from outrider.heads import tap_layers

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def features(target, dialogues, tmp_path_factory):
    made = Features(tmp_path_factory.mktemp("features"), target, tap_layers(8), dialogues[:6], 2**30)
    list(made.compute())
    return made


@pytest.fixture(scope="module")
def batch(features):
    made = make(features, [0, 1, 2], CPU)
    return type(made)(made.tokens, made.taps.float(), made.starts, made.goal)


@pytest.fixture
def head(target):
    torch.manual_seed(0)
    head = Head.of(target, torch.arange(0, 269, 2))
    head.embedding = head.embedding.float()
    with torch.no_grad():
        head.fc.weight.normal_(0, 0.05)
    return head


def drafted_alone(head, taps, tokens, start, steps):
    """One chain, entry by entry, as a drafter runs the head: its KV is that of a plain list of entries."""
    shape, layer, attn = head.shape, head.midlayer, head.midlayer.self_attn
    keys, values, results = [], [], []
    hidden = None
    for entry in range(start + steps):
        hidden = head.fc(taps[entry]) if entry <= start else hidden
        x = torch.cat((layer.input_layernorm(head.embedding[tokens[entry + 1]]), layer.hidden_norm(hidden)))
        half = torch.arange(0, shape.head_dim, 2) / shape.head_dim
        angle = entry * shape.rope_base ** -half.double()
        cos, sin = angle.cos().float(), angle.sin().float()
        keys.append(rotate(attn.k_proj(x).view(shape.kv_heads, -1), cos, sin))
        values.append(attn.v_proj(x).view(shape.kv_heads, -1))
        if entry < start:
            continue
        queries = rotate(attn.q_proj(x).view(shape.heads, -1), cos, sin)
        attended = []
        for n, query in enumerate(queries):
            own = n // (shape.heads // shape.kv_heads)
            weights = (torch.stack([key[own] for key in keys]) @ query / shape.head_dim**0.5).softmax(0)
            attended.append(weights @ torch.stack([value[own] for value in values]))
        hidden = hidden + attn.o_proj(torch.cat(attended))
        hidden = hidden + layer.mlp(layer.post_attention_layernorm(hidden))
        results.append(head.norm(hidden))
    return results


@torch.no_grad()
def test_chains_of_a_head_are_what_a_drafter_computes(head, batch):
    chains = head.chains(batch)
    together = [chains.advance() for _ in range(3)]
    for row in (0, 2):
        for column in (0, 5):
            if not batch.goals(batch.starts, 2).counts[row, column]:
                continue
            start = int(batch.starts[row, column])
            alone = drafted_alone(head, batch.taps[row], batch.tokens[row].tolist(), start, 3)
            for step in range(3):
                torch.testing.assert_close(together[step][row, column], alone[step], atol=2e-4, rtol=2e-4)


@torch.no_grad()
def test_a_chain_reads_no_tap_past_its_start(head, batch):
    start = int(batch.starts[0, 3])
    changed = batch.taps.clone()
    changed[0, start + 1 :] += 1
    other = type(batch)(batch.tokens, changed, batch.starts, batch.goal)
    for step, (one, two) in enumerate(zip(_advanced(head, batch), _advanced(head, other), strict=True)):
        torch.testing.assert_close(one[0, 3], two[0, 3])
        assert step > 0 or not torch.equal(one[0, 4], two[0, 4])  # the next chain does see the change


def _advanced(student, batch, steps=3):
    chains = student.chains(batch)
    return [chains.advance() for _ in range(steps)]


@torch.no_grad()
@pytest.mark.parametrize("kind", ["head", "draft"])
def test_chains_that_are_kept_go_on_as_if_all_were(kind, head, target, batch):
    student = head if kind == "head" else Draft.of(target)
    all_of_them = _advanced(student, batch)
    columns = torch.tensor([[4, 1], [0, 2], [3, 3]])
    chains = student.chains(batch)
    chains.advance()
    chains.keep(columns)
    chains.advance()
    last = chains.advance()
    for row, kept in enumerate(columns.tolist()):
        torch.testing.assert_close(last[row], all_of_them[2][row, kept], atol=1e-5, rtol=1e-5)


@torch.no_grad()
def test_a_draft_reads_the_texts_own_tokens(target, batch):
    draft = Draft.of(target)
    steps = _advanced(draft, batch)
    for row, column in ((0, 0), (1, 4)):
        start = int(batch.starts[row, column])
        for step in range(2):
            alone = draft(batch.tokens[row : row + 1, : start + 2 + step])[0, -1]
            torch.testing.assert_close(steps[step][row, column], alone, atol=1e-4, rtol=1e-4)


def test_goals_are_what_was_said_after_each_place(batch, features):
    for row in range(3):
        dialogue = features.dialogues[row]
        for step in range(3):
            goal = batch.goals(batch.starts, step)
            for column in goal.counts[row].nonzero().flatten().tolist():
                foretold = int(batch.starts[row, column]) + 2 + step
                assert any(start <= foretold < end for start, end in dialogue.answers)
                if dialogue.temperatures[0] == 0 and len(dialogue.answers) == 1:
                    assert int(goal.tokens[row, column, 0]) == dialogue.tokens[foretold]


def test_a_head_starts_as_the_targets_last_layer(target):
    head = Head.of(target, torch.arange(269))
    torch.testing.assert_close(head.lm_head.weight.detach().numpy(), target.output_rows())
    down = target.tensor("blk.7.ffn_down.weight")
    torch.testing.assert_close(head.midlayer.mlp.down_proj.weight.detach().numpy(), down)


@torch.no_grad()
def test_a_wider_head_says_what_it_said_and_new_tokens_as_the_target_would(target, batch):
    narrow = Head.of(target, torch.arange(0, 240, 2))
    turn = torch.eye(narrow.shape.hidden) + 0.1 * torch.randn(narrow.shape.hidden, narrow.shape.hidden)
    narrow.lm_head.weight.copy_(torch.from_numpy(target.output_rows())[narrow.target_ids] @ turn)
    wide = narrow.widened(torch.arange(240), target)
    expected = torch.from_numpy(target.output_rows())[:240] @ turn
    assert torch.equal(wide.lm_head.weight[::2], narrow.lm_head.weight)
    torch.testing.assert_close(wide.lm_head.weight, expected, atol=1e-3, rtol=1e-3)
    for one, two in zip(_advanced(narrow, batch), _advanced(wide, batch), strict=True):
        assert torch.equal(one, two)


def test_halves_and_neighbours_are_inverse():
    weight = torch.arange(2 * 16 * 3).view(32, 3)
    assert torch.equal(neighbours(halves(weight, 2), 2), weight)
    assert halves(weight, 2)[:3, 0].tolist() == [weight[0, 0], weight[2, 0], weight[4, 0]]


def test_a_matrix_takes_any_number_of_rows():
    matrix = Linear(4, 3)
    for shape in ((2, 0, 4), (0, 4), (1, 4), (3, 5, 4), (257, 4)):
        x = torch.randn(shape)
        torch.testing.assert_close(matrix(x), x @ matrix.weight.T)
