"""Image encoders against torchvision's, transformers' and timm's own: numbers, places, refusals."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
import torchvision
from safetensors.torch import load_file, save_file

from medclip_debias.config import ImageEncoderSettings
from medclip_debias.errors import UserError
from medclip_debias.models.backbones import resnet
from medclip_debias.models.backbones.resnet import ResNetRegions, load_weights
from medclip_debias.models.image_encoder import build_image_encoder
from tests.helpers.small_models import edit_json

timm = pytest.importorskip("timm")


def encoder_of(arch, folder=None, **more):
    return build_image_encoder(ImageEncoderSettings(arch=arch, weights=folder, **more)).eval()


def refused(words, *encoder, **more):
    with pytest.raises(UserError, match=words):
        encoder_of(*encoder, **more)


def centre_of(gradient):
    """Where a gradient ``[H, W]`` is centred, as (x, y)."""
    places = [torch.arange(side) + 0.5 for side in gradient.shape]
    y, x = ((gradient.sum(1 - k) * places[k]).sum() / gradient.sum() for k in (0, 1))
    return x.item(), y.item()


def gradient_of(features, image, row, column):
    """Of a region's channels, by weights of their own: a norm's outputs sum to a constant."""
    torch.manual_seed(3)
    (features[0, :, row, column] * torch.randn(features.shape[1])).sum().backward()
    return image.grad[0, 0]


def check_centre(encoder, features, image, row, column):
    x, y = centre_of((gradient_of(features, image, row, column) != 0).float())
    assert encoder.grid(image.shape[-1]).centres()[row, column] == pytest.approx([x, y], abs=0.05)


# ------------------------------------------------------------------------------------------ ResNet


@torch.no_grad()
def test_resnets_regions_are_torchvisions_network_before_its_pooling():
    """Blocks of three convolutions: tests/models/peers/test_cosine_peers.py."""
    torch.manual_seed(0)
    reference, encoder = torchvision.models.resnet18().eval(), ResNetRegions("resnet18").eval()
    load_weights(encoder, reference.state_dict(), "torchvision")
    grey = torch.randn(1, 1, 64, 96)
    body = torch.nn.Sequential(*list(reference.children())[:-2])
    expected = body(grey.expand(-1, 3, -1, -1))
    torch.testing.assert_close(encoder(grey), expected, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize(
    ("prefix", "suffix"), [("module.", ".safetensors"), ("backbone.encoder.", ".pt")]
)
def test_local_weight_files_load_under_any_prefix(tmp_path, prefix, suffix):
    state = ResNetRegions("resnet_small").state_dict()
    path = tmp_path / f"weights{suffix}"
    content = {prefix + k: v.contiguous() for k, v in state.items()}
    torch.save({"state_dict": content}, path) if suffix == ".pt" else save_file(content, path)
    loaded = encoder_of("resnet_small", path).state_dict()
    assert all(torch.equal(loaded[name], value) for name, value in state.items())


class Evil:
    def __reduce__(self):
        return (print, ("code from a weight file ran",))


def test_weights_of_another_network_and_pickles_with_code_are_refused(tmp_path):
    path = tmp_path / "weights.pt"
    torch.save(ResNetRegions("resnet_small").state_dict(), path)
    refused("read as a resnet18: these weights are of another", "resnet18", path)
    torch.save({"conv1.weight": Evil()}, path)
    refused("could run code", "resnet18", path)
    refused("no library weights", "resnet_small", "library")


@pytest.mark.parametrize("arch", ["resnet_small", "resnet18"])
def test_a_region_of_a_resnet_is_centred_where_the_encoder_says(arch, monkeypatch):
    """With all weights equal, the gradient's centroid is the receptive field's centre."""
    full = resnet.ARCHITECTURES[arch]  # channels have no part in where it looks
    stages = tuple((blocks, width // 16, stride) for blocks, width, stride in full.stages)
    thin = replace(full, stem_width=full.stem_width // 16, stages=stages)
    monkeypatch.setitem(resnet.ARCHITECTURES, arch, thin)
    encoder = ResNetRegions(arch).eval()
    if not isinstance(encoder.maxpool, torch.nn.Identity):
        # The same field; but max breaks ties by position, which would move the centroid.
        encoder.maxpool = torch.nn.AvgPool2d(3, 2, 1)
    for parameter in encoder.parameters():
        parameter.data = torch.full_like(parameter, 1.0 / parameter[0].numel())
    image = torch.ones(1, 1, 640, 640, requires_grad=True)
    features = encoder(image)
    row, column = features.shape[2] // 2, features.shape[3] // 2 + 1
    features[0, :, row, column].sum().backward()
    expected = encoder.grid(640).centres()[row, column]
    assert centre_of(image.grad[0, 0]) == pytest.approx(expected, abs=0.5)


# ------------------------------------------------------------------------------------------ DINOv2


@pytest.fixture
def dinov2_folder(tmp_path):
    """A function that writes a small DINOv2 with random weights; returns folder and model."""
    import transformers

    def write(name="dino", registers=None, **changes):
        sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
        sizes |= {"image_size": 42, "patch_size": 14} | changes
        family = "Dinov2" if registers is None else "Dinov2WithRegisters"
        if registers is not None:
            sizes["num_register_tokens"] = registers
        torch.manual_seed(0)
        config = getattr(transformers, f"{family}Config")(**sizes)
        model = getattr(transformers, f"{family}Model")(config)
        for parameter in model.parameters():  # also what begins at 0 or 1
            torch.nn.init.normal_(parameter, std=0.2)
        model.save_pretrained(tmp_path / name)
        return tmp_path / name, model.eval()

    return write


@pytest.mark.parametrize(
    ("registers", "gated", "side"), [(None, False, 70), (3, False, 42), (None, True, 42)]
)
@torch.no_grad()
def test_regions_are_the_librarys_patch_tokens_at_any_size(dinov2_folder, registers, gated, side):
    folder, model = dinov2_folder(registers=registers, use_swiglu_ffn=gated)
    encoder = encoder_of("dinov2", folder)
    grey = torch.randn(2, 1, side, side)
    tokens = model(grey.repeat(1, 3, 1, 1)).last_hidden_state[:, 1 + (registers or 0) :]
    cells = side // 14
    grid = encoder.grid(side)
    assert (grid.shape, grid.stride, grid.first) == ((cells, cells), 14, 7.0)
    expected = tokens.transpose(1, 2).reshape(2, 32, cells, cells)
    torch.testing.assert_close(encoder(grey), expected, rtol=0, atol=1e-5)


@torch.no_grad()
def test_positions_at_another_size_are_the_bicubic_ones_of_the_published_code(dinov2_folder):
    """Held against a model whose stored positions were resized before, not against itself."""
    folder, other = dinov2_folder()[0], dinov2_folder("other", image_size=70)[0]
    state, name = load_file(folder / "model.safetensors"), "embeddings.position_embeddings"
    grid = state[name][:, 1:].reshape(1, 3, 3, 32).permute(0, 3, 1, 2)
    resized = F.interpolate(grid, size=(5, 5), mode="bicubic", align_corners=False)
    rows = resized.permute(0, 2, 3, 1).reshape(1, 25, 32)
    state[name] = torch.cat([state[name][:, :1], rows], dim=1)
    save_file(state, other / "model.safetensors")
    grey = torch.randn(1, 1, 70, 70)
    found, expected = (encoder_of("dinov2", each)(grey) for each in (folder, other))
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)


def test_a_region_of_dinov2_is_centred_on_its_patch(dinov2_folder):
    """The blocks are taken out: each of them sees everything, so only the patches have places."""
    encoder = encoder_of("dinov2", dinov2_folder()[0])
    del encoder.trunk.encoder.layer[:]
    image = torch.rand(1, 1, 56, 56, requires_grad=True)
    check_centre(encoder, encoder(image), image, 2, 1)
    with pytest.raises(UserError, match="input_size to 56 or 70"):
        encoder.check_side(64, "run.yaml")


def test_every_tensor_of_dinov2_is_accounted_for(dinov2_folder):
    folder, model = dinov2_folder()
    published, encoder = load_file(folder / "model.safetensors"), encoder_of("dinov2", folder)
    assert encoder.to_file(model.state_dict()).keys() == published.keys()
    # A whole classifier's folder is read without its head.
    inside = {f"dinov2.{k}": v for k, v in published.items()}
    save_file(inside | {"classifier.weight": torch.zeros(2, 64)}, folder / "model.safetensors")
    read = encoder_of("dinov2", folder).state_dict()
    assert all(torch.equal(read[name], value) for name, value in encoder.state_dict().items())
    broken = {k: v for k, v in published.items() if k != "layernorm.bias"}
    save_file(broken | {"extra.w": torch.ones(1)}, folder / "model.safetensors")
    refused(r"1 missing \(layernorm.bias\); 1 unknown \(extra.w\)", "dinov2", folder)
    edit_json(folder / "config.json", hidden_size=10**6)
    refused("hidden_size' is wrong", "dinov2", folder)
    edit_json(folder / "config.json", model_type="vit")
    refused("dinov2_with_registers can be read", "dinov2", folder)
    refused("must name the folder", "dinov2")


def test_small_ones_start_from_random_weights_and_are_built_again_from_their_sizes():
    encoder = encoder_of("vit_tiny_scratch")
    assert encoder(torch.zeros(1, 1, 64, 64)).shape == (1, 128, 8, 8)
    again = encoder.rebuild(encoder.arch, json.loads(json.dumps(encoder.config)), "x")
    again.load_state_dict(encoder.state_dict())
    refused("did you mean 'vit_tiny_scratch'", "vit_tiny_scrach")


# -------------------------------------------------------------------------------------------- timm

VIT = ("vit_tiny_patch16_224", {"embed_dim": 24, "depth": 2, "num_heads": 2, "img_size": 64})
EVA = ("eva02_tiny_patch14_224", {"embed_dim": 32, "depth": 2, "num_heads": 2, "img_size": 56})
SWIN_SIZES = {"embed_dim": 8, "depths": [2, 1, 1, 1], "num_heads": [1, 1, 2, 2]}
CONVNEXT = ("convnext_atto", {"dims": [8, 8, 12, 16], "depths": [1, 1, 1, 1]})
KINDS = {
    "vit": (*VIT, 64, 96),
    "eva": (*EVA, 56, 84),
    "swin": ("swin_tiny_patch4_window7_224", SWIN_SIZES, 224, 448),
    "convnext": (*CONVNEXT, 64, 96),
}


@pytest.fixture
def timm_folder(tmp_path):
    """A function that writes a timm model as its hub's folders hold it."""

    def write(name, arguments):
        torch.manual_seed(0)
        model = timm.create_model(name, num_classes=3, **arguments).eval()
        for parameter in model.parameters():
            torch.nn.init.normal_(parameter, std=0.2)
        state = {k: v.contiguous() for k, v in model.state_dict().items()}
        save_file(state, tmp_path / "model.safetensors")
        content = {"architecture": name, "num_classes": 3, "model_args": arguments}
        (tmp_path / "config.json").write_text(json.dumps(content))
        return tmp_path, model

    return write


@pytest.mark.parametrize("name", KINDS)
@torch.no_grad()
def test_regions_are_timms_own_at_its_size_and_at_another(timm_folder, name):
    arch, arguments, native, other = KINDS[name]
    folder, reference = timm_folder(arch, arguments)
    encoder = encoder_of("timm", folder)
    for side in (native, other):
        if side == other and name != "convnext":
            # timm resizes the stored positions when a model is made for another size.
            module = __import__(type(reference).__module__, fromlist=["checkpoint_filter_fn"])
            reference = timm.create_model(arch, num_classes=3, **arguments | {"img_size": side})
            state = timm.models.clean_state_dict(load_file(folder / "model.safetensors"))
            reference.load_state_dict(module.checkpoint_filter_fn(state, reference))
        grey = torch.randn(1, 1, side, side)
        # By timm's own helper for intermediate layers: ``[B, C, rows, columns]``.
        (expected,) = reference.eval().forward_intermediates(
            grey.repeat(1, 3, 1, 1), indices=1, norm=True, intermediates_only=True
        )
        assert encoder.grid(side).shape == (side // encoder.stride,) * 2
        atol = 1e-5 * max(1.0, expected.abs().max().item())
        torch.testing.assert_close(encoder(grey), expected, rtol=0, atol=atol)


@pytest.mark.parametrize("name", ["vit", "eva", "swin"])
def test_a_region_of_timms_transformers_is_centred_where_the_grid_says(timm_folder, name):
    """Blocks are taken out, as they look everywhere."""
    encoder = encoder_of("timm", timm_folder(*KINDS[name][:2])[0])
    if name == "swin":
        for stage in encoder.trunk.layers:
            stage.blocks = torch.nn.Sequential()
    else:
        encoder.trunk.blocks = torch.nn.Sequential() if name == "vit" else torch.nn.ModuleList()
    side = 96 if name == "swin" else 4 * encoder.stride
    image = torch.rand(1, 1, side, side, requires_grad=True)
    check_centre(encoder, encoder(image), image, 1, 2)
    assert (image.grad != 0).sum() == encoder.stride**2


def test_a_region_of_convnext_is_centred_where_the_grid_says(timm_folder):
    """Its convolutions, made linear and with weights of one sign."""
    encoder = encoder_of("timm", timm_folder(*CONVNEXT)[0])
    for parameter in encoder.trunk.parameters():
        parameter.data = torch.full_like(parameter, 1.0 / parameter[0].numel())
    encoder.trunk.stem[1] = torch.nn.Identity()
    for stage in encoder.trunk.stages:
        if isinstance(stage.downsample, torch.nn.Sequential):
            stage.downsample[0] = torch.nn.Identity()
        for block in stage.blocks:
            block.norm = block.mlp = torch.nn.Identity()
    image = torch.rand(1, 1, 672, 672, requires_grad=True)
    encoder(image)[0, :, 10, 9].sum().backward()
    expected = encoder.grid(672).centres()[10, 9]
    assert centre_of(image.grad[0, 0].abs()) == pytest.approx(expected, abs=0.05)


@torch.no_grad()
def test_every_tensor_of_timm_is_accounted_for_and_it_is_built_again(timm_folder):
    folder, model = timm_folder(*VIT)
    encoder, grey = encoder_of("timm", folder), torch.randn(1, 1, 64, 64)
    again = encoder.rebuild("timm", json.loads(json.dumps(encoder.config)), "x")
    again.load_state_dict(encoder.state_dict())
    assert torch.equal(again.eval()(grey), encoder(grey))
    state = {k: v for k, v in model.state_dict().items() if k != "norm.bias"}
    save_file(state | {"other.w": torch.ones(1)}, folder / "model.safetensors")
    refused(r"1 missing \(norm.bias\); 1 unknown \(other.w\)", "timm", folder)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ({"architecture": "hf_hub:someone/model"}, "is wrong"),
        ({"architecture": "convnext_zepto_rms_ols"}, "patches that overlap"),
        ({"architecture": VIT[0], "model_args": {"depth": 10**9}}, "it is not from 0 to 256"),
        ({"architecture": VIT[0], "model_args": {"embed_dim": 9999}}, "another arch|cannot build"),
    ],
)
def test_what_a_strangers_folder_of_timm_may_not_ask_for(timm_folder, content, words):
    folder, _ = timm_folder(*VIT)
    (folder / "config.json").write_text(json.dumps(content))
    refused(words, "timm", folder)


def test_a_name_of_timm_alone_gives_random_weights():
    encoder = encoder_of("timm", name="test_vit")
    assert encoder(torch.zeros(1, 1, 64, 64)).shape == (1, 64, 4, 4)
    refused(r"model\.image\.name' is missing", "timm")
    refused("needs arch: timm", "resnet18", name="test_vit")
