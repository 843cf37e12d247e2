"""New blocks on a trunk against the formula of a pre-norm transformer, written out in float64."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from medclip_debias.errors import UserError
from medclip_debias.models.image_projection import BlockProjection, image_projection


def by_hand(block, x, heads):
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


@pytest.mark.parametrize("training", [True, False])
def test_blocks_are_those_of_a_pre_norm_transformer(training):
    torch.manual_seed(0)
    projection = BlockProjection(128, 6, 2).double().train(training)
    for parameter in projection.parameters():
        nn.init.normal_(parameter, std=0.1)
    x = torch.randn(2, 5, 128, dtype=torch.float64)
    with torch.no_grad():
        expected = x
        for block in projection.blocks:
            expected = by_hand(block, expected, heads=2)
        expected = expected @ projection.linear.weight.T + projection.linear.bias
        torch.testing.assert_close(projection(x), expected, rtol=0, atol=1e-10)


def test_without_blocks_it_is_a_linear_map():
    assert isinstance(image_projection(128, 6, 0), nn.Linear)
    with pytest.raises(UserError, match="cannot be cut into 3 attention heads"):
        image_projection(200, 6, 1)
