"""DINOv2 folders against transformers' own module: numbers, places, sizes, what is refused."""

from __future__ import annotations

import json

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file

from medclip_debias.config import ImageEncoderSettings
from medclip_debias.errors import UserError
from medclip_debias.models.backbones.dinov2 import SCRATCH, Dinov2Regions
from medclip_debias.models.image_encoder import build_image_encoder, rebuilt_image_encoder


def encoder_of(folder):
    return build_image_encoder(ImageEncoderSettings(arch="dinov2", weights=folder)).eval()


@pytest.mark.parametrize("side", [42, 70])
@pytest.mark.parametrize(("registers", "gated"), [(None, False), (3, False), (None, True)])
def test_regions_are_the_librarys_patch_tokens_at_any_size(dinov2_folder, registers, gated, side):
    folder, model = dinov2_folder(registers=registers, use_swiglu_ffn=gated)
    encoder = encoder_of(folder)
    grey = torch.randn(2, 1, side, side)
    with torch.no_grad():
        tokens = model(grey.repeat(1, 3, 1, 1)).last_hidden_state[:, 1 + (registers or 0) :]
        found = encoder(grey)
    cells = side // 14
    assert found.shape == (2, 32, cells, cells)
    grid = encoder.grid(side)
    assert (grid.shape, grid.stride, grid.first) == ((cells, cells), 14, 7.0)
    torch.testing.assert_close(found.flatten(2).transpose(1, 2), tokens, rtol=0, atol=1e-5)
    for row in range(cells):  # row-major, whatever the shape of the grid
        torch.testing.assert_close(
            found[:, :, row, 1], tokens[:, row * cells + 1], atol=1e-5, rtol=0
        )


def test_positions_at_another_size_are_the_bicubic_ones_of_the_published_code(dinov2_folder):
    """Held against a model whose stored positions were resized before, not against itself."""
    folder, _ = dinov2_folder()
    other, _ = dinov2_folder("other", image_size=70)
    state = load_file(folder / "model.safetensors")
    grid = state["embeddings.position_embeddings"][:, 1:].reshape(1, 3, 3, 32).permute(0, 3, 1, 2)
    resized = F.interpolate(grid, size=(5, 5), mode="bicubic", align_corners=False)
    first = state["embeddings.position_embeddings"][:, :1]
    state["embeddings.position_embeddings"] = torch.cat(
        [first, resized.permute(0, 2, 3, 1).reshape(1, 25, 32)], dim=1
    )
    save_file(state, other / "model.safetensors")
    grey = torch.randn(1, 1, 70, 70)
    with torch.no_grad():
        torch.testing.assert_close(
            encoder_of(folder)(grey), encoder_of(other)(grey), rtol=0, atol=1e-5
        )


def test_a_region_is_centred_on_its_patch(dinov2_folder):
    """The blocks are taken out: each of them sees everything, so only the patches have places."""
    encoder = encoder_of(dinov2_folder()[0])
    del encoder.trunk.encoder.layer[:]
    image = torch.rand(1, 1, 56, 56, requires_grad=True)
    encoder(image)[0, 3, 2, 1].backward()
    ys, xs = torch.nonzero(image.grad[0, 0], as_tuple=True)
    x, y = encoder.grid(56).centres()[2, 1]
    assert (xs.min() + xs.max() + 1).item() / 2 == x
    assert (ys.min() + ys.max() + 1).item() / 2 == y
    assert len(xs) == 14 * 14


def test_the_folder_of_a_whole_classifier_is_read_without_its_head(dinov2_folder):
    folder, model = dinov2_folder()
    state = {f"dinov2.{k}": v for k, v in model.state_dict().items()}
    save_file(state | {"classifier.weight": torch.zeros(2, 64)}, folder / "model.safetensors")
    grey = torch.randn(1, 1, 42, 42)
    with torch.no_grad():
        tokens = model(grey.repeat(1, 3, 1, 1)).last_hidden_state[:, 1:]
        found = encoder_of(folder)(grey).flatten(2).transpose(1, 2)
    torch.testing.assert_close(found, tokens, rtol=0, atol=1e-5)


def test_every_tensor_is_accounted_for(dinov2_folder, tmp_path):
    folder, model = dinov2_folder()
    state = model.state_dict()
    published = load_file(folder / "model.safetensors")
    assert encoder_of(folder).to_file(state).keys() == published.keys()
    state = published
    broken = {k: v for k, v in state.items() if k != "layernorm.bias"} | {"extra.w": torch.ones(1)}
    save_file(broken, folder / "model.safetensors")
    with pytest.raises(UserError, match=r"1 missing \(layernorm.bias\); 1 unknown \(extra.w\)"):
        encoder_of(folder)
    config = json.loads((folder / "config.json").read_text())
    for change, words in (
        ({"hidden_size": 10**6}, "hidden_size' is wrong"),
        ({"hidden_size": 4096}, "another architecture"),
        ({"model_type": "vit"}, "dinov2_with_registers can be read"),
        ({"_attn_implementation": "x/y"}, "changes how"),
    ):
        (folder / "config.json").write_text(json.dumps(config | change))
        with pytest.raises(UserError, match=words):
            encoder_of(folder)
    with pytest.raises(UserError, match=r"there is no config\.json"):
        encoder_of(tmp_path)
    with pytest.raises(UserError, match="must name the folder"):
        build_image_encoder(ImageEncoderSettings(arch="dinov2"))


def test_an_input_that_is_no_multiple_of_the_patch_is_refused(dinov2_folder):
    with pytest.raises(UserError, match="input_size to 56 or 70"):
        encoder_of(dinov2_folder()[0]).check_side(64, "run.yaml")


def test_small_ones_start_from_random_weights_and_are_built_again_from_their_sizes():
    encoder = build_image_encoder(ImageEncoderSettings(arch="vit_tiny_scratch"))
    assert isinstance(encoder, Dinov2Regions)
    assert encoder(torch.zeros(1, 1, 64, 64)).shape == (1, 128, 8, 8)
    again = rebuilt_image_encoder(encoder.arch, json.loads(json.dumps(encoder.config)), "x")
    again.load_state_dict(encoder.state_dict())
    assert SCRATCH["vit_base_scratch"]["patch_size"] == 14
    with pytest.raises(UserError, match="did you mean 'vit_tiny_scratch'"):
        build_image_encoder(ImageEncoderSettings(arch="vit_tiny_scrach"))
