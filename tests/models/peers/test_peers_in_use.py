"""Published preprocessing, full-size shapes, bad files, and peers through the command line."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from PIL import Image
from torchvision import transforms as T
from torchvision.transforms import InterpolationMode as Mode

from medclip_debias.bench.vectors import StoredVectors
from medclip_debias.cli import run
from medclip_debias.data.images import prepare_image, read_radiograph
from medclip_debias.data.store import PreparedSet
from medclip_debias.errors import UserError
from medclip_debias.models.interface import need_vectors
from medclip_debias.models.load import load_model
from medclip_debias.models.peers.families import published_preprocessing, read_processor
from medclip_debias.models.peers.images import image_tower
from medclip_debias.models.peers.importing import import_model
from medclip_debias.models.peers.peer import Peer
from medclip_debias.models.peers.sentence_towers import text_tower
from medclip_debias.models.peers.settings import PeerSettings
from medclip_debias.models.sentences import stacked
from medclip_debias.phantom import PhantomSettings, generate
from tests.helpers.small_models import make_peer

from .references import gloria_state
from .test_fused_peers import PROCESSOR, Carzero

# --------------------------------------------------------------------------- preprocessing


def stretched(path):
    """Grey levels over their whole range, as BioViL's reader makes them."""
    grey = np.asarray(Image.open(path).convert("L"), dtype=np.float64)
    levels = (grey - grey.min()) / (grey.max() - grey.min()) * 255
    return Image.fromarray(np.rint(levels).astype("u1"))


def squared(image, side=None):
    """On a black square; with ``side`` made to fit it first, as CheXzero's script does."""
    if side is not None:
        ratio = side / max(image.size)
        image = image.resize([int(x * ratio) for x in image.size], Image.Resampling.LANCZOS)
    square = Image.new("L", (max(image.size),) * 2)
    square.paste(image, [(max(image.size) - x) // 2 for x in image.size])
    return square


def fitted(image):
    """GLoRIA's code: the long side to 256 by areas, black bands."""
    import cv2

    size = [int(x * 256 / max(image.size)) for x in image.size]
    small = cv2.resize(np.asarray(image), size, interpolation=cv2.INTER_AREA)
    whole = np.zeros((256, 256), np.uint8)
    top, left = ((256 - x) // 2 for x in small.shape)
    whole[top : top + small.shape[0], left : left + small.shape[1]] = small
    return T.CenterCrop(224)(Image.fromarray(whole))


def cropped(image, size, side, mode=Mode.BILINEAR):
    return T.CenterCrop(side)(T.Resize(size, interpolation=mode)(image))


def at_224(image, mode):
    return T.Resize([224, 224], interpolation=mode)(image)


IMAGENET = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]
CLIP = [0.48145466, 0.4578275, 0.40821073], [0.26862954, 0.26130258, 0.27577711]
CHAINS = {
    "biovil": (lambda path, _: cropped(stretched(path), 512, 480), [0.0], [1.0]),
    "biovil_t": (lambda path, _: cropped(stretched(path), 512, 448), [0.0], [1.0]),
    "open_clip": (lambda _, image: cropped(image, 224, 224, Mode.BICUBIC), *CLIP),
    "medclip": (
        lambda _, image: at_224(squared(image), Mode.BICUBIC),
        [0.5862785803043838],
        [0.27950088968644304],
    ),
    "gloria": (lambda _, image: fitted(image), [0.5], [0.5]),
    "chexzero": (lambda _, image: squared(image, 320), [101.48761 / 255] * 3, [83.43944 / 255] * 3),
    "carzero": (lambda _, image: fitted(image), [0.4978] * 3, [0.2449] * 3),
    "cxr_clip": (lambda _, image: cropped(image, 224, 224), [0.5], [0.5]),
    "mgca": (lambda _, image: fitted(image), [0.5] * 3, [0.5] * 3),
    "kad": (lambda _, image: at_224(image, Mode.BICUBIC), *IMAGENET),
    "medklip": (lambda _, image: at_224(image, Mode.BILINEAR), *IMAGENET),
}
EXACT = {"medclip": 0.01, "kad": 0.0, "medklip": 0.0}


@pytest.mark.parametrize("kind", CHAINS)
def test_prepared_images_are_the_published_inputs(kind, radiographs):
    chain, mean, std = CHAINS[kind]
    how = published_preprocessing(kind)
    for path in radiographs:
        ours = prepare_image(read_radiograph(path, how.prepare.window), how.prepare).astype(float)
        cut = (how.prepare.size - how.input_size) // 2
        ours = ours[cut : cut + how.input_size, cut : cut + how.input_size]
        theirs = np.asarray(chain(path, Image.open(path).convert("L")), dtype=float)
        difference = np.abs(ours - theirs).mean()
        # The published chains round the long side, and the place of the cut or of the bands, to
        # whole pixels; these do not. Moving the published input by one pixel changes more.
        moved = [np.abs(np.diff(theirs, axis=axis)).mean() for axis in (0, 1)]
        assert difference <= max(moved)
        assert difference <= EXACT.get(kind, 3.0)
    g = torch.Generator().manual_seed(0)
    pixels = torch.randint(0, 256, (how.input_size,) * 2, generator=g, dtype=torch.uint8)
    grey = T.ToTensor()(Image.fromarray(pixels.numpy()))
    expected = T.Normalize(mean, std)(grey.expand(len(mean), -1, -1))[None]
    if kind == "gloria":
        expected = torch.nn.Upsample(size=(299, 299), mode="bilinear", align_corners=True)(expected)
    if kind == "chexzero":
        expected = T.Resize(224, interpolation=Mode.BICUBIC, antialias=False)(expected)

    class Bare:
        preprocessing, device, cropped = how, torch.device("cpu"), Peer.cropped

    found = Peer.normalise(Bare(), pixels[None])
    torch.testing.assert_close(found, expected, atol=2e-5, rtol=0)


def test_a_processor_that_pulls_to_a_square_is_followed(tmp_path):
    (tmp_path / "p.json").write_text(json.dumps(PROCESSOR | {"size": {"height": 42, "width": 42}}))
    how = read_processor("radzero", tmp_path / "p.json", multiple=14)
    assert (how.prepare.fit, how.prepare.size, how.input_size) == ("squash", 42, 42)
    # RadZero's collate_fn stretches every image; CoNNS takes the levels as they are.
    assert how.prepare.levels == "stretched"
    conns = read_processor("conns", tmp_path / "p.json", multiple=14)
    assert conns.prepare.levels == "as_stored"


# ------------------------------------------------------------------------------- full size

# ResNet-50 of torchvision: 25,557,032 with its classifier of 2,049,000; one channel in place of
# three leaves out two thirds of 9,408.
RESNET_50 = 25_557_032 - 2_049_000 - 9408 * 2 // 3
PROJECTOR = 2048 * 128 + 2 * 128 + 128 * 128 + 128
NONE, CLIP_TEXT = {"kind": "none"}, {"kind": "open_clip", "config": {}}
TIMM = {"timm_model_name": "vit_base_patch16_224", "timm_pool": "", "timm_proj": "linear"}
FULL_SIZE = {
    # With the learned scale; open_clip's own count; without a classifier.
    "CLIP's ViT-B/32": ({"config": {"patch_size": 32}}, CLIP_TEXT, 512, 151_277_313 - 1),
    "CLIP's RN50": ({"config": {"layers": [3, 4, 6, 3], "width": 64}}, NONE, 1024, 38_316_896),
    "timm's ViT": ({"config": TIMM, "timm_stride": 16}, NONE, 512, 85_798_656 + 768 * 512),
    "BioViL": ({"kind": "resnet50"}, NONE, 128, RESNET_50 + PROJECTOR),
}


@pytest.mark.parametrize("name", FULL_SIZE)
def test_full_size_towers_have_the_published_parameter_counts(name):
    image, text, dim, expected = FULL_SIZE[name]
    content = {"kind": "biovil" if name == "BioViL" else "open_clip", "dim": dim, "text": text}
    content |= {"max_tokens": 77, "image": {"kind": "open_clip"} | image}
    with torch.device("meta"):
        state = {"image.projector.0.weight": torch.empty(128, 1)}
        settings = PeerSettings.model_validate(content)
        towers = image_tower(settings, state), text_tower(settings, state)
    assert sum(p.numel() for tower in towers for p in tower.parameters()) == expected


# -------------------------------------------------------------------------------- bad files


def test_missing_unknown_and_misshapen_tensors_are_named(biovil_file, cxr_bert_folder, tmp_path):
    state = torch.load(biovil_file, weights_only=True)
    del state["encoder.encoder.layer2.0.conv2.weight"]
    state["encoder.encoder.bn1.bias"] = torch.zeros(3)
    state["classifier.fc_0.weight"] = torch.zeros(1)
    torch.save(state, biovil_file)
    with pytest.raises(UserError) as error:
        import_model("biovil", biovil_file, tmp_path / "out", text=cxr_bert_folder)
    sentence = str(error.value)
    assert "1 missing (image.encoder.layer2.0.conv2.weight)" in sentence
    assert "1 unknown (classifier.fc_0.weight)" in sentence
    assert "1 misshapen (image.encoder.bn1.bias [3] instead of [64])" in sentence
    assert not (tmp_path / "out").exists()


def test_words_that_do_not_go_together_are_refused(biovil_file, bert_folder, tmp_path):
    """What else is refused in one sentence: tests/helpers/bad_inputs/peer_cases.py."""
    for kind, words, reported in (
        ("biovi", {}, "did you mean 'biovil'?"),
        ("biovil", {}, "--text"),
        ("biovil", {"text": bert_folder}, "no projection_size"),
        ("siglip", {"text": bert_folder}, "leave --text and --config out"),
        ("biovil", {"text": bert_folder, "score": "both"}, "only gloria"),
    ):
        with pytest.raises(UserError, match=reported):
            import_model(kind, biovil_file, tmp_path / "out", **words)


# ------------------------------------------------------------------------------------- in use

SIDE = 56
DINO = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "mlp_ratio": 1}


@pytest.fixture(scope="module")
def rad_dino(tmp_path_factory):
    """An imported RAD-DINO, and a set that was prepared by the words that the import said."""
    from transformers import Dinov2Config, Dinov2Model

    place = tmp_path_factory.mktemp("rad_dino")
    torch.manual_seed(3)
    model = Dinov2Model(Dinov2Config(**DINO, image_size=SIDE, patch_size=28))
    model.save_pretrained(place / "folder")
    crop = {"size": {"shortest_edge": SIDE}, "crop_size": {"height": SIDE, "width": SIDE}}
    (place / "folder" / "preprocessor_config.json").write_text(json.dumps(crop))
    peer = import_model("rad_dino", place / "folder", place / "peer")
    settings = PhantomSettings(studies=40, test_studies=12, seed=3, min_side=64, max_side=80)
    generate(place / "tree", settings, None, 1)
    options = peer.preprocessing.prepare.command_line().split()
    assert (
        run(["prepare", str(place / "tree"), str(place / "set"), "--workers", "1", *options]) == 0
    )
    return place


@pytest.fixture
def image(rad_dino):
    return str(next((rad_dino / "tree").rglob("*.dcm")))


def test_an_imported_model_is_grounded_within_its_crop(
    biovil_file, cxr_bert_folder, image, tmp_path, capsys
):
    out = str(tmp_path / "peer")
    words = ["import-model", "biovil", str(biovil_file), "--text", str(cxr_bert_folder)]
    assert run([*words, "--out", out]) == 0
    assert "--size 512 --clip 0 100 --window none --fit crop" in capsys.readouterr().out
    ground = ["ground", out, image, "--text", "No pleural effusion", "--no-legend"]
    assert run([*ground, "--out", str(tmp_path / "maps")]) == 0
    heatmap = np.load(next((tmp_path / "maps").glob("*.npy")))
    assert heatmap.shape == read_radiograph(image).shape
    seen = ~np.isnan(heatmap)
    inside = 480 / 512 * min(heatmap.shape)
    assert np.abs(np.array([seen.any(1).sum(), seen.any(0).sum()]) - inside).max() <= 1


def test_a_peer_is_evaluated_on_a_set_prepared_for_it_and_indexed(
    rad_dino, prepared_phantom, bert_folder, tmp_path, capsys
):
    vision = {"image_size": SIDE, "patch_size": 28, "width": 32, "layers": 1, "head_width": 16}
    content = {"dim": 6, "image": {"kind": "open_clip", "config": vision}}
    text, head = {"pooling": "mlp", "token": "mean"}, {"text.head.0.weight": (10, 1)}
    how = published_preprocessing("open_clip", SIDE)
    peer, fitting, out = (str(p) for p in (tmp_path / "peer", rad_dino / "set", tmp_path / "out"))
    make_peer(bert_folder, how, head, text, **content).save(tmp_path / "peer")
    assert run(["evaluate", peer, str(prepared_phantom), "--out", out]) == 2
    options = how.prepare.command_line()
    assert f"medclip-debias prepare SOURCE OUT {options}." in capsys.readouterr().err
    words = ["--heatmaps", "0", "--bootstrap", "0"]
    assert run(["evaluate", peer, fitting, "--out", out, *words]) == 0
    results = json.loads((tmp_path / "out" / "results.json").read_text())
    assert results["model"]["architecture"]["kind"] == "open_clip"
    assert results["counts"]["phrases"] > 0

    # An index of it holds one vector an image, and ranks by the authors' score.
    index, few = str(tmp_path / "index"), ["--set", "landmarks=20", "--set", "image_queries=3"]
    assert run(["index", peer, fitting, "--out", index, *few]) == 0
    capsys.readouterr()
    assert run(["search", index, "--text", "No pleural effusion.", "-k", "5", "--json"]) == 0
    hits = json.loads(capsys.readouterr().out)["hits"]
    data, model = PreparedSet.open(rad_dino / "set"), load_model(tmp_path / "peer")
    meta = json.loads((tmp_path / "index" / "index.json").read_text())
    assert meta["regions"] == [len(data), 1, 6]
    with torch.no_grad():
        images = model.encode_images(torch.from_numpy(np.array(data.pixels)))
        scores = model.score(images, model.encode_sentences(["No pleural effusion."]))[:, 0]
    expected = scores[[hit["row"] for hit in hits]].tolist()
    assert [hit["score"] for hit in hits] == pytest.approx(expected, abs=1e-3)
    assert sorted(expected, reverse=True) == pytest.approx(expected, abs=1e-3)


def test_rad_dino_is_probed_and_refused_where_text_is_asked(rad_dino, image, tmp_path, capsys):
    peer, fitting = str(rad_dino / "peer"), str(rad_dino / "set")
    few = ["--bootstrap", "0", "--set", "repeats=1"]
    assert run(["evaluate", "probe", peer, fitting, "--out", str(tmp_path / "probe"), *few]) == 0
    probe = json.loads((tmp_path / "probe" / "probe.json").read_text())
    assert probe["alignment"] is None
    assert probe["uniformity"]["images"] < 0
    capsys.readouterr()
    for words in (
        ["evaluate", peer, fitting],
        ["index", peer, fitting],
        ["ground", peer, image, "--text", "No effusion."],
    ):
        assert run([*words, "--out", str(tmp_path / "out")]) == 2
        assert "reads images alone" in capsys.readouterr().err
        assert not (tmp_path / "out").exists()


def test_a_gloria_by_words_draws_attention_and_keeps_no_vector(
    trunk, bert, bert_folder, image, rad_dino, tmp_path, capsys
):
    torch.save({"state_dict": gloria_state(trunk, bert)[2]}, tmp_path / "gloria.ckpt")
    peer = str(tmp_path / "peer")
    words = ["import-model", "gloria", str(tmp_path / "gloria.ckpt"), "--text", str(bert_folder)]
    assert run([*words, "--out", peer, "--score", "both", "--json"]) == 0
    assert "authors' page" in json.loads(capsys.readouterr().out)["licence"]
    ground = ["ground", peer, image, "--text", "No LEFT, effusions.", "--no-maps", "--no-legend"]
    assert run([*ground, "--local", "--out", str(tmp_path / "maps")]) == 0
    content = json.loads((tmp_path / "maps" / "groundings.json").read_text())
    row = content["images"][0]["sentences"][0]
    assert content["scores"] == "attention"
    assert 0 < row["lowest"] < 1 / 361 < row["highest"] < 1
    capsys.readouterr()
    assert run(["index", peer, str(rad_dino / "set"), "--out", str(tmp_path / "index")]) == 2
    assert "--score whole" in capsys.readouterr().err


def test_sentences_of_several_vectors(bert, tmp_path, bring):
    """Presets average prompts, which means nothing of words."""
    model = bring("carzero", Carzero(bert).state())
    need_vectors(model, "bench", several=True)
    with pytest.raises(UserError, match="'a preset' needs one vector per sentence"):
        need_vectors(model, "a preset")
    # As the benchmark keeps them: short ones get rows of zeros, which no score reads.
    g = torch.Generator().manual_seed(0)
    known = {name: torch.randn(1, k, 4, generator=g) for name, k in (("a", 2), ("b", 5), ("c", 3))}
    stored = StoredVectors(tmp_path / "sentences")
    stored.add(["a"], known["a"].numpy())
    stored.add(["b", "c"], stacked([known["b"], known["c"]]).numpy())
    again = StoredVectors(tmp_path / "sentences").read(["c", "a", "b"])
    assert torch.equal(again, stacked([known[name] for name in "cab"]))
