"""timm's folders against timm's own modules: numbers, places, sizes, what is refused."""

from __future__ import annotations

import json

import pytest
import torch
from safetensors.torch import load_file, save_file

from medclip_debias.config import ImageEncoderSettings
from medclip_debias.errors import UserError
from medclip_debias.models.image_encoder import build_image_encoder, rebuilt_image_encoder

timm = pytest.importorskip("timm")

VIT = ("vit_tiny_patch16_224", {"embed_dim": 24, "depth": 2, "num_heads": 2, "img_size": 64})
EVA = (
    "eva02_tiny_patch14_224",
    {"embed_dim": 32, "depth": 2, "num_heads": 2, "img_size": 56},
)
SWIN = (
    "swin_tiny_patch4_window7_224",
    {"embed_dim": 8, "depths": [2, 1, 1, 1], "num_heads": [1, 1, 2, 2]},
)
CONVNEXT = ("convnext_atto", {"dims": [8, 8, 12, 16], "depths": [1, 1, 1, 1]})
KINDS = {
    "vit": (VIT, 64, 96),
    "eva": (EVA, 56, 84),
    "swin": (SWIN, 224, 448),
    "convnext": (CONVNEXT, 64, 96),
}


def encoder_of(folder):
    return build_image_encoder(ImageEncoderSettings(arch="timm", weights=folder)).eval()


def own_regions(model, grey):
    """timm's features as ``[B, C, rows, columns]``, by its own helper for intermediate layers."""
    x = grey.repeat(1, 3, 1, 1)
    (last,) = model.forward_intermediates(x, indices=1, norm=True, intermediates_only=True)
    return last


@pytest.mark.parametrize("name", KINDS)
def test_regions_are_the_librarys_own_at_its_size_and_at_another(timm_folder, name):
    (arch, arguments), native, other = KINDS[name]
    folder, model = timm_folder(arch, arguments)
    encoder = encoder_of(folder)
    for side in (native, other):
        grey = torch.randn(1, 1, side, side)
        reference = model
        if side == other and name != "convnext":
            # timm resizes the stored positions when a model is made for another size.
            reference = timm.create_model(arch, num_classes=3, **arguments | {"img_size": side})
            checkpoint = timm.models.clean_state_dict(load_file(folder / "model.safetensors"))
            module = __import__(type(model).__module__, fromlist=["checkpoint_filter_fn"])
            filtered = module.checkpoint_filter_fn(checkpoint, reference)
            reference.load_state_dict(filtered)
            reference.eval()
        with torch.no_grad():
            found, expected = encoder(grey), own_regions(reference, grey)
        cells = side // encoder.stride
        assert found.shape == (1, encoder.width, cells, cells)
        assert encoder.grid(side).shape == (cells, cells)
        scale = expected.abs().max().item()
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-5 * max(1.0, scale))


@pytest.mark.parametrize("name", KINDS)
def test_a_region_is_centred_where_the_grid_says(timm_folder, name):
    """Blocks are taken out where they look everywhere; ConvNeXt keeps its convolutions."""
    (arch, arguments), _, _ = KINDS[name]
    encoder = encoder_of(timm_folder(arch, arguments)[0])
    trunk = encoder.trunk
    if name in ("vit", "eva"):
        trunk.blocks = torch.nn.Sequential() if name == "vit" else torch.nn.ModuleList()
        side = 4 * encoder.stride
    elif name == "swin":
        for stage in trunk.layers:
            stage.blocks = torch.nn.Sequential()
        side = 96
    else:
        side = 672
        for stage in trunk.stages:
            for block in stage.blocks:
                for part in ("norm", "mlp"):  # linear and with weights of one sign
                    setattr(block, part, torch.nn.Identity())
        for parameter in trunk.parameters():
            parameter.data = torch.full_like(parameter, 1.0 / parameter[0].numel())
        trunk.stem[1] = torch.nn.Identity()
        for stage in trunk.stages:
            if isinstance(stage.downsample, torch.nn.Sequential):
                stage.downsample[0] = torch.nn.Identity()
    row, column = (10, 9) if name == "convnext" else (1, 2)
    image = torch.rand(1, 1, side, side, requires_grad=True)
    features = encoder(image)[0, :, row, column]
    weight = torch.ones(len(features)) if name == "convnext" else torch.randn(len(features))
    (features * weight).sum().backward()
    seen = image.grad[0, 0].abs()
    if name != "convnext":
        seen = (seen > 0).float()
        assert seen.sum() == encoder.stride**2
    pixel = torch.arange(side) + 0.5
    x = (seen.sum(0) * pixel).sum() / seen.sum()
    y = (seen.sum(1) * pixel).sum() / seen.sum()
    expected = encoder.grid(side).centres()[row, column]
    assert (x.item(), y.item()) == pytest.approx(tuple(expected), abs=0.05)


def test_the_model_is_built_again_from_what_its_folder_keeps(timm_folder):
    encoder = encoder_of(timm_folder(*VIT)[0])
    again = rebuilt_image_encoder("timm", json.loads(json.dumps(encoder.config)), "x")
    again.load_state_dict(encoder.state_dict())
    grey = torch.randn(1, 1, 64, 64)
    with torch.no_grad():
        assert torch.equal(again.eval()(grey), encoder(grey))


def test_every_tensor_is_accounted_for(timm_folder):
    folder, model = timm_folder(*VIT)
    state = {k: v for k, v in model.state_dict().items() if k != "norm.bias"}
    save_file(state | {"other.w": torch.ones(1)}, folder / "model.safetensors")
    with pytest.raises(UserError, match=r"1 missing \(norm.bias\); 1 unknown \(other.w\)"):
        encoder_of(folder)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ({"architecture": "hf_hub:someone/model"}, "is wrong"),
        ({"architecture": "vit_tiny_patch16_225"}, "did you mean 'vit_tiny_patch16_224'"),
        ({"architecture": "resnet18"}, "whose regions' places are not known"),
        ({"architecture": "convnext_zepto_rms_ols"}, "patches that overlap"),
        ({"architecture": VIT[0], "model_args": {"pretrained_cfg": "x"}}, "is wrong"),
        ({"architecture": VIT[0], "model_args": {"embed_layer": 3}}, "none of the arguments"),
        ({"architecture": VIT[0], "model_args": {"depth": 10**9}}, "absurd size"),
        ({"architecture": VIT[0], "model_args": {"embed_dim": 9999}}, "another arch|cannot build"),
    ],
)
def test_what_a_strangers_folder_may_not_ask_for(timm_folder, content, words):
    folder, _ = timm_folder(*VIT)
    (folder / "config.json").write_text(json.dumps(content))
    with pytest.raises(UserError, match=words):
        encoder_of(folder)


def test_a_name_alone_gives_random_weights():
    settings = ImageEncoderSettings(arch="timm", name="test_vit")
    assert build_image_encoder(settings)(torch.zeros(1, 1, 64, 64)).shape == (1, 64, 4, 4)
    with pytest.raises(UserError, match=r"model\.image\.name' is missing"):
        build_image_encoder(ImageEncoderSettings(arch="timm"))
    with pytest.raises(UserError, match="needs arch: timm"):
        build_image_encoder(ImageEncoderSettings(name="test_vit"))
