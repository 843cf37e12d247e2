"""KAD, MedKLIP and AFLoc against modules of torch, torchvision and transformers.

Names and definitions from the public repositories xiaoman-zhang/KAD, MediaBrain-SJTU/MedKLIP and
YH0517/AFLoc. The book of questions is asked at once by torch's own decoder layers.
"""

from __future__ import annotations

import json

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import medclip_debias as md
from medclip_debias.errors import UserError
from medclip_debias.models.load import load_model

from .conftest import LAST, THIRD, lively, prefixed
from .test_recent_peers import close, imported, normalised
from .test_resnet_peers import features, pictures

BOOK = {"effusion": "pleural effusion", "left": "left effusion", "none": "no effusions"}
ASKED = ["There is left", "No effusion.", "effusion left pleural", "no pleural", "none"]
"""Of the book, denied, of neither, both, and of the book."""
IMAGENET = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]
WIDTH = 16


class Network:
    """Regions, and a decoder whose queries attend to each other, from torch and torchvision."""

    def __init__(self, trunk, stage):
        self.trunk, self.stage = trunk, stage
        wide = THIRD if stage == 3 else LAST
        self.first, self.second = (
            lively(nn.Linear(wide, wide), 1),
            lively(nn.Linear(wide, WIDTH), 2),
        )
        layer = {"norm_first": True, "batch_first": True}
        self.layers = nn.ModuleList(
            lively(nn.TransformerDecoderLayer(WIDTH, 4, 24, **layer), 3 + n) for n in range(2)
        )
        self.norm = lively(nn.LayerNorm(WIDTH), 9)
        self.answer = lively(nn.Linear(WIDTH, 2), 10)
        with torch.no_grad():
            self.answer.weight.mul_(3)

    def part_names(self):
        parts = list(self.trunk.named_children())[: 4 + self.stage]
        return [(number, name) for number, (name, part) in enumerate(parts) if part.state_dict()]

    def image_state(self, prefix):
        state = prefixed("res_l1.", self.first.state_dict())
        state |= prefixed("res_l2.", self.second.state_dict())
        for number, name in self.part_names():
            own = getattr(self.trunk, name).state_dict()
            state |= prefixed(f"res_features.{number}.", own)
        return prefixed(prefix, state)

    def regions(self, x):
        third_and_last = features(self.trunk, x)
        x = third_and_last[self.stage - 3].flatten(2).transpose(1, 2)
        return self.second(torch.relu(self.first(x)))

    def decode(self, regions, queries, mask=None):
        """Probabilities ``[B, Q]`` that each is there, and the layers' attention ``[B, Q, N]``."""
        x = queries.expand(len(regions), -1, -1)
        maps = []
        for layer in self.layers:
            own = layer.norm1(x)
            inner = x + layer.self_attn(own, own, own, attn_mask=mask)[0]
            maps.append(layer.multihead_attn(layer.norm2(inner), regions, regions)[1])
            x = layer(x, regions, tgt_mask=mask)
        return self.answer(self.norm(x)).softmax(dim=-1)[..., 1], maps


def check_questions(peer, network, regions, query, prepared, last):
    """The book as published; others read the book and are read by none; denials turn round."""
    images, inputs = prepared
    found = peer.encode_images(images)
    close(found.regions, regions)
    assert found.whole is None
    score = peer.score(found, peer.encode_sentences(ASKED))
    maps = peer.region_scores(found, peer.encode_sentences(ASKED))
    book = torch.stack([query(text) for text in BOOK.values()])
    there, spread = network.decode(inputs, book)
    spread = spread[-1] if last else sum(spread) / len(spread)
    close(score[:, 0], there[:, 1])
    close(score[:, 1], 1 - there[:, 0])
    close(score[:, 4], there[:, 2])
    close(maps[:, [0, 1, 4]], spread[:, [1, 0, 2]])
    mask = torch.tensor([[False] * 3 + [True]] * 3 + [[False] * 4])
    for column, text in ((2, "effusion left pleural"), (3, "pleural")):
        queries = torch.cat([book, query(text)[None]])
        one, spread = network.decode(inputs, queries, mask)
        close(one[:, :3], there)
        spread = spread[-1] if last else sum(spread) / len(spread)
        close(score[:, column], 1 - one[:, 3] if column == 3 else one[:, 3])
        close(maps[:, column], spread[:, 3])
    assert score.std(dim=0).min() > 1e-5
    assert (score[:, 0] - score[:, 2]).abs().max() > 1e-4
    # A score is a question's own, whatever is asked beside it, and survives half precision.
    for number, sentence in enumerate(ASKED):
        close(peer.score(found, peer.encode_sentences(sentence))[:, 0], score[:, number], 1e-6)
    half = peer.encode_sentences(ASKED).half().float()
    close(peer.score(found, half), score, 2e-3)
    assert peer.outputs.map_kind == "attention"
    close(maps.sum(dim=-1), torch.ones(maps.shape[:2]))


def kad_state(network, bert, head):
    own = prefixed("bert_model.", bert.state_dict()) | prefixed("mlp_embed.", head.state_dict())
    text = own | {"logit_scale": torch.tensor(2.6)}
    image = network.image_state("") | prefixed("resnet.", network.trunk.state_dict())
    model = prefixed("decoder_norm.", network.norm.state_dict())
    model |= prefixed("decoder.norm.", network.norm.state_dict())
    model |= prefixed("decoder.layers.", network.layers.state_dict())
    model |= prefixed("mlp_head.0.", network.answer.state_dict())
    model |= {"logit_scale": torch.tensor(2.6)}
    return {"model": model, "image_encoder": image, "text_encoder": text, "epoch": 3}


@pytest.fixture
def book_file(tmp_path):
    (tmp_path / "book.json").write_text(json.dumps(BOOK))
    return tmp_path / "book.json"


@pytest.fixture(autouse=True)
def differing(bert):
    """Sentences of a BERT with weights at random are much alike; here words and order matter."""
    with torch.no_grad():
        bert.embeddings.word_embeddings.weight.mul_(20)
        for layer in bert.encoder.layer:
            layer.attention.self.query.weight.mul_(20)
            layer.attention.self.value.weight.mul_(20)
        bert.pooler.dense.weight.mul_(20)


@pytest.fixture
def kad(trunk, bert):
    head = nn.Sequential(nn.Linear(WIDTH, 12), nn.GELU(), nn.Linear(12, WIDTH))
    return Network(trunk, 3), lively(head, 4)


@pytest.mark.parametrize("stage", [3, 4])
@torch.no_grad()
def test_kad_asks_its_book_at_once(stage, kad, trunk, bert, bert_folder, book_file, tmp_path):
    network, head = Network(trunk, stage), kad[1]
    state = kad_state(network, bert, head)
    peer = imported("kad", state, tmp_path, bert_folder, book_file)
    side = 224 if stage == 3 else 512
    images = pictures(side)
    x = normalised(images, *IMAGENET)

    def query(text):
        ids = torch.tensor(peer.tokenizer.encode([text], 256))
        return network.norm(head(bert(ids).pooler_output)[0])

    assert peer.preprocessing.prepare.size == side
    assert peer.grid.shape == ((14, 14) if stage == 3 else (16, 16))
    regions = network.regions(x)
    inputs = network.norm(regions)
    check_questions(peer, network, regions, query, (images, inputs), last=True)
    assert peer.provenance["licence"].startswith("MIT")
    twice = sum(v.is_floating_point() or True for v in trunk.state_dict().values())
    assert sum(peer.provenance["unused_tensors"].values()) == twice + 2 + 2


@torch.no_grad()
def test_kad_asks_chestx_ray14_where_no_book_is_given(kad, bert, bert_folder, tmp_path):
    state = kad_state(kad[0], bert, kad[1])
    peer = imported("kad", state, tmp_path, bert_folder)
    assert len(peer.fusion.texts) == 14
    assert peer.fusion.question("There is no evidence of pleural thickening.") == (
        "pleural thicken",
        True,
    )
    assert peer.prompts["chex5"]["classes"]["Edema"]["negative"] == ["no edema"]
    assert load_model(tmp_path / "peer").content_hash == peer.content_hash
    # The front door draws maps of it as of any model.
    image = pictures(224)[0].numpy()
    shown = md.load(tmp_path / "peer", device="cpu").heatmaps(image, ["There is edema."])
    assert shown.values.shape == (1, 224, 224)
    assert shown.kind == "attention"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"model": {"decoder.norm.bias": torch.ones(WIDTH)}},
            "decoder's norm a second time",
        ),
        ({"image_encoder": {"res_l3.weight": torch.ones(2)}}, r"unknown \(image.res_l3"),
        ({"model": {"decoder.layers.1.norm3.bias": torch.ones(3)}}, "misshapen"),
        ({"text_encoder": {"mlp_embed.2.bias": None}}, r"missing \(text.head.2.bias"),
        ({"image_encoder": "dense"}, "those on DenseNet"),
    ],
)
def test_kad_of_other_tensors_is_refused(change, message, kad, bert, bert_folder, tmp_path):
    with torch.no_grad():
        state = kad_state(kad[0], bert, kad[1])
    for part, values in change.items():
        if values == "dense":
            state[part] = {"dense_l1.weight": torch.ones(2, 2)}
            continue
        state[part] = {k: v for k, v in (state[part] | values).items() if v is not None}
    with pytest.raises(UserError, match=message):
        imported("kad", state, tmp_path, bert_folder)
    assert not (tmp_path / "peer").exists()


@torch.no_grad()
def test_medklip_asks_by_descriptions_without_sep(trunk, bert, bert_folder, book_file, tmp_path):
    network, embed = Network(trunk, 3), lively(nn.Linear(WIDTH, WIDTH), 4)
    torch.save(bert.state_dict(), bert_folder / "pytorch_model.bin")
    state = network.image_state("") | prefixed("decoder.layers.", network.layers.state_dict())
    state |= prefixed("decoder.norm.", network.norm.state_dict())
    state |= prefixed("disease_embedding_layer.", embed.state_dict())
    state |= prefixed("classifier.", network.answer.state_dict())
    state |= {"cl_fc.weight": torch.zeros(768, WIDTH), "cl_fc.bias": torch.zeros(768)}
    content = {"model": prefixed("module.", state), "epoch": 1}
    with pytest.raises(UserError, match="needs its book of descriptions"):
        imported("medklip", content, tmp_path, bert_folder)
    peer = imported("medklip", content, tmp_path, bert_folder, book_file)
    images = pictures(224)
    regions = network.regions(normalised(images, *IMAGENET))

    def query(text):
        ids = torch.tensor(peer.tokenizer.encode([text], 256))[:, :-1]
        return embed(bert(ids).last_hidden_state[0, 0])

    check_questions(peer, network, regions, query, (images, regions), last=False)
    assert peer.fusion.question("pleural effusions")[0] == BOOK["effusion"]
    longest = peer.token_ids(["no " * 90])[0]
    assert len(longest) == peer.max_tokens == 32  # the small BERT's; 64 of a larger one
    assert peer.tokenizer.sep_id not in longest
    assert "states none" in peer.provenance["licence"]
    why = peer.provenance["unused_tensors"]
    assert why["parts of the training loss alone"] == 2
    assert sum(why.values()) == 4
    book_file.write_text(json.dumps({"effusion": 3}))
    with pytest.raises(UserError, match="no JSON object of names to texts"):
        imported("medklip", content, tmp_path, bert_folder, book_file)


@torch.no_grad()
def test_afloc_scores_by_products_of_any_length(trunk, bert, bert_folder, tmp_path):
    local = lively(nn.Conv2d(THIRD, WIDTH, 1, bias=False), 1)
    whole = lively(nn.Linear(LAST, WIDTH), 2)
    image = {k: v for k, v in trunk.state_dict().items() if not k.startswith("fc.")}
    state = prefixed("afloc.img_encoder.model.", image)
    state |= prefixed("afloc.img_encoder.local_embedder.", local.state_dict())
    state |= {"afloc.img_encoder.local2_embedder.weight": torch.zeros(WIDTH, 512, 1, 1)}
    state |= prefixed("afloc.img_encoder.global_embedder.", whole.state_dict())
    state |= prefixed("afloc.text_encoder.model.", bert.state_dict())
    peer = imported("afloc", {"state_dict": state}, tmp_path, bert_folder)
    images = pictures(224)
    x = (images[:, None].float().expand(-1, 3, -1, -1) / 255 - 0.5) / 0.5
    x = F.interpolate(x, size=(299, 299), mode="bilinear", align_corners=True)
    third, last = features(trunk, x)
    regions, vector = local(third).flatten(2), whole(last.mean(dim=(2, 3)))
    found, texts = peer.encode_images(images), ["left", "No pleural effusion!"]
    sentences = peer.encode_sentences(texts)
    rows = []
    for text in ("left", "no pleural effusion"):
        out = bert(torch.tensor(peer.tokenizer.encode([text], 97)), output_hidden_states=True)
        rows.append(torch.stack(out.hidden_states[-4:]).sum(dim=0)[0].sum(dim=0) / 97)
    close(sentences[:, 0], torch.stack(rows))
    close(peer.score(found, sentences), vector @ torch.stack(rows).T / 100)
    maps = torch.einsum("bdn,td->btn", regions, torch.stack(rows)) / 100
    close(peer.region_scores(found, sentences), maps)
    assert maps.shape[2] == 19 * 19 == peer.grid.rows * peer.grid.columns
    assert peer.outputs.whole_alone
    # A product, not a cosine: twice the length is twice the score.
    close(peer.score(found, 2 * sentences), 2 * peer.score(found, sentences))
    close(found.pooled, F.normalize(vector, dim=-1))
    assert peer.provenance["unused_tensors"]["parts of the training loss alone"] == 1
    assert "Apache" in peer.provenance["licence"]
