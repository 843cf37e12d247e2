"""SimCLR on a small prepared set: what it reads, what it writes, how its views look."""

from __future__ import annotations

import pytest

from studies.pretrain_trunk import SIDE, main, radiograph_view


def test_a_view_of_everything_is_the_image_and_none_is_mirrored():
    import torch

    ramp = torch.linspace(0, 1, 72).expand(16, 1, 72, 72).contiguous()
    found = radiograph_view(ramp, torch.Generator().manual_seed(0))
    assert found.shape == (16, 1, SIDE, SIDE)
    columns = found.mean(dim=2)[:, 0]
    assert (columns[:, -8:].mean(dim=1) > columns[:, :8].mean(dim=1)).all()


def test_the_file_is_read_as_the_weights_of_the_image_encoder(prepared_phantom, tmp_path, capsys):
    import torch
    from safetensors.torch import load_file

    from medclip_debias.config import ImageEncoderSettings
    from medclip_debias.data.store import PreparedSet
    from medclip_debias.models.backbones.resnet import ResNetRegions

    out = tmp_path / "trunk.safetensors"
    main(prepared_phantom, out, arch="resnet_tiny", steps=2, batch=8)
    images = PreparedSet.open(prepared_phantom).images
    assert f"'images': {(images['split'] == 'train').sum()}" in capsys.readouterr().out
    encoder = ResNetRegions.build(ImageEncoderSettings(arch="resnet_tiny", weights=out))
    for name, value in load_file(out).items():
        assert torch.equal(encoder.state_dict()[name], value)
    with pytest.raises(Exception, match=r"layer3|resnet_small"):
        ResNetRegions.build(ImageEncoderSettings(arch="resnet_small", weights=out))
