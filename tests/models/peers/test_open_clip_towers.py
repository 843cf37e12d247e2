"""Towers of open_clip, each with open_clip's own code on the same random weights."""

import json

import pytest
import torch
import torch.nn.functional as F

from medclip_debias.errors import UserError
from medclip_debias.models.peers.clip_towers import OpenClipImages
from medclip_debias.models.peers.importing import import_model
from medclip_debias.models.peers.settings import OpenClipSettings

from .conftest import CLIP_WORDS, UNIGRAMS, lively, spiece

DIM = 24
VIT = {"layers": 2, "width": 64, "patch_size": 16, "image_size": 64}
RESNET = {"layers": [1, 2, 1, 1], "width": 16, "image_size": 96, "patch_size": None}
TEXT = {"context_length": 77, "vocab_size": CLIP_WORDS, "width": 64, "heads": 1, "layers": 1}
SENTENCES = ["no pleural effusion", "mild edema of the left lung", "edema"]


def pictures(side):
    g = torch.Generator().manual_seed(side)
    return torch.randint(0, 256, (2, side, side), generator=g, dtype=torch.uint8)


@pytest.fixture
def bring(tmp_path):
    """Import a model of open_clip's under its configuration."""

    def run(reference, vision, words, text, dim=DIM, **more):
        torch.save(reference.state_dict(), tmp_path / "weights.pt")
        cfg = {"embed_dim": dim, "vision_cfg": vision, "text_cfg": words} | more
        content = {"model_cfg": cfg, "preprocess_cfg": {"interpolation": "bilinear"}}
        (tmp_path / "config.json").write_text(json.dumps(content))
        files = {"text": text, "config": tmp_path / "config.json"}
        peer = import_model("open_clip", tmp_path / "weights.pt", tmp_path / "peer", **files)
        assert peer.preprocessing.prepare.resample == "bilinear"
        assert peer.preprocessing.input_size == vision["image_size"]
        return peer

    return run


def padded(peer, length=77, pad=0):
    ids = peer.tokenizer.encode(SENTENCES, length)
    result = torch.full((len(ids), length), pad)
    for row, found in zip(result, ids, strict=True):
        row[: len(found)] = torch.tensor(found)
    return result


@torch.no_grad()
def check(peer, reference, regions, text_ids=None):
    """Images, sentences and scores are the reference's; ``regions(x)`` those of its parts."""
    images = pictures(peer.preprocessing.input_size)
    x = peer.normalise(images)
    found, words = peer.encode_images(images), peer.encode_sentences(SENTENCES)
    whole = F.normalize(reference.encode_image(x), dim=-1)
    ids = padded(peer) if text_ids is None else text_ids
    text = F.normalize(reference.encode_text(ids), dim=-1)
    close = {"atol": 1e-5, "rtol": 0}
    torch.testing.assert_close(found.whole, whole, **close)
    torch.testing.assert_close(words, text, **close)
    torch.testing.assert_close(peer.score(found, words), whole @ text.T, **close)
    unit = F.normalize(regions(x), dim=-1)
    torch.testing.assert_close(found.regions, unit, **close)
    assert found.regions.shape[1] == peer.grid.rows * peer.grid.columns


def tokens_of(reference, norm):
    """Patches of open_clip's vision transformer through its own last parts."""

    def regions(x):
        got = reference.visual.forward_intermediates(x, indices=1, normalize_intermediates=norm)
        return got["image_intermediates"][0].flatten(2).transpose(1, 2) @ reference.visual.proj

    return regions


def of_each_alone(reference, shaped, places):
    """What timm's own pooling and open_clip's map make of an image that is one place everywhere."""

    def regions(x):
        found = places(reference.visual.trunk.forward_features(x))
        rows = [
            reference.visual.head(reference.visual.trunk.forward_head(shaped(found[:, n])))
            for n in range(found.shape[1])
        ]
        return torch.stack(rows, dim=1)

    return regions


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
    shrink(
        swin_transformer.SwinTransformer, depths=(1, 1, 1, 1), embed_dim=8, num_heads=(1, 1, 2, 2)
    )


SIGLIP_TEXT = {
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
}


@pytest.mark.parametrize(
    ("name", "side", "more"),
    [
        ("vit_base_patch16_siglip_224", 224, {}),
        ("vit_base_patch32_siglip_256", 256, {"act_kwargs": {"approximate": "tanh"}}),
    ],
)
def test_siglip_of_open_clip(name, side, more, small_timm, open_clip_model, tmp_path, bring):
    """SigLIP and SigLIP 2: timm's transformer with attention pooling, and its text tower."""
    vision = {"timm_model_name": name, "image_size": side, "timm_pool": "map", "timm_proj": "none"}
    words = SIGLIP_TEXT | more
    torch.manual_seed(3)
    reference = lively(open_clip_model.CustomTextCLIP(128, vision, words, init_logit_bias=-10))
    (tmp_path / "words").mkdir()
    spiece(tmp_path / "words" / "spiece.model")
    peer = bring(reference, vision, words, tmp_path / "words", dim=128, init_logit_bias=-10)
    # Attention over equal keys is the key's own value: each patch alone.
    regions = of_each_alone(reference, lambda x: x[:, None], lambda x: x)
    check(peer, reference, regions, padded(peer, 16, pad=1))


def test_coca_with_its_decoder_left_out(open_clip_model, few_merges, bring):
    import importlib

    coca = importlib.import_module("open_clip_networks.coca_model")
    vision = VIT | {
        "attentional_pool": True,
        "attn_pooler_heads": 2,
        "attn_pooler_queries": 5,
        "output_tokens": True,
    }
    words = TEXT | {"context_length": 76, "embed_cls": True, "output_tokens": True}
    more = {"context_length": 76, "vocab_size": CLIP_WORDS, "width": 64, "heads": 1, "layers": 1}
    torch.manual_seed(4)
    reference = lively(coca.CoCa(DIM, more, words, vision))
    peer = bring(reference, vision, words, few_merges, multimodal_cfg=more)
    assert peer.max_tokens == 76

    def regions(x):
        visual = reference.visual
        tokens = visual.transformer(visual._embeds(x))[:, 1:]
        rows = [visual._pool(tokens[:, n : n + 1])[0] @ visual.proj for n in range(16)]
        return torch.stack(rows, dim=1)

    check(peer, reference, regions, padded(peer, 76))


@pytest.mark.parametrize(
    ("name", "side", "more"),
    [
        ("test_convnext", 96, {"timm_pool": "", "timm_proj": "linear"}),
        ("swin_tiny_patch4_window7_224", 224, {"timm_pool": "avg", "timm_proj_bias": True}),
        ("vit_base_patch32_224", 224, {"timm_pool": "avg", "timm_proj": "mlp"}),
        ("eva02_tiny_patch14_224", 224, {"timm_pool": "token", "timm_proj": "linear"}),
    ],
)
def test_other_trunks_of_timm(name, side, more, small_timm, open_clip_model, few_merges, bring):
    vision = {"timm_model_name": name, "image_size": side} | more
    torch.manual_seed(5)
    reference = lively(open_clip_model.CustomTextCLIP(DIM, vision, TEXT))
    peer = bring(reference, vision, TEXT, few_merges, custom_text=True)
    if name == "test_convnext":
        regions = of_each_alone(
            reference, lambda x: x[:, :, None, None], lambda x: x.flatten(2).transpose(1, 2)
        )
    elif name.startswith("swin"):
        regions = of_each_alone(reference, lambda x: x[:, None, None], lambda x: x.flatten(1, 2))
        with torch.no_grad():  # a mean, a linear map: the whole is the mean of the regions
            x = peer.normalise(pictures(side))
            torch.testing.assert_close(regions(x).mean(dim=1), reference.encode_image(x))
    else:
        prefix = reference.visual.trunk.num_prefix_tokens
        regions = of_each_alone(
            reference, lambda x: x[:, None].expand(-1, 1 + prefix, -1), lambda x: x[:, prefix:]
        )
    check(peer, reference, regions)


@pytest.mark.parametrize(("layout", "quick"), [("CLIP", True), ("CustomTextCLIP", False)])
def test_clips_resnet_with_clips_text(layout, quick, open_clip_model, few_merges, bring):
    torch.manual_seed(0)
    build = getattr(open_clip_model, layout)
    reference = lively(build(DIM, RESNET, TEXT, quick_gelu=quick))
    peer = bring(reference, RESNET, TEXT, few_merges, quick_gelu=quick)
    assert peer.grid.shape == (3, 3)

    def regions(x):
        features = reference.visual.forward_intermediates(x, indices=1, intermediates_only=True)
        places = features["image_intermediates"][0].flatten(2).transpose(1, 2)
        pool = reference.visual.attnpool
        return pool.c_proj(pool.v_proj(places))

    check(peer, reference, regions)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"ls_init_value": 0.5},
        {"pool_type": "avg", "no_ln_pre": True},
        {"pool_type": "avg", "final_ln_after_pool": True, "pos_embed_type": "sin_cos_2d"},
        {"pool_type": "tok", "final_ln_after_pool": True, "patch_dropout": 0.5},
    ],
)
def test_variants_of_clips_vision_transformer(options, open_clip_model, few_merges, bring):
    torch.manual_seed(1)
    vision = VIT | options
    reference = lively(open_clip_model.CustomTextCLIP(DIM, vision, TEXT))
    peer = bring(reference, vision, TEXT, few_merges, custom_text=True)
    check(peer, reference, tokens_of(reference, norm=True))


@pytest.mark.parametrize(
    ("pooler", "projection"),
    [
        ("cls_last_hidden_state_pooler", "mlp"),
        ("mean_pooler", "linear"),
        ("cls_pooler", "mlp"),
        ("mean_pooler", None),
    ],
)
@pytest.mark.parametrize("vision", [VIT, RESNET])
def test_a_bert_from_hugging_face(pooler, projection, vision, open_clip_model, bert_folder, bring):
    """UniMed-CLIP's kind: CLIP's image tower and a BERT; without a map the widths are equal."""
    width = json.loads((bert_folder / "config.json").read_text())["hidden_size"]
    dim = DIM if projection else width
    words = {
        "hf_model_name": str(bert_folder),
        "hf_model_pretrained": False,
        "hf_pooler_type": pooler,
        "hf_proj_type": projection,
        "context_length": 32,
    }
    torch.manual_seed(2)
    reference = lively(open_clip_model.CustomTextCLIP(dim, vision, words))
    peer = bring(reference, vision, words, bert_folder)
    images = pictures(vision["image_size"])
    with torch.no_grad():
        whole = F.normalize(reference.encode_image(peer.normalise(images)), dim=-1)
        text = F.normalize(reference.encode_text(padded(peer, 32)), dim=-1)
        features, found = peer.encode_images(images), peer.encode_sentences(SENTENCES)
    torch.testing.assert_close(found, text, atol=1e-5, rtol=0)
    torch.testing.assert_close(peer.score(features, found), whole @ text.T, atol=1e-5, rtol=0)


def test_places_of_the_resnet_lie_where_its_gradient_says():
    """With equal positive weights the gradient of a place is symmetric around its centre."""
    sizes = {"image_size": 256, "layers": [1, 1, 1, 1], "width": 8, "head_width": 64}
    net = OpenClipImages(OpenClipSettings(config=sizes), 4)
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
        centre = torch.arange(256, dtype=torch.float64) + 0.5
        y, x = ((mass.sum(dim=axis) * centre).sum() / mass.sum() for axis in (1, 0))
        expected = [32 * row + 15.5, 32 * column + 15.5]
        torch.testing.assert_close(torch.stack([y, x]).tolist(), expected, atol=0.01, rtol=0)


def test_full_size_resnets_have_the_published_parameter_counts():
    """CLIP's RN50 and RN101 image towers: 38,316,896 and 56,259,936 (open_clip's own count)."""
    for layers, dim, count in (((3, 4, 6, 3), 1024, 38_316_896), ((3, 4, 23, 3), 512, 56_259_936)):
        with torch.device("meta"):
            found = OpenClipImages(OpenClipSettings(config={"layers": layers, "width": 64}), dim)
        assert sum(p.numel() for p in found.parameters()) == count


@pytest.mark.parametrize(
    ("vision", "words", "named"),
    [
        ({"layers": [3, 4, 6, 3]}, {}, r"433 missing \(image\.visual\.conv1"),
        ({"layers": 2, "attentional_pool": "parallel"}, {}, "'attentional_pool' is 'parallel'"),
        ({"layers": 2, "pool_type": "none"}, {}, "'pool_type' is 'none'"),
        (VIT, {"pool_type": "last"}, "'pool_type' is 'last'"),
        (VIT, {"use_pad_mask": True}, "'use_pad_mask'"),
        (VIT, {"hf_model_name": "x", "hf_pooler_type": "max_pooler"}, "'max_pooler'"),
        ({"timm_model_name": "resnet50"}, {}, "places are not known"),
        ({"timm_model_name": "vit_base_patch16_224", "timm_pool": "abs_attn"}, {}, "'timm_pool'"),
        (VIT, TEXT, "the tokenizer has 49408 tokens but the model only"),
    ],
)
def test_what_is_not_read_is_named(vision, words, named, tmp_path):
    torch.save({"a": torch.zeros(1)}, tmp_path / "w.pt")
    (tmp_path / "c.json").write_text(
        json.dumps({"embed_dim": 8, "vision_cfg": vision, "text_cfg": words})
    )
    with pytest.raises(UserError, match=named):
        import_model("open_clip", tmp_path / "w.pt", tmp_path / "o", config=tmp_path / "c.json")
    assert not (tmp_path / "o").exists()


def test_configurations_that_cannot_be_used_are_reported(tmp_path, open_clip_model, few_merges):
    torch.save({"a": torch.zeros(1)}, tmp_path / "w.pt")
    with pytest.raises(UserError, match="--config"):
        import_model("open_clip", tmp_path / "w.pt", tmp_path / "o")
    file = tmp_path / "c.json"
    for content, named in (({}, "no vision_cfg"), ([1], "JSON object")):
        file.write_text(json.dumps(content))
        with pytest.raises(UserError, match=named):
            import_model("open_clip", tmp_path / "w.pt", tmp_path / "o", config=file)
    state = open_clip_model.CLIP(DIM, VIT, TEXT).state_dict()
    torch.save(state, tmp_path / "w.pt")
    cfg = {"vision_cfg": VIT, "text_cfg": TEXT}
    file.write_text(json.dumps({"model_cfg": cfg, "preprocess_cfg": {"resize_mode": "tile"}}))
    with pytest.raises(UserError, match="resize_mode 'tile'"):
        import_model("open_clip", tmp_path / "w.pt", tmp_path / "o", text=few_merges, config=file)
    file.write_text(json.dumps({"vision_cfg": VIT, "text_cfg": {"hf_model_name": "x"}}))
    with pytest.raises(UserError, match="--text"):
        import_model("open_clip", tmp_path / "w.pt", tmp_path / "o", config=file)
    assert not (tmp_path / "o").exists()
