"""CLIP and its relatives, each with open_clip's or transformers' own code on the same weights."""

from __future__ import annotations

import importlib
import json

import pytest
import torch
from safetensors.torch import load_file, save_file

import medclip_debias as md
from medclip_debias.errors import UserError
from medclip_debias.models.load import load_model
from medclip_debias.models.peers.families import family
from medclip_debias.models.peers.images import image_tower
from medclip_debias.models.peers.importing import import_model
from medclip_debias.models.peers.settings import PeerSettings
from medclip_debias.models.peers.tokenizers import ClipTokenizer

from .conftest import (
    CLIP_WORDS,
    SENTENCES,
    UNIGRAMS,
    check,
    close,
    lively,
    pictures,
    plain,
    spiece,
    unit,
)

VIT = {"layers": 2, "width": 64, "patch_size": 16, "image_size": 64}
RESNET = {"layers": [1, 2, 1, 1], "width": 16, "image_size": 96, "patch_size": None}
TEXT = {"context_length": 77, "vocab_size": CLIP_WORDS, "width": 64, "heads": 1, "layers": 1}
COCA = {"attentional_pool": True, "attn_pooler_heads": 2, "attn_pooler_queries": 5}
COCA_TEXT = TEXT | {"context_length": 76}
PIECES = {
    "context_length": 16,
    "vocab_size": len(UNIGRAMS),
    "hf_tokenizer_name": "timm/ViT-B-16-SigLIP",
    "tokenizer_kwargs": {"clean": "canonicalize"},
    "width": 128,
    "heads": 2,
    "layers": 2,
    "no_causal_mask": True,
    "proj_bias": True,
    "pool_type": "last",
    "norm_kwargs": {"eps": 1e-6},
    "act_kwargs": {"approximate": "tanh"},
}


def timm(name, side, pool, proj):
    options = {"timm_model_name": name, "image_size": side}
    return options | {"timm_pool": pool, "timm_proj": proj}


def bert(pooler, projection):
    own = {"hf_pooler_type": pooler, "hf_proj_type": projection}
    return {"hf_model_name": "x", "hf_model_pretrained": False, "context_length": 32} | own


SIGLIP = timm("vit_base_patch16_siglip_224", 224, "map", "none")
BIOMEDCLIP = timm("vit_base_patch16_224", 224, "", "linear")
AVERAGED = {"pool_type": "avg", "final_ln_after_pool": True, "pos_embed_type": "sin_cos_2d"}
DROPPED = {"pool_type": "tok", "final_ln_after_pool": True, "patch_dropout": 0.5}
CASES = {
    "CLIP's ViT": (VIT, TEXT, {"quick_gelu": True}),
    "layer scale": (VIT | {"ls_init_value": 0.5}, TEXT, {"custom_text": True}),
    "mean": (VIT | {"pool_type": "avg", "no_ln_pre": True}, TEXT, {"custom_text": True}),
    "mean before the norm": (VIT | AVERAGED, TEXT, {"custom_text": True}),
    "token before the norm": (VIT | DROPPED, TEXT, {"custom_text": True}),
    "CLIP's ResNet": (RESNET, TEXT, {"quick_gelu": True}),
    "CoCa": (VIT | COCA, COCA_TEXT | {"embed_cls": True}, {"multimodal_cfg": COCA_TEXT}),
    "ConvNeXt": (timm("test_convnext", 96, "", "linear"), TEXT, {"custom_text": True}),
    "Swin": (
        timm("swin_tiny_patch4_window7_224", 224, "avg", "linear") | {"timm_proj_bias": True},
        TEXT,
        {"custom_text": True},
    ),
    "timm's ViT": (timm("vit_base_patch32_224", 224, "avg", "mlp"), TEXT, {"custom_text": True}),
    "EVA": (timm("eva02_tiny_patch14_224", 224, "token", "linear"), TEXT, {"custom_text": True}),
    "SigLIP": (SIGLIP, PIECES, {"init_logit_bias": -10}),
    "BiomedCLIP": (BIOMEDCLIP, bert("cls_last_hidden_state_pooler", "mlp"), {}),
    "UniMed-CLIP": (VIT, bert("mean_pooler", "linear"), {}),
    "BERT's pooler": (RESNET, bert("cls_pooler", None), {}),
}


@pytest.fixture
def small_timm(monkeypatch):
    """timm's own networks of full size, shallow and narrow, under their own names."""
    from timm.models import eva, swin_transformer, vision_transformer

    def shrink(network, **small):
        original = network.__init__

        def init(self, *args, **kwargs):
            original(self, *args, **kwargs | small)

        monkeypatch.setattr(network, "__init__", init)

    shrink(vision_transformer.VisionTransformer, depth=2, embed_dim=128, num_heads=2)
    shrink(eva.Eva, depth=2)
    sizes = {"depths": (1, 1, 1, 1), "embed_dim": 8, "num_heads": (1, 1, 2, 2)}
    shrink(swin_transformer.SwinTransformer, **sizes)


def regions_of(visual, x):
    """Every place of an image through open_clip's and timm's own last parts, as if alone."""
    if hasattr(visual, "trunk"):
        places, trunk = visual.trunk.forward_features(x), visual.trunk
        if places.ndim == 4 and places.shape[1] == places.shape[2]:  # Swin's channels are last
            alone = [place[:, None, None] for place in places.flatten(1, 2).unbind(1)]
        elif places.ndim == 4:
            alone = [place[:, :, None, None] for place in places.flatten(2).unbind(2)]
        else:
            prefix = trunk.num_prefix_tokens
            each = places[:, prefix:].unbind(1)
            alone = [place[:, None].expand(-1, 1 + prefix, -1) for place in each]
        return torch.stack([visual.head(trunk.forward_head(one)) for one in alone], dim=1)
    if hasattr(visual, "attnpool"):
        out = visual.forward_intermediates(x, indices=1, intermediates_only=True)
        places, pool = out["image_intermediates"][0], visual.attnpool
        return pool.c_proj(pool.v_proj(places.flatten(2).transpose(1, 2)))
    if visual.attn_pool is not None:
        tokens = visual.transformer(visual._embeds(x))[:, 1:]
        alone = [visual._pool(token[:, None])[0] @ visual.proj for token in tokens.unbind(1)]
        return torch.stack(alone, dim=1)
    out = visual.forward_intermediates(x, indices=1, normalize_intermediates=True)
    return out["image_intermediates"][0].flatten(2).transpose(1, 2) @ visual.proj


def padded(peer, length, pad=0):
    rows = [ids + [pad] * (length - len(ids)) for ids in peer.token_ids(SENTENCES)]
    return torch.tensor(rows)


@pytest.mark.parametrize("name", CASES)
@torch.no_grad()
def test_towers_of_open_clip(
    name, open_clip_model, small_timm, few_merges, bert_folder, tmp_path, bring
):
    vision, words, more = CASES[name]
    text, dim = few_merges, 24
    if "hf_model_name" in words:
        text, words = bert_folder, words | {"hf_model_name": str(bert_folder)}
        width = json.loads((bert_folder / "config.json").read_text())["hidden_size"]
        dim = dim if words["hf_proj_type"] else width
    elif words["context_length"] == 16:
        text, dim = tmp_path / "words", 128
        text.mkdir()
        spiece(text / "spiece.model")
    torch.manual_seed(0)
    if "multimodal_cfg" in more:
        coca = importlib.import_module("open_clip_networks.coca_model").CoCa
        output = {"output_tokens": True}
        reference = coca(dim, more["multimodal_cfg"], words | output, vision | output)
    else:
        build = open_clip_model.CLIP if "quick_gelu" in more else open_clip_model.CustomTextCLIP
        others = {key: more[key] for key in ("quick_gelu", "init_logit_bias") if key in more}
        reference = build(dim, vision, words, **others)
    reference = lively(reference)
    mean, std = [0.1, 0.2, 0.3], [0.5, 0.6, 0.7]
    config = {"embed_dim": dim, "vision_cfg": vision, "text_cfg": words} | more
    how = {"interpolation": "bilinear", "mean": mean, "std": std}
    (tmp_path / "c.json").write_text(json.dumps({"model_cfg": config, "preprocess_cfg": how}))
    peer = bring("open_clip", reference.state_dict(), text, tmp_path / "c.json")
    images = pictures(vision["image_size"])
    x = peer.normalise(images)
    expected_x = images[:, None].expand(-1, 3, -1, -1) / 255 - torch.tensor(mean)[:, None, None]
    close(x, expected_x / torch.tensor(std)[:, None, None])
    regions, whole = regions_of(reference.visual, x), reference.encode_image(x)
    sentences = reference.encode_text(padded(peer, words["context_length"], int(dim == 128)))
    check(f"open_clip {name}", peer, images, plain(regions, whole, sentences))
    if name == "Swin":  # a mean, a linear map: the whole is the mean of the regions
        close(regions.mean(dim=1), whole)
    assert peer.preprocessing.prepare.resample == "bilinear"
    assert peer.learned_scale == pytest.approx(min(float(reference.logit_scale.exp()), 100))


@torch.no_grad()
def test_chexzero_is_openais_clip_at_320_pixels(open_clip_model, few_merges, bring):
    vision = {"layers": 2, "width": 64, "patch_size": 32, "image_size": 224}
    torch.manual_seed(0)
    reference = lively(open_clip_model.CLIP(24, vision, TEXT | {"layers": 2}, quick_gelu=True))
    peer = bring("chexzero", reference.state_dict(), few_merges)
    images = pictures(320)
    x = peer.normalise(images)
    assert x.shape == (2, 3, 224, 224)
    assert (peer.grid.shape, peer.grid.stride) == ((7, 7), 320 / 7)
    sentences = reference.encode_text(padded(peer, 77))
    regions = regions_of(reference.visual, x)
    check("chexzero", peer, images, plain(regions, reference.encode_image(x), sentences))


def test_places_of_the_resnet_lie_where_its_gradient_says():
    """With equal positive weights the gradient of a place is symmetric around its centre."""
    sizes = {"image_size": 256, "layers": [1, 1, 1, 1], "width": 8, "head_width": 64}
    image = {"kind": "open_clip", "config": sizes}
    settings = {"kind": "open_clip", "dim": 4, "max_tokens": 3, "image": image}
    net = image_tower(PeerSettings.model_validate(settings | {"text": {"kind": "none"}}), {})
    for name, value in net.visual.state_dict().items():
        if name.endswith("weight") and value.ndim == 4:
            value.fill_(1 / value[0].numel())
        elif name.startswith("attnpool") and value.ndim == 2 and "positional" not in name:
            value.fill_(0.1)
    net.eval()
    image = torch.ones(1, 3, 256, 256, requires_grad=True)
    regions, _ = net(image)
    assert regions.shape == (1, 64, 4)
    for row, column in ((3, 4), (4, 3)):
        (gradient,) = torch.autograd.grad(regions[0, 8 * row + column, 0], image, retain_graph=True)
        mass = gradient.abs().sum(dim=(0, 1)).double()
        place = torch.arange(256, dtype=torch.float64) + 0.5
        centre = [float((mass.sum(dim=k) * place).sum() / mass.sum()) for k in (1, 0)]
        assert centre == pytest.approx([32 * row + 15.5, 32 * column + 15.5], abs=0.01)


@pytest.mark.parametrize(
    ("vision", "words", "named"),
    [
        ({"layers": 2, "pool_type": "none"}, {}, "'pool_type' is 'none'"),
        (VIT, TEXT | {"pool_type": "sum"}, "'pool_type' is 'sum'"),
        (VIT, {"hf_model_name": "x", "hf_pooler_type": "max_pooler"}, "'max_pooler'"),
        ({"timm_model_name": "resnet50"}, {}, "places are not known"),
        (VIT, TEXT | {"heads": 7}, "widths and heads"),
        (None, None, "no vision_cfg"),
    ],
)
def test_configurations_that_are_not_read_are_named(
    vision, words, named, open_clip_model, few_merges, tmp_path, bring
):
    content = {"embed_dim": 24, "vision_cfg": vision, "text_cfg": words} if vision else {}
    (tmp_path / "c.json").write_text(json.dumps(content))
    state = open_clip_model.CLIP(24, VIT, TEXT).state_dict()
    with pytest.raises(UserError, match=named):
        bring("open_clip", state, few_merges, tmp_path / "c.json")


# ------------------------------------------------------------------------ transformers' folders

SIZES = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
HF_VISION = SIZES | {"intermediate_size": 48, "image_size": 70, "patch_size": 16}
HF_TEXT = SIZES | {"intermediate_size": 40, "projection_size": 32, "vocab_size": len(UNIGRAMS)}
HF_TEXT |= {"max_position_embeddings": 16}
PROCESSOR = {"size": {"height": 70, "width": 70}, "resample": 2, "image_mean": [0.4, 0.5, 0.6]}


def pooled(found):
    return getattr(found, "pooler_output", found)


def written(folder, model, processor):
    model.save_pretrained(folder)
    (folder / "preprocessor_config.json").write_text(json.dumps(processor))
    return folder


@pytest.fixture(scope="module")
def siglip(tmp_path_factory):
    from transformers import SiglipConfig, SiglipModel

    torch.manual_seed(0)
    # 16 does not divide 70: a rim of six pixels is read by no patch.
    model = lively(SiglipModel(SiglipConfig(vision_config=HF_VISION, text_config=HF_TEXT)))
    folder = written(tmp_path_factory.mktemp("siglip"), model, PROCESSOR)
    spiece(folder / "spiece.model")
    return model, folder


@torch.no_grad()
def test_siglip_gives_the_librarys_vectors(siglip, tmp_path):
    reference, folder = siglip
    import_model("siglip", folder, tmp_path / "peer", golden=True)
    peer, images = load_model(tmp_path / "peer"), pictures(70)
    assert peer.self_test["status"] == "passed"
    x = (images[:, None] / 255 - torch.tensor([0.4, 0.5, 0.6])[None, :, None, None]) / 0.5
    whole = pooled(reference.get_image_features(pixel_values=x))
    text = pooled(reference.get_text_features(input_ids=padded(peer, 16, pad=1)))
    tokens = reference.vision_model(x).last_hidden_state
    alone = [pooled(reference.vision_model.head(token[:, None])) for token in tokens.unbind(1)]
    check("siglip", peer, images, plain(torch.stack(alone, dim=1), whole, text))
    p = peer.preprocessing.prepare
    assert (p.size, p.fit, p.resample, p.clip) == (70, "squash", "bilinear", (0, 100))
    assert peer.provenance["licence"] == family("siglip").licence
    assert set(peer.provenance["imported"]) >= {"model.safetensors", "spiece.model"}
    # What its loss learned, from which training goes on.
    assert peer.settings.scale == pytest.approx(float(reference.logit_scale.exp()), rel=1e-6)
    assert peer.settings.bias == pytest.approx(float(reference.logit_bias), rel=1e-6)
    # The front door takes it as any model: the pixels of the whole image are scored.
    shown = md.load(tmp_path / "peer", device="cpu").heatmaps(images[0].numpy(), SENTENCES[:1])
    assert (shown.values.shape, shown.kind) == ((1, 70, 70), "cosine")


@torch.no_grad()
def test_siglip_2_of_flexible_sizes_is_read_at_its_square(tmp_path):
    from transformers import Siglip2Config, Siglip2Model

    torch.manual_seed(1)
    vision = SIZES | {"intermediate_size": 48, "patch_size": 16, "num_patches": 16}
    reference = lively(Siglip2Model(Siglip2Config(vision_config=vision, text_config=HF_TEXT)))
    processor = {"max_num_patches": 16, "patch_size": 16}
    folder = written(tmp_path / "folder", reference, processor)
    spiece(folder / "spiece.model")
    peer, images = import_model("siglip", folder, tmp_path / "peer"), pictures(64)
    x = peer.normalise(images).expand(-1, 3, -1, -1)
    # A patch is a row of the processor's: rows, columns, channels.
    rows = x.unfold(2, 16, 16).unfold(3, 16, 16).permute(0, 2, 3, 4, 5, 1).reshape(2, 16, -1)
    given = {"pixel_attention_mask": torch.ones(2, 16, dtype=torch.long)}
    given |= {"spatial_shapes": torch.tensor([[4, 4]] * 2)}
    whole = pooled(reference.get_image_features(pixel_values=rows, **given))
    check("siglip 2", peer, images, {"whole": unit(whole)})


@pytest.mark.parametrize("activation", ["quick_gelu", "gelu"])
@torch.no_grad()
def test_clip_gives_the_librarys_vectors(activation, few_merges, tmp_path):
    """PubMedCLIP's activation, and that of models trained by open_clip (XrayCLIP)."""
    from transformers import CLIPConfig, CLIPModel

    torch.manual_seed(2)
    tokenizer = ClipTokenizer.from_merges(few_merges)
    act = {"hidden_act": activation}
    words = HF_TEXT | {"vocab_size": tokenizer.size, "max_position_embeddings": 77} | act
    words |= {"eos_token_id": tokenizer.end_id}
    vision = HF_VISION | {"image_size": 64} | act
    config = CLIPConfig(vision_config=vision, text_config=words, projection_dim=24)
    reference = lively(CLIPModel(config))
    sizes = {"size": {"shortest_edge": 72}, "crop_size": {"height": 64, "width": 64}}
    folder = written(tmp_path / "folder", reference, sizes | {"resample": 3})
    tokenizer.save(folder)
    (folder / "README.md").write_text("---\nlicense: mit\nlicense_link: x.org/y\n---\n# Card\n")
    peer = import_model("clip", folder / "model.safetensors", tmp_path / "peer")
    images = pictures(64)
    x = peer.normalise(images)
    whole = pooled(reference.get_image_features(pixel_values=x))
    text = pooled(reference.get_text_features(input_ids=padded(peer, 77, tokenizer.end_id)))
    tokens = reference.vision_model.post_layernorm(reference.vision_model(x).last_hidden_state)
    regions = reference.visual_projection(tokens[:, 1:])
    check(f"clip {activation}", peer, images, plain(regions, whole, text))
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
    folder = written(tmp_path / "folder", reference, crop | {"image_mean": [0.5307] * 3})
    peer, images = import_model("rad_dino", folder, tmp_path / "peer"), pictures(84)
    # Positions for 4 x 4 patches, an input of 6 x 6: interpolated as transformers does.
    assert (peer.grid.shape, peer.grid.first, peer.grid.stride) == ((6, 6), 7, 14)
    out = reference(pixel_values=peer.normalise(images))
    expected = {"whole": unit(out.pooler_output), "regions": unit(out.last_hidden_state[:, 1:])}
    check("rad_dino", peer, images, expected)
    with pytest.raises(UserError, match="reads images alone"):
        peer.encode_sentences(["No effusion."])
    with pytest.raises(UserError, match="without --self-test"):
        import_model("rad_dino", folder, tmp_path / "other", golden=True)


EMBEDDING = "vision_model.embeddings.position_embedding.weight"


@pytest.mark.parametrize(
    ("file", "change", "named"),
    [
        ("w", {"vision_model.odd": torch.zeros(2)}, r"1 unknown \(image\.tower\.odd"),
        ("w", {"text_model.head.bias": None}, r"1 missing \(text\.tower\.head\.bias"),
        ("w", {EMBEDDING: torch.zeros(15, 32)}, "15 positions"),
        ("preprocessor_config", {"do_normalize": False}, "'do_normalize' is off"),
        ("preprocessor_config", {"size": {"height": 64, "width": 70}}, "sizes do not end"),
        ("config", {"vision_config": HF_VISION | {"hidden_act": "relu"}}, "hidden_act"),
    ],
)
def test_every_tensor_and_setting_of_a_folder_is_accounted_for(
    file, change, named, siglip, tmp_path
):
    folder = tmp_path / "folder"
    folder.mkdir()
    for path in siglip[1].iterdir():
        (folder / path.name).write_bytes(path.read_bytes())
    if file == "w":
        state = load_file(folder / "model.safetensors") | change
        kept = {key: value for key, value in state.items() if value is not None}
        save_file(kept, folder / "model.safetensors")
    else:
        path = folder / f"{file}.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(UserError, match=named):
        import_model("siglip", folder, tmp_path / "peer")
    assert not (tmp_path / "peer").exists()
