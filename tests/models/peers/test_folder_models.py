"""Folders of transformers, each with transformers' own model on the same random weights."""

import json

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file

import medclip_debias as md
from medclip_debias.cli import run
from medclip_debias.errors import UserError
from medclip_debias.models.load import load_model
from medclip_debias.models.peers.families import family
from medclip_debias.models.peers.importing import import_model

from .conftest import UNIGRAMS, lively, spiece

SENTENCES = ["No effusion.", "effusion", "tail of a fusion"]
SIZES = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
VISION = SIZES | {"intermediate_size": 48, "image_size": 64, "patch_size": 16}
TEXT = SIZES | {
    "intermediate_size": 40,
    "vocab_size": len(UNIGRAMS),
    "max_position_embeddings": 16,
    "projection_size": 32,
}
PROCESSOR = {"size": {"height": 64, "width": 64}, "resample": 2, "image_mean": [0.4, 0.5, 0.6]}
CLOSE = {"atol": 1e-5, "rtol": 0}


def write(folder, model, processor):
    folder.mkdir()
    model.save_pretrained(folder)
    (folder / "preprocessor_config.json").write_text(json.dumps(processor))
    return folder


@pytest.fixture(scope="module")
def siglip(tmp_path_factory):
    from transformers import SiglipConfig, SiglipModel

    torch.manual_seed(0)
    # 16 does not divide 70: a rim of six pixels is read by no patch.
    vision = VISION | {"image_size": 70}
    model = lively(SiglipModel(SiglipConfig(vision_config=vision, text_config=TEXT)))
    size = {"size": {"height": 70, "width": 70}}
    folder = write(tmp_path_factory.mktemp("siglip") / "folder", model, PROCESSOR | size)
    spiece(folder / "spiece.model")
    return model, folder


def images(side):
    g = torch.Generator().manual_seed(side)
    return torch.randint(0, 256, (2, side, side), generator=g, dtype=torch.uint8)


def pooled(found):
    return F.normalize(getattr(found, "pooler_output", found), dim=-1)


def ids_of(peer, length, pad):
    rows = peer.tokenizer.encode(SENTENCES, length)
    result = torch.full((len(rows), length), pad)
    for row, own in zip(result, rows, strict=True):
        row[: len(own)] = torch.tensor(own)
    return result


def each_alone(head, tokens):
    """What the library's own pooling makes of each patch, if it is the only one."""
    return torch.cat(
        [pooled(head(tokens[:, n : n + 1]))[:, None] for n in range(tokens.shape[1])], 1
    )


@torch.no_grad()
def test_siglip_gives_the_librarys_vectors(siglip, tmp_path):
    reference, folder = siglip
    import_model("siglip", folder, tmp_path / "peer", golden=True)
    peer = load_model(tmp_path / "peer")
    assert peer.self_test["status"] == "passed"
    x = peer.normalise(images(70))
    mean = torch.tensor([0.4, 0.5, 0.6])[None, :, None, None]
    torch.testing.assert_close(x, (images(70)[:, None] / 255 - mean) / 0.5)
    found, words = peer.encode_images(images(70)), peer.encode_sentences(SENTENCES)
    whole = pooled(reference.get_image_features(pixel_values=x))
    text = pooled(reference.get_text_features(input_ids=ids_of(peer, 16, pad=1)))
    torch.testing.assert_close(found.whole, whole, **CLOSE)
    torch.testing.assert_close(words, text, **CLOSE)
    torch.testing.assert_close(peer.score(found, words), whole @ text.T, **CLOSE)
    tokens = reference.vision_model(x).last_hidden_state
    torch.testing.assert_close(
        found.regions, each_alone(reference.vision_model.head, tokens), **CLOSE
    )
    p = peer.preprocessing.prepare
    assert (p.size, p.fit, p.resample, p.clip) == (70, "squash", "bilinear", (0, 100))
    assert peer.provenance["licence"] == family("siglip").licence
    assert set(peer.provenance["imported"]) >= {"model.safetensors", "spiece.model"}
    # What its loss learned, from which training goes on.
    assert peer.settings.scale == pytest.approx(float(reference.logit_scale.exp()), rel=1e-6)
    assert peer.settings.bias == pytest.approx(float(reference.logit_bias), rel=1e-6)
    # The front door and ground take it as any model: the pixels of the whole image are scored.
    shown = md.load(tmp_path / "peer", device="cpu").heatmaps(images(70)[0].numpy(), SENTENCES[:1])
    assert shown.values.shape == (1, 70, 70)
    assert shown.kind == "cosine"


@torch.no_grad()
def test_siglip_2_of_flexible_sizes_is_read_at_its_square(tmp_path):
    from transformers import Siglip2Config, Siglip2Model

    torch.manual_seed(1)
    vision = {k: v for k, v in VISION.items() if k != "image_size"} | {"num_patches": 16}
    reference = lively(Siglip2Model(Siglip2Config(vision_config=vision, text_config=TEXT)))
    folder = write(tmp_path / "folder", reference, {"max_num_patches": 16, "patch_size": 16})
    spiece(folder / "spiece.model")
    peer = import_model("siglip", folder, tmp_path / "peer")
    assert peer.grid.shape == (4, 4)
    assert peer.preprocessing.input_size == 64
    x = peer.normalise(images(64)).expand(-1, 3, -1, -1)
    # A patch is a row of the processor's: rows, columns, channels.
    rows = x.unfold(2, 16, 16).unfold(3, 16, 16).permute(0, 2, 3, 4, 5, 1).reshape(2, 16, -1)
    shapes = torch.tensor([[4, 4]] * 2)
    whole = pooled(
        reference.get_image_features(
            pixel_values=rows,
            pixel_attention_mask=torch.ones(2, 16, dtype=torch.long),
            spatial_shapes=shapes,
        )
    )
    torch.testing.assert_close(peer.encode_images(images(64)).whole, whole, **CLOSE)


@pytest.mark.parametrize("activation", ["quick_gelu", "gelu"])
@torch.no_grad()
def test_clip_gives_the_librarys_vectors(activation, few_merges, tmp_path):
    """PubMedCLIP's activation, and that of models trained by open_clip (XrayCLIP)."""
    from transformers import CLIPConfig, CLIPModel

    from medclip_debias.models.peers.tokenizers import ClipTokenizer

    torch.manual_seed(2)
    tokenizer = ClipTokenizer.from_merges(few_merges)
    words = TEXT | {"vocab_size": tokenizer.size, "max_position_embeddings": 77}
    words |= {"hidden_act": activation, "eos_token_id": tokenizer.end_id}
    config = CLIPConfig(
        vision_config=VISION | {"hidden_act": activation}, text_config=words, projection_dim=24
    )
    reference = lively(CLIPModel(config))
    sizes = {"size": {"shortest_edge": 72}, "crop_size": {"height": 64, "width": 64}}
    folder = write(tmp_path / "folder", reference, sizes | {"resample": 3})
    tokenizer.save(folder)
    (folder / "README.md").write_text("---\nlicense: mit\nlicense_link: x.org/y\n---\n# Card\n")
    peer = import_model("clip", folder / "model.safetensors", tmp_path / "peer")
    x = peer.normalise(images(64))
    found, own = peer.encode_images(images(64)), peer.encode_sentences(SENTENCES)
    whole = pooled(reference.get_image_features(pixel_values=x))
    text = pooled(reference.get_text_features(input_ids=ids_of(peer, 77, pad=tokenizer.end_id)))
    torch.testing.assert_close(found.whole, whole, **CLOSE)
    torch.testing.assert_close(own, text, **CLOSE)
    vision = reference.vision_model
    tokens = vision.post_layernorm(vision(x).last_hidden_state)[:, 1:]
    regions = F.normalize(reference.visual_projection(tokens), dim=-1)
    torch.testing.assert_close(found.regions, regions, **CLOSE)
    p = peer.preprocessing
    assert (p.prepare.size, p.input_size, p.prepare.fit) == (72, 64, "crop")
    assert peer.provenance["licence"] == "mit, x.org/y (README.md beside the weights)"


@torch.no_grad()
def test_rad_dino_gives_the_librarys_tokens_and_reads_no_sentence(tmp_path):
    from transformers import Dinov2Config, Dinov2Model

    torch.manual_seed(3)
    sizes = SIZES | {"image_size": 56, "patch_size": 14, "mlp_ratio": 2}
    reference = lively(Dinov2Model(Dinov2Config(**sizes)))
    crop = {"size": {"shortest_edge": 84}, "crop_size": {"height": 84, "width": 84}}
    folder = write(tmp_path / "folder", reference, crop | {"image_mean": [0.5307] * 3})
    peer = import_model("rad_dino", folder, tmp_path / "peer")
    # Positions for 4 x 4 patches, an input of 6 x 6: interpolated as transformers does.
    assert peer.grid.shape == (6, 6)
    assert peer.grid.first == 7
    assert peer.grid.stride == 14
    x = peer.normalise(images(84))
    expected = reference(pixel_values=x)
    found = peer.encode_images(images(84))
    torch.testing.assert_close(found.whole, F.normalize(expected.pooler_output, dim=-1), **CLOSE)
    patches = F.normalize(expected.last_hidden_state[:, 1:], dim=-1)
    torch.testing.assert_close(found.regions, patches, **CLOSE)
    assert not (tmp_path / "peer" / "tokenizer.json").exists()
    with pytest.raises(UserError, match="reads images alone"):
        peer.encode_sentences(["No effusion."])
    with pytest.raises(UserError, match="without --self-test"):
        import_model("rad_dino", folder, tmp_path / "other", golden=True)
    assert not (tmp_path / "other").exists()


def test_rad_dino_is_probed_and_refused_where_text_is_asked(small_tree, tmp_path, capsys):
    from transformers import Dinov2Config, Dinov2Model

    torch.manual_seed(3)
    model = Dinov2Model(Dinov2Config(**SIZES, image_size=28, patch_size=14, mlp_ratio=1))
    crop = {"size": {"shortest_edge": 28}, "crop_size": {"height": 28, "width": 28}}
    folder = write(tmp_path / "folder", model, crop)
    peer, fitting = str(tmp_path / "peer"), str(tmp_path / "set")
    assert run(["import-model", "rad_dino", str(folder), "--out", peer, "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["licence"] == family("rad_dino").licence
    assert said["grid"] == "2 x 2"
    options = said["prepare with"].split()
    assert run(["prepare", str(small_tree), fitting, "--workers", "1", *options]) == 0
    few = ["--bootstrap", "0", "--set", "repeats=1"]
    probed = ["evaluate", "probe", peer, fitting, "--out", str(tmp_path / "probe"), *few]
    assert run(probed) == 0
    found = json.loads((tmp_path / "probe" / "probe.json").read_text())
    assert found["alignment"] is None
    assert found["uniformity"]["sentences"] is None
    assert found["uniformity"]["images"] < 0
    assert found["counts"]["pairs"] == 0
    capsys.readouterr()
    image = next(small_tree.rglob("*.dcm"))
    for words in (
        ["evaluate", peer, fitting],
        ["index", peer, fitting],
        ["ground", peer, str(image), "--text", "No effusion."],
    ):
        assert run([*words, "--out", str(tmp_path / "out")]) == 2
        message = capsys.readouterr().err
        assert "reads images alone" in message
        assert message.count("\n") == 1
        assert not (tmp_path / "out").exists()


def test_a_patchs_place_is_where_its_gradient_says(siglip, tmp_path):
    """With attention switched off a token is made of its own patch alone."""
    peer = import_model("siglip", siglip[1], tmp_path / "peer")
    for block in peer.image.layers:
        block.self_attn.out_proj.weight.data.zero_()
    peer.image.tower.embeddings.patch_embedding.weight.data.fill_(0.01)
    x = torch.rand(1, 3, 70, 70, requires_grad=True)
    regions, _ = peer.image(x)
    centres = peer.grid.centres()
    assert centres.shape == (4, 4, 2)
    for row, column in ((0, 0), (1, 3), (3, 2)):
        (gradient,) = torch.autograd.grad(
            regions[0, 4 * row + column].square().sum(), x, retain_graph=True
        )
        mass = gradient.abs().sum(dim=(0, 1)).double()
        place = torch.arange(70, dtype=torch.float64) + 0.5
        found = [(mass.sum(dim=axis) * place).sum() / mass.sum() for axis in (0, 1)]
        assert torch.stack(found).tolist() == pytest.approx(centres[row, column], abs=1e-4)


def test_every_tensor_and_setting_is_accounted_for(siglip, tmp_path):
    folder = tmp_path / "folder"
    folder.mkdir()
    for path in siglip[1].iterdir():
        (folder / path.name).write_bytes(path.read_bytes())
    out = tmp_path / "peer"

    def refused(match):
        with pytest.raises(UserError, match=match):
            import_model("siglip", folder, out)
        assert not out.exists()

    state = load_file(folder / "model.safetensors")
    for change, words in (
        ({"vision_model.odd": torch.zeros(2)}, r"1 unknown \(image\.tower\.odd"),
        ({"text_model.head.bias": None}, r"1 missing \(text\.tower\.head\.bias"),
        (
            {"text_model.encoder.layers.1.self_attn.k_proj.weight": None},
            r"missing \(text\.tower\.encoder\.layers\.1\.self_attn\.k_proj\.weight",
        ),
        (
            {"vision_model.embeddings.position_embedding.weight": torch.zeros(15, 32)},
            "15 positions",
        ),
    ):
        kept = {k: v for k, v in (state | change).items() if v is not None}
        save_file(kept, folder / "model.safetensors")
        refused(words)
    save_file(state, folder / "model.safetensors")
    processor = folder / "preprocessor_config.json"
    given = json.loads(processor.read_text())
    for change, words in (
        ({"resample": 0}, "resample 0"),
        ({"do_normalize": False}, "'do_normalize' is off"),
        ({"rescale_factor": 1.0}, "not divided by 255"),
        ({"size": {"height": 64, "width": 70}}, "sizes do not end"),
    ):
        processor.write_text(json.dumps(given | change))
        refused(words)
    processor.unlink()
    refused(r"preprocessor_config\.json: there is no such file")
    processor.write_text(json.dumps(given))
    config = json.loads((folder / "config.json").read_text())
    for change, words in (
        ({"model_type": "clip"}, "model_type is 'clip'"),
        ({"vision_config": config["vision_config"] | {"hidden_act": "relu"}}, "hidden_act"),
        (
            {"vision_config": config["vision_config"] | {"vision_use_head": False}},
            "vision_use_head",
        ),
    ):
        (folder / "config.json").write_text(json.dumps(config | change))
        refused(words)
    with pytest.raises(UserError, match="leave --text and --config out"):
        import_model("siglip", folder, out, text=folder)
    with pytest.raises(UserError, match="no such folder"):
        import_model("siglip", tmp_path / "nowhere", out)
    with pytest.raises(UserError, match="only gloria"):
        import_model("siglip", folder, out, score="both")
