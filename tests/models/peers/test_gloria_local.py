"""GLoRIA's local score against a loop over its published definition."""

import json
import math

import pytest
import torch
from torch import nn

from medclip_debias.cli import run
from medclip_debias.data.prepare import prepare
from medclip_debias.errors import UserError
from medclip_debias.models.load import load_model
from medclip_debias.models.peers.importing import import_model
from medclip_debias.models.peers.peer import Peer, score_by_words

from .conftest import LAST, THIRD, prefixed

SENTENCES = ["No LEFT, effusions.", "edema", "mild edema of the left lung"]
WORDS = [  # the words of each sentence, and the places of their pieces among its tokens
    [[1], [2], [3, 4]],
    [[1]],
]


@pytest.fixture
def gloria_file(trunk, bert, tmp_path):
    width = bert.config.hidden_size
    torch.manual_seed(4)
    local, whole = nn.Conv2d(THIRD, width, 1, bias=False), nn.Linear(LAST, width)
    with torch.no_grad():
        local.weight.mul_(4)  # so that attention is far from even
    state = prefixed("gloria.text_encoder.model.", bert.state_dict())
    image = {k: v for k, v in trunk.state_dict().items() if not k.startswith("fc.")}
    state |= prefixed("gloria.img_encoder.model.", image)
    state |= prefixed("gloria.img_encoder.local_embedder.", local.state_dict())
    state |= prefixed("gloria.img_encoder.global_embedder.", whole.state_dict())
    torch.save({"state_dict": state}, tmp_path / "gloria.ckpt")
    return tmp_path / "gloria.ckpt"


def by_definition(words, regions):
    """Attention ``[W, N]`` and the best word's cosine of one image, one number at a time."""
    words, regions = words.double().tolist(), regions.double().tolist()

    def dot(a, b):
        return math.fsum(x * y for x, y in zip(a, b, strict=True))

    def softmax(values):
        top = max(values)
        parts = [math.exp(value - top) for value in values]
        return [part / math.fsum(parts) for part in parts]

    shares = [softmax([dot(region, word) for word in words]) for region in regions]
    maps, cosines = [], []
    for number, word in enumerate(words):
        weights = softmax([4 * share[number] for share in shares])
        mean = [
            math.fsum(w * region[d] for w, region in zip(weights, regions, strict=True))
            for d in range(len(word))
        ]
        cosines.append(dot(word, mean) / math.sqrt(dot(word, word) * dot(mean, mean)))
        maps.append(weights)
    return torch.tensor(maps), max(cosines)


@torch.no_grad()
def test_local_scores_and_maps_are_those_of_the_definition(
    gloria_file, bert, bert_folder, tmp_path
):
    peer = import_model("gloria", gloria_file, tmp_path / "peer", text=bert_folder)
    local, both = (Peer.load(tmp_path / "peer") for _ in range(2))
    score_by_words(local)
    score_by_words(both, "both")
    g = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (2, 256, 256), generator=g, dtype=torch.uint8)
    features, sentences = local.encode_images(images), local.encode_sentences(SENTENCES)
    assert local.encode_sentences(SENTENCES[0]).shape[0] == 1
    regions = features.regions
    # The same regions as the global view's, before they are brought to unit length.
    unit = nn.functional.normalize(regions, dim=-1)
    torch.testing.assert_close(unit, peer.encode_images(images).regions, atol=1e-6, rtol=0)

    own = []
    for text, words in zip(SENTENCES, WORDS, strict=False):
        cleaned = text.lower().replace(",", "").replace(".", "")
        ids = torch.tensor(peer.tokenizer.encode([cleaned], 97))
        states = torch.stack(bert(ids, output_hidden_states=True).hidden_states[-4:])[:, 0].sum(0)
        own.append(torch.stack([states[pieces].sum(dim=0) for pieces in words]))
    for number, words in enumerate(own):
        found = sentences[number][1 : 1 + len(words)]
        torch.testing.assert_close(found, words, atol=2e-5, rtol=0)
        assert not sentences[number][1 + len(words) :].any()
    torch.testing.assert_close(sentences[:, 0], peer.encode_sentences(SENTENCES))
    scores = local.score(features, sentences)
    # The authors' mean of 5 times the local score and the global cosine, as a share of its most, 3.
    whole = peer.score(peer.encode_images(images), peer.encode_sentences(SENTENCES))
    torch.testing.assert_close(3 * both.score(features, sentences), (5 * scores + whole) / 2)
    maps = local.region_scores(features, sentences)
    assert scores.shape == (2, 3)
    assert maps.shape == (2, 3, 361)
    torch.testing.assert_close(maps.sum(dim=-1), torch.ones(2, 3), atol=1e-5, rtol=0)
    for image in range(2):
        for number, words in enumerate(own):
            attention, best = by_definition(words, regions[image])
            found = local.fusion.attention(regions[image : image + 1], words)[0]
            torch.testing.assert_close(found, attention.float(), atol=1e-6, rtol=1e-3)
            assert scores[image, number].item() == pytest.approx(best, abs=1e-4)
            mean = attention.mean(dim=0).float()
            torch.testing.assert_close(maps[image, number], mean, atol=1e-6, rtol=1e-3)
    assert attention.max() / attention.min() > 0.99  # one word: it takes every region alike
    spread, _ = by_definition(own[0], regions[0])
    assert spread.max() / spread.min() > 1.5  # several words do compete
    with pytest.raises(UserError, match="Sentence 2 holds no word"):
        local.encode_sentences(["edema", "..."])


def test_ground_draws_the_attention_of_gloria_alone(
    gloria_file, bert_folder, radiographs, tmp_path, capsys
):
    words = ["import-model", "gloria", str(gloria_file), "--text", str(bert_folder)]
    assert run([*words, "--out", str(tmp_path / "peer")]) == 0
    ground = ["ground", str(tmp_path / "peer"), str(radiographs[0]), "--text", SENTENCES[0]]
    found = {}
    for name, more in (("whole", []), ("local", ["--local"])):
        out = tmp_path / name
        less = ["--max-side", "256", "--no-maps", "--no-legend", *more]
        assert run([*ground, "--out", str(out), *less]) == 0
        found[name] = json.loads((out / "groundings.json").read_text())
    row = found["local"]["images"][0]["sentences"][0]
    assert 0 < row["lowest"] < 1 / 361 < row["highest"] < 1
    assert row["score"] != found["whole"]["images"][0]["sentences"][0]["score"]
    assert (found["whole"]["scores"], found["local"]["scores"]) == ("cosine", "attention")
    capsys.readouterr()


def test_a_gloria_that_scores_by_words_is_evaluated_and_keeps_no_vector(
    gloria_file, bert_folder, small_tree, tmp_path, capsys
):
    peer, fitting = str(tmp_path / "peer"), str(tmp_path / "set")
    words = ["import-model", "gloria", str(gloria_file), "--text", str(bert_folder)]
    assert run([*words, "--out", peer, "--score", "both", "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert "authors' page" in said["licence"]
    model = load_model(tmp_path / "peer")
    assert model.outputs.text_form == "words"
    assert model.fusion.score == "both"
    prepare(small_tree, tmp_path / "set", model.preprocessing.prepare, workers=1)
    few = ["--bootstrap", "0", "--heatmaps", "0"]
    assert run(["evaluate", peer, fitting, "--out", str(tmp_path / "out"), *few]) == 0
    found = json.loads((tmp_path / "out" / "results.json").read_text())
    assert found["model"]["architecture"]["score"] == "both"
    assert "mean_auc" in {row["metric"] for row in found["metrics"]}
    capsys.readouterr()
    assert run(["index", peer, fitting, "--out", str(tmp_path / "index")]) == 2
    assert "--score whole" in capsys.readouterr().err
    assert run([*words, "--out", str(tmp_path / "new"), "--score", "botth"]) == 2
    assert "did you mean" in capsys.readouterr().err.lower()


def test_other_models_have_no_local_score(biovil_file, cxr_bert_folder, tmp_path):
    peer = import_model("biovil", biovil_file, tmp_path / "peer", text=cxr_bert_folder)
    with pytest.raises(UserError, match="only GLoRIA has a local score"):
        score_by_words(peer)
