"""CheXzero, open_clip's ViT and BiomedCLIP against open_clip's and transformers' own networks."""

import gzip
import json
from itertools import pairwise

import numpy as np
import pytest
import regex
import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from torch import nn

from medclip_debias.cli import run
from medclip_debias.config import PrepareSettings
from medclip_debias.data.prepare import prepare
from medclip_debias.data.store import PreparedSet
from medclip_debias.errors import UserError
from medclip_debias.models.golden import SENTENCES as SENTENCES_STORED
from medclip_debias.models.golden import SelfTestWarning, golden_images
from medclip_debias.models.peers.importing import import_model
from medclip_debias.models.peers.peer import Peer
from medclip_debias.models.peers.tokenizers import ClipTokenizer

from .conftest import CLIP_WORDS, lively, prefixed

SENTENCES = ["No pleural effusion.", "Mild cardiomegaly, unchanged; 12 ribs!", "x" * 300]
VISION = {"layers": 2, "width": 64, "patch_size": 32, "image_size": 224}
TEXT = {"context_length": 77, "vocab_size": CLIP_WORDS, "width": 64, "heads": 1, "layers": 2}


def pictures(side, count=2):
    g = torch.Generator().manual_seed(side)
    return torch.randint(0, 256, (count, side, side), generator=g, dtype=torch.uint8)


@pytest.fixture(scope="module")
def tokenizer(merges_file):
    return ClipTokenizer.from_merges(merges_file)


@pytest.mark.parametrize(
    ("quick", "merges", "vocabulary"),
    [(True, "merges_file", 49408), (False, "few_merges", CLIP_WORDS)],
)
@torch.no_grad()
def test_clip_agrees_with_open_clip(quick, merges, vocabulary, open_clip_model, request, tmp_path):
    torch.manual_seed(0)
    text, merges = TEXT | {"vocab_size": vocabulary}, request.getfixturevalue(merges)
    reference = lively(open_clip_model.CLIP(24, VISION, text, quick_gelu=quick))
    file, config = tmp_path / "weights.pt", None
    torch.save(reference.state_dict(), file)
    kind, size = ("chexzero", 320) if quick else ("open_clip", 224)
    if not quick:
        config = tmp_path / "open_clip_config.json"
        cfg = {"embed_dim": 24, "vision_cfg": VISION, "text_cfg": text}
        config.write_text(json.dumps({"model_cfg": cfg, "preprocess_cfg": {}}))
    peer = import_model(kind, file, tmp_path / "peer", text=merges, config=config)
    assert peer.grid.shape == (7, 7)
    learned = float(reference.logit_scale.exp())
    assert peer.learned_scale == pytest.approx(learned, rel=1e-6)
    assert peer.grid.stride * 7 == size

    images = pictures(size)
    x = peer.normalise(images)
    assert x.shape == (2, 3, 224, 224)
    whole = F.normalize(reference.encode_image(x), dim=-1)
    ids = peer.tokenizer.encode(SENTENCES, 77)
    padded = torch.zeros(len(ids), 77, dtype=torch.long)
    for row, found in zip(padded, ids, strict=True):
        row[: len(found)] = torch.tensor(found)
    words = F.normalize(reference.encode_text(padded), dim=-1)
    features, found = peer.encode_images(images), peer.encode_sentences(SENTENCES)
    assert features.regions.shape == (2, 49, 24)
    torch.testing.assert_close(found, words, atol=1e-5, rtol=0)
    torch.testing.assert_close(peer.score(features, found), whole @ words.T, atol=1e-5, rtol=0)
    # The patch tokens through the last norm and projection, read with open_clip's own parts.
    tokens = reference.visual.forward_intermediates(x, indices=1, normalize_intermediates=True)
    grid = tokens["image_intermediates"][0].flatten(2).transpose(1, 2)
    unit = F.normalize(grid @ reference.visual.proj, dim=-1)
    torch.testing.assert_close(features.regions, unit, atol=1e-5, rtol=0)
    assert torch.equal(peer.encode_images(images).regions, features.regions)


@torch.no_grad()
def test_biomed_clips_towers_agree_with_transformers(bert, bert_folder, tmp_path, monkeypatch):
    from timm.models.vision_transformer import VisionTransformer
    from transformers import ViTConfig, ViTModel

    small = {"depth": 2, "embed_dim": 64, "num_heads": 1, "mlp_ratio": 1.5, "img_size": 64}
    build = VisionTransformer.__init__
    narrow = lambda self, *args, **more: build(self, *args, **more | small)  # noqa: E731
    monkeypatch.setattr(VisionTransformer, "__init__", narrow)
    torch.manual_seed(1)
    config = ViTConfig(
        hidden_size=64,
        num_hidden_layers=2,
        num_attention_heads=1,
        intermediate_size=96,
        image_size=64,
        patch_size=16,
        layer_norm_eps=1e-6,
    )
    vit = lively(ViTModel(config, add_pooling_layer=False))
    own = vit.state_dict()

    def pick(*ends):
        found = [v for k, v in own.items() if any(k.endswith(end) for end in ends)]
        assert len(found) == 1, ends
        return found[0]

    state = {
        "visual.trunk.cls_token": pick("cls_token"),
        "visual.trunk.pos_embed": pick("position_embeddings"),
        "visual.trunk.patch_embed.proj.weight": pick("projection.weight"),
        "visual.trunk.patch_embed.proj.bias": pick("projection.bias"),
    }
    for kind in ("weight", "bias"):
        for n in (0, 1):
            layer, new = f"layers.{n}.", f"visual.trunk.blocks.{n}."
            names = [f"{layer}attention.{p}_proj.{kind}" for p in "qkv"]
            state[f"{new}attn.qkv.{kind}"] = torch.cat([pick(name) for name in names])
            state[f"{new}attn.proj.{kind}"] = pick(f"{layer}attention.o_proj.{kind}")
            state[f"{new}norm1.{kind}"] = pick(f"{layer}layernorm_before.{kind}")
            state[f"{new}norm2.{kind}"] = pick(f"{layer}layernorm_after.{kind}")
            state[f"{new}mlp.fc1.{kind}"] = pick(f"{layer}mlp.fc1.{kind}")
            state[f"{new}mlp.fc2.{kind}"] = pick(f"{layer}mlp.fc2.{kind}")
        state[f"visual.trunk.norm.{kind}"] = own[f"layernorm.{kind}"]
    head = nn.Linear(64, 12, bias=False)
    words = nn.Sequential(nn.Linear(16, 14, bias=False), nn.GELU(), nn.Linear(14, 12, bias=False))
    state |= prefixed("visual.head.proj.", head.state_dict())
    state |= prefixed("text.transformer.", bert.state_dict()) | prefixed(
        "text.proj.", words.state_dict()
    )
    state["logit_scale"] = torch.tensor(4.4)
    torch.save(state, tmp_path / "open_clip_pytorch_model.bin")
    cfg = {
        "vision_cfg": {
            "timm_model_name": "vit_base_patch16_224",
            "image_size": 64,
            "timm_pool": "",
            "timm_proj": "linear",
        },
        "text_cfg": {
            "hf_model_name": "x",
            "hf_proj_type": "mlp",
            "hf_pooler_type": "cls_last_hidden_state_pooler",
            "context_length": 32,
        },
    }
    config_file = tmp_path / "open_clip_config.json"
    mean, std = [0.1, 0.2, 0.3], [0.5, 0.6, 0.7]
    reported = {"model_cfg": cfg, "preprocess_cfg": {"mean": mean, "std": std}}
    config_file.write_text(json.dumps(reported))
    peer = import_model(
        "open_clip",
        tmp_path / "open_clip_pytorch_model.bin",
        tmp_path / "peer",
        text=bert_folder,
        config=config_file,
    )
    images = pictures(64)
    x = images[:, None].float().expand(-1, 3, -1, -1) / 255
    x = (x - torch.tensor(mean)[:, None, None]) / torch.tensor(std)[:, None, None]
    tokens = head(vit(x).last_hidden_state)
    features, found = peer.encode_images(images), peer.encode_sentences(["no pleural effusion"])
    unit = F.normalize(tokens[:, 1:], dim=-1)
    torch.testing.assert_close(features.regions, unit, atol=1e-5, rtol=0)
    ids = torch.tensor(peer.tokenizer.encode(["no pleural effusion"], 32))
    text = F.normalize(words(bert(ids).last_hidden_state[:, 0]), dim=-1)
    torch.testing.assert_close(found, text, atol=1e-5, rtol=0)
    score = F.normalize(tokens[:, 0], dim=-1) @ text.T
    torch.testing.assert_close(peer.score(features, found), score, atol=1e-5, rtol=0)


def merged(word, ranks):
    """Byte-pair encoding by its definition: merge the earliest-learned pair until none is left."""
    parts = [*word[:-1], word[-1] + "</w>"]
    while True:
        pairs = [(ranks.get(pair, 10**9), n) for n, pair in enumerate(pairwise(parts))]
        if not pairs or min(pairs)[0] == 10**9:
            return parts
        best = min(pairs)[1]
        parts[best : best + 2] = [parts[best] + parts[best + 1]]


@pytest.mark.parametrize("damage", ["cut", "flipped", "other words"])
def test_a_damaged_merges_file_is_named(merges_file, tmp_path, damage):
    content = merges_file.read_bytes()
    damaged = {
        "cut": content[: len(content) // 2],
        "flipped": content[:1000] + bytes(255 - b for b in content[1000:1100]) + content[1100:],
        "other words": b"a b\n" * 20,
    }[damage]
    path = tmp_path / "merges.txt.gz"
    path.write_bytes(damaged)
    with pytest.raises(UserError, match=r"merges\.txt\.gz: "):
        ClipTokenizer.from_merges(path)


def test_the_tokenizer_follows_byte_pair_encoding(tokenizer, merges_file):
    lines = gzip.decompress(merges_file.read_bytes()).decode().split("\n")[1:48895]
    ranks = {tuple(line.split()): n for n, line in enumerate(lines)}
    vocabulary = tokenizer._tokenizer.get_vocab()
    assert tokenizer.size == 49408
    assert (tokenizer.start_id, tokenizer.end_id) == (49406, 49407)
    assert (vocabulary["!"], vocabulary["a</w>"]) == (0, 320)
    pattern = r"'s|'t|'re|'ve|'m|'ll|'d|\p{L}+|\p{N}|[^\s\p{L}\p{N}]+"
    texts = [
        "No focal consolidation, pleural effusion or pneumothorax.",
        "There's  a 2.5cm   nodule\nin the RIGHT upper lobe;it's unchanged.",
        "bibasilar subsegmental atelectasis (mild)!!",
    ]
    for text in texts:
        expected = [49406]
        for word in regex.findall(pattern, text.lower()):
            expected += [vocabulary[part] for part in merged(word, ranks)]
        assert tokenizer.encode([text], 77) == [[*expected, 49407]]
    assert len(tokenizer.encode(["a " * 500], 77)[0]) == 77
    # Two ids that OpenAI's documentation and every user of CLIP knows.
    assert tokenizer.encode(["a photo of a cat"], 77)[0] == [
        49406,
        320,
        1125,
        539,
        320,
        2368,
        49407,
    ]


def test_heads_that_do_not_divide_the_width_are_reported(open_clip_model, few_merges, tmp_path):
    state = open_clip_model.CLIP(24, VISION, TEXT).state_dict()
    torch.save(state, tmp_path / "w.pt")
    cfg = {"vision_cfg": VISION, "text_cfg": TEXT | {"heads": 7}}
    (tmp_path / "c.json").write_text(json.dumps(cfg))
    files = {"text": few_merges, "config": tmp_path / "c.json"}
    with pytest.raises(UserError, match="widths and heads"):
        import_model("open_clip", tmp_path / "w.pt", tmp_path / "o", **files)


def test_golden_samples_tell_other_weights(open_clip_model, few_merges, tmp_path, capsys):
    torch.manual_seed(0)
    state = lively(open_clip_model.CLIP(24, VISION, TEXT, quick_gelu=True)).state_dict()
    torch.save(state, tmp_path / "w.pt")
    words = ["import-model", "chexzero", str(tmp_path / "w.pt"), "--text", str(few_merges)]
    folder = tmp_path / "peer"
    assert run([*words, "--out", str(folder), "--self-test"]) == 0
    capsys.readouterr()
    peer = Peer.load(folder)
    assert peer.self_test["status"] == "passed"
    stored = json.loads((folder / "golden.json").read_text())
    with torch.no_grad():
        features = peer.encode_images(golden_images(320))
        scores = peer.score(features, peer.encode_sentences(SENTENCES_STORED))
    torch.testing.assert_close(scores, torch.tensor(stored["similarity"]), atol=1e-6, rtol=0)
    state = load_file(folder / "model.safetensors")
    state["image.visual.proj"] = state["image.visual.proj"] * 1.1
    save_file(state, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.warns(SelfTestWarning, match="are not those that were saved"):
        assert Peer.load(folder).self_test["status"] == "weights"


def test_an_imported_model_is_evaluated_on_a_set_prepared_for_it(
    open_clip_model, few_merges, small_tree, tmp_path, capsys
):
    torch.manual_seed(0)
    state = lively(open_clip_model.CLIP(24, VISION, TEXT, quick_gelu=True)).state_dict()
    torch.save(state, tmp_path / "chexzero.pt")
    peer = str(tmp_path / "peer")
    words = ["import-model", "chexzero", str(tmp_path / "chexzero.pt"), "--text", str(few_merges)]
    assert run([*words, "--out", peer]) == 0
    plain, fitting, out = (str(tmp_path / name) for name in ("plain", "fitting", "out"))
    prepare(small_tree, tmp_path / "plain", PrepareSettings(size=64), workers=1)
    assert run(["evaluate", peer, plain, "--out", out]) == 2
    options = Peer.load(tmp_path / "peer").preprocessing.prepare.command_line()
    assert f"medclip-debias prepare SOURCE OUT {options}." in capsys.readouterr().err
    again = ["prepare", str(small_tree), fitting, "--workers", "1", *options.split()]
    assert run(again) == 0
    few = ["--heatmaps", "0", "--bootstrap", "10"]
    assert run(["evaluate", peer, fitting, "--out", out, *few]) == 0
    results = json.loads((tmp_path / "out" / "results.json").read_text())
    assert results["model"]["architecture"]["kind"] == "chexzero"
    assert results["model"]["provenance"]["imported"].keys() >= {"chexzero.pt"}
    assert results["model"]["grid"] == [7, 7]
    assert results["counts"]["phrases"] > 0
    assert {"grounding", "zero_shot"} & results["details"].keys()

    # An index of it holds one vector an image, and ranks by the authors' score.
    index, few = str(tmp_path / "index"), ["--set", "landmarks=40", "--set", "image_queries=3"]
    assert run(["index", peer, fitting, "--out", index, *few]) == 0
    capsys.readouterr()
    assert run(["search", index, "--text", "No pleural effusion.", "-k", "5", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    model, data = Peer.load(tmp_path / "peer"), PreparedSet.open(tmp_path / "fitting")
    meta = json.loads((tmp_path / "index" / "index.json").read_text())
    assert meta["regions"] == [len(data), 1, 24]
    with torch.no_grad():
        images = model.encode_images(torch.from_numpy(np.array(data.pixels)))
        scores = model.score(images, model.encode_sentences(["No pleural effusion."]))[:, 0]
    for hit in found["hits"]:
        assert hit["score"] == pytest.approx(scores[hit["row"]].item(), abs=1e-3)
    best = scores.sort(descending=True).values[: len(found["hits"])]
    if found["candidates"] == len(data):
        given = torch.tensor([hit["score"] for hit in found["hits"]])
        torch.testing.assert_close(given, best, atol=1e-3, rtol=0)
    image = next(p for p in sorted(small_tree.rglob("*")) if p.suffix in (".dcm", ".jpg"))
    assert run(["search", index, "--image", str(image), "-k", "1", "--json"]) == 0
    (best,) = json.loads(capsys.readouterr().out)["hits"]
    assert best["score"] == pytest.approx(1, abs=1e-3)
