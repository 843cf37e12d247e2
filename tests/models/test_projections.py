"""New blocks on a trunk, and low-rank adapters, against their formulas written out in float64."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from medclip_debias.errors import UserError
from medclip_debias.models.dual_encoder import BlockProjection
from medclip_debias.models.lora import add_adapters, merged_state


def by_hand(block, x, heads):
    """A pre-norm transformer's block."""
    attention = block.self_attn
    y = F.layer_norm(x, x.shape[-1:], block.norm1.weight, block.norm1.bias, 1e-6)
    q, k, v = (y @ attention.in_proj_weight.T + attention.in_proj_bias).chunk(3, dim=-1)
    q, k, v = (z.unflatten(-1, (heads, -1)).transpose(1, 2) for z in (q, k, v))
    shares = (q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5).softmax(dim=-1)
    mixed = (shares @ v).transpose(1, 2).flatten(2)
    x = x + mixed @ attention.out_proj.weight.T + attention.out_proj.bias
    y = F.layer_norm(x, x.shape[-1:], block.norm2.weight, block.norm2.bias, 1e-6)
    y = F.gelu(y @ block.linear1.weight.T + block.linear1.bias)
    return x + y @ block.linear2.weight.T + block.linear2.bias


@torch.no_grad()
def test_blocks_are_those_of_a_pre_norm_transformer():
    torch.manual_seed(0)
    projection = BlockProjection(128, 6, 2).double()
    for parameter in projection.parameters():
        nn.init.normal_(parameter, std=0.1)
    x = expected = torch.randn(2, 5, 128, dtype=torch.float64)
    for block in projection.blocks:
        expected = by_hand(block, expected, heads=2)
    expected = expected @ projection.linear.weight.T + projection.linear.bias
    torch.testing.assert_close(projection(x), expected, rtol=0, atol=1e-10)
    with pytest.raises(UserError, match="cannot be cut into 3 attention heads"):
        BlockProjection(200, 6, 1)


def layers():
    attention = nn.ModuleDict({"query": nn.Linear(6, 6), "key": nn.Linear(6, 4)})
    return nn.ModuleDict({"attention": attention, "mlp": nn.Linear(4, 3), "norm": nn.LayerNorm(3)})


def through(layer, x):
    x = layer["attention"]["key"](layer["attention"]["query"](x))
    return layer["norm"](layer["mlp"](x))


@pytest.mark.parametrize(("targets", "count"), [("attention", 2), ("linear", 3)])
def test_an_adapter_adds_its_low_rank_sum_and_nothing_at_first(targets, count):
    torch.manual_seed(0)
    layer = layers().double()
    x = torch.randn(5, 6, dtype=torch.float64)
    before, plain = through(layer, x), copy.deepcopy(layer)
    new = add_adapters([layer.requires_grad_(False)], 4, 6.0, targets)
    assert {p for p in layer.parameters() if p.requires_grad} == set(new)
    assert len(new) == 2 * count
    assert torch.equal(through(layer, x), before)
    for parameter in new:
        nn.init.normal_(parameter)
    adapted = plain["attention"]["query"].weight + 6.0 / 4 * new[1] @ new[0]
    torch.testing.assert_close(layer["attention"]["query"].weight, adapted)
    plain.load_state_dict(merged_state(layer))
    assert not torch.allclose(through(plain, x), before)
    torch.testing.assert_close(through(plain, x), through(layer, x))


@torch.no_grad()
def test_attention_of_torch_is_adapted_by_its_stacked_matrix_and_its_output():
    """CLIP's blocks: queries, keys and values lie in one matrix that is no linear layer."""
    torch.manual_seed(0)
    block = nn.ModuleDict({"attn": nn.MultiheadAttention(8, 2, batch_first=True)}).double()
    attn, plain = block["attn"], copy.deepcopy(block)
    x = torch.randn(3, 5, 8, dtype=torch.float64)
    before = attn(x, x, x)[0]
    new = add_adapters([block.requires_grad_(False)], 2, 4.0, "attention")
    assert [p.shape for p in new] == [(2, 8), (24, 2), (2, 8), (8, 2)]
    torch.testing.assert_close(attn(x, x, x)[0], before)
    for parameter in new:
        nn.init.normal_(parameter)
    merged = merged_state(block)
    stacked = plain["attn"].in_proj_weight + 2 * new[1] @ new[0]
    torch.testing.assert_close(merged["attn.in_proj_weight"], stacked)
    plain.load_state_dict(merged)
    torch.testing.assert_close(plain["attn"](x, x, x)[0], attn(x, x, x)[0])
    assert not torch.allclose(attn(x, x, x)[0], before)
