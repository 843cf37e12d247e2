"""Region encoders against torchvision's own networks, and weight files of every kind."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import torchvision
from safetensors.torch import save_file

from medclip_debias.config import ImageEncoderSettings
from medclip_debias.errors import UserError
from medclip_debias.models.backbones import resnet
from medclip_debias.models.backbones.resnet import ResNetRegions, load_weights
from medclip_debias.models.image_encoder import build_image_encoder


@pytest.mark.parametrize("arch", ["resnet18", "resnet34", "resnet50"])
def test_regions_equal_torchvisions_network_before_its_pooling(arch):
    torch.manual_seed(0)
    reference = torchvision.models.get_model(arch).eval()
    encoder = ResNetRegions(arch).eval()
    load_weights(encoder, reference.state_dict(), "torchvision")
    grey = torch.randn(1, 1, 64, 96)
    with torch.no_grad():
        body = torch.nn.Sequential(*list(reference.children())[:-2])
        expected = body(grey.expand(-1, 3, -1, -1))
        torch.testing.assert_close(encoder(grey), expected, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("prefix", ["", "module.", "backbone.encoder."])
@pytest.mark.parametrize("suffix", [".pt", ".safetensors"])
def test_local_weight_files_load_under_any_prefix(tmp_path, prefix, suffix):
    source = ResNetRegions("resnet_small")
    state = {prefix + k: v.contiguous() for k, v in source.state_dict().items()}
    path = tmp_path / f"weights{suffix}"
    if suffix == ".pt":
        torch.save({"state_dict": state}, path)
    else:
        save_file(state, path)
    loaded = build_image_encoder(ImageEncoderSettings(arch="resnet_small", weights=path))
    for name, value in source.state_dict().items():
        assert torch.equal(loaded.state_dict()[name], value)


def test_weights_of_another_network_are_refused(tmp_path):
    path = tmp_path / "weights.pt"
    torch.save(ResNetRegions("resnet_small").state_dict(), path)
    with pytest.raises(UserError, match="read as a resnet18: these weights are of another"):
        build_image_encoder(ImageEncoderSettings(arch="resnet18", weights=path))
    path.write_bytes(b"not weights")
    with pytest.raises(UserError, match="cannot be read as a weight file"):
        build_image_encoder(ImageEncoderSettings(arch="resnet18", weights=path))
    with pytest.raises(UserError, match="no such weight file"):
        build_image_encoder(ImageEncoderSettings(arch="resnet18", weights=tmp_path / "none.pt"))
    with pytest.raises(UserError, match="no library weights"):
        build_image_encoder(ImageEncoderSettings(arch="resnet_small", weights="library"))


def test_a_pickle_with_code_in_it_is_refused(tmp_path):
    class Evil:
        def __reduce__(self):
            return (print, ("code from a weight file ran",))

    path = tmp_path / "weights.pt"
    torch.save({"conv1.weight": Evil()}, path)
    with pytest.raises(UserError):
        build_image_encoder(ImageEncoderSettings(arch="resnet18", weights=path))


@pytest.fixture
def narrow(monkeypatch):
    """Every network with a sixteenth of its channels, which have no part in where it looks."""
    for name, arch in resnet.ARCHITECTURES.items():
        stages = tuple((blocks, width // 16, stride) for blocks, width, stride in arch.stages)
        thin = replace(arch, stem_width=arch.stem_width // 16, stages=stages)
        monkeypatch.setitem(resnet.ARCHITECTURES, name, thin)


@pytest.mark.parametrize("arch", ["resnet_small", "resnet18", "resnet50"])
def test_a_region_is_centred_where_the_encoder_says(arch, narrow):
    """With all weights equal, the gradient's centroid is the receptive field's centre."""
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
    weight = image.grad[0, 0]
    pixel = torch.arange(640) + 0.5
    x = (weight.sum(0) * pixel).sum() / weight.sum()
    y = (weight.sum(1) * pixel).sum() / weight.sum()
    assert x.item() == pytest.approx(encoder.first_centre + encoder.stride * column, abs=0.5)
    assert y.item() == pytest.approx(encoder.first_centre + encoder.stride * row, abs=0.5)
