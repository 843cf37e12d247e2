"""Model folders from strangers: each is one sentence, at once, and nothing in it is run."""

from __future__ import annotations

import json
import os
import shutil
import time

import pytest
import torch
from safetensors.torch import load_file, save_file

from medclip_debias.config import PrepareSettings
from medclip_debias.errors import UserError
from medclip_debias.models.dual_encoder import DualEncoder
from medclip_debias.models.golden import SelfTestWarning
from medclip_debias.models.load import expected_images, load_model
from medclip_debias.models.peers.settings import PeerPreprocessing
from medclip_debias.models.text_encoder import SentenceTokenizer, TextEncoder, load_masked_lm
from tests.helpers.small_models import dual_encoder, edit_json, make_peer, write_bert


@pytest.fixture(scope="module")
def honest(tmp_path_factory):
    """Folders of a language model, of a model of this project, and of a peer."""
    place = tmp_path_factory.mktemp("honest")
    bert = write_bert(place / "bert")[0]
    dual_encoder(bert, "resnet_tiny", 32, 32).save(place / "model")
    vision = {"image_size": 32, "patch_size": 16, "width": 16, "layers": 1, "head_width": 8}
    how = PeerPreprocessing(prepare=PrepareSettings(size=32), input_size=32)
    content = {"dim": 8, "image": {"kind": "open_clip", "config": vision}}
    make_peer(bert, how, **content).save(place / "peer")
    return place


@pytest.fixture
def folder(honest, tmp_path):
    """A copy of the model's, to be damaged."""
    return shutil.copytree(honest / "model", tmp_path / "model")


@pytest.fixture
def peer(honest, tmp_path):
    return shutil.copytree(honest / "peer", tmp_path / "peer")


def refused(folder, words):
    began = time.perf_counter()
    with pytest.raises(UserError, match=words) as caught:
        load_model(folder)
    assert time.perf_counter() - began < 20
    assert str(caught.value).startswith(str(folder))


def test_the_honest_folders_load_and_say_how_images_are_prepared(folder, peer):
    assert load_model(folder).self_test["status"] == "passed"
    for place in (folder, peer):
        assert expected_images(place) == load_model(place).preprocessing


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("config.json", "device"),
        ("model.safetensors", "pipe"),
        ("model.safetensors", "sparse"),
        ("tokenizer.json", "sparse"),
        ("golden.json", "device"),
    ],
)
def test_a_file_that_never_ends_does_not_hold_up(folder, name, kind):
    (folder / name).unlink()
    if kind == "device":
        (folder / name).symlink_to("/dev/zero")
    elif kind == "pipe":
        os.mkfifo(folder / name)
    else:
        with (folder / name).open("wb") as file:
            file.truncate(8 << 30)
    if name == "golden.json":  # the weights are whole; the test of this machine says that it is not
        with pytest.warns(SelfTestWarning, match="is damaged"):
            load_model(folder)
    else:
        refused(folder, "is missing|is larger than|cannot be read as a weight file")


CHANGES = "changes how the model is computed"


def step(kind, **fields):
    return {"type": kind, **fields}


def steps(*normalizers):
    return {"normalizer": step("Sequence", normalizers=list(normalizers))}


def replaced(pattern, content):
    return {"normalizer": step("Replace", pattern=pattern, content=content)}


NEVER_ENDS = step("Split", pattern={"Regex": "(\\w*)*x"}, behavior="Isolated", invert=False)
MANY = [{"SpecialToken": {"id": "[CLS]", "type_id": 0}}] * 100_000
LONG = step("TemplateProcessing", single=MANY, pair=[], special_tokens={})
REPLACES, SPLITS = r"normalizer \(Replace\) with settings", r"pre_tokenizer \(Split\) with settings"


@pytest.mark.parametrize(
    ("file", "inside", "fields", "words"),
    [
        ("config", "text_config", {"_attn_implementation": "someone/kernel"}, CHANGES),
        ("config", "text_config", {"is_decoder": True}, CHANGES),
        ("config", "text_config", {"hidden_act": "os.system"}, "hidden_act' is wrong"),
        ("config", "text_config", {"vocab_size": 10**12}, "vocab_size' is wrong"),
        ("config", "text_config", {"vocab_size": 2_000_000}, "another architecture"),
        ("config", "text_config", {"num_attention_heads": 3}, "must divide hidden_size"),
        ("config", "text_config", {"pad_token_id": 10**5}, "pad_token_id must be below"),
        ("config", "architecture", {"dim": 10**12}, "'architecture.dim' is wrong"),
        ("config", None, {"auto_map": {"AutoModel": "evil.Model"}}, "unknown setting 'auto_map'"),
        ("config", None, {"text_config": [1]}, "setting 'text_config' is wrong"),
        ("tokenizer", None, replaced({"String": "e"}, "e" * 10_000_000), REPLACES),
        ("tokenizer", None, replaced({"Regex": "(e+)+$"}, ""), REPLACES),
        ("tokenizer", None, {"pre_tokenizer": NEVER_ENDS}, SPLITS),
        ("tokenizer", None, {"normalizer": step("Prepend", prepend="x")}, "another type than"),
        ("tokenizer", None, steps(*[step("NFC")] * 1000), "1000 steps"),
        ("tokenizer", None, {"post_processor": LONG}, r"post_processor \(TemplateProcessing\)"),
        ("tokenizer", "model", {"vocab": {}}, "its vocabulary of"),
        ("tokenizer", None, {"model": None}, "not a tokenizer file"),
    ],
)
def test_what_no_model_folder_may_ask_for(folder, file, inside, fields, words):
    path = folder / f"{file}.json"
    if inside is not None:
        fields = {inside: json.loads(path.read_text())[inside] | fields}
    edit_json(path, **fields)
    refused(folder, words)


def test_fields_that_change_no_number_are_left_aside(folder):
    content = json.loads((folder / "config.json").read_text())["text_config"]
    content |= {"auto_map": {"AutoModel": "evil.Model"}, "torch_dtype": "float16", "future": 1}
    edit_json(folder / "config.json", text_config=content)
    assert load_model(folder, check=False).text_encoder.bert.dtype == torch.float32


@pytest.mark.parametrize("text", ["[" * 100_000, "[]", "\ud800"])
def test_json_that_is_nested_without_end_or_damaged(folder, text):
    (folder / "config.json").write_text(text, errors="surrogatepass")
    refused(folder, "copy the model folder again")


def test_weights_with_a_name_too_many_are_refused(folder):
    state = load_file(folder / "model.safetensors")
    save_file(state | {"extra": torch.zeros(1)}, folder / "model.safetensors")
    refused(folder, "another architecture")


def test_what_is_read_encodes_a_long_sentence_at_once(honest):
    tokenizer = SentenceTokenizer.load(honest / "model")
    began = time.perf_counter()
    tokenizer.encode(["e" * 100_000 + " " + "no " * 30_000], 16)
    assert time.perf_counter() - began < 5


# ------------------------------------------------------------------- language models, and peers


def test_a_language_models_sizes_are_checked_and_its_code_is_never_looked_for(
    bert_folder, tmp_path
):
    (bert_folder / "evil.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\n")
    edit_json(bert_folder / "config.json", auto_map={"AutoModelForMaskedLM": "evil.Model"})
    load_masked_lm(bert_folder)
    assert not (tmp_path / "ran").exists()
    edit_json(bert_folder / "config.json", hidden_size=16_384, num_attention_heads=16)
    for read in (TextEncoder.from_folder, load_masked_lm):
        with pytest.raises(UserError, match="another architecture"):
            read(bert_folder)


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("format: 2\n", "format: 1\n", "import the model again"),
        (" width: 16\n", " width: 1000000000\n", "'width': it is not from 0 to"),
        (" width: 16\n", " width: 16384\n", "another architecture"),
        ("head_width: 8\n", "head_width: 5\n", "no model can be built"),
        (" layers: 1\n", " layers: 1\n      evil: 1\n", "no model can be built"),
        (" layers: 1\n", " layers: 1\n      quantization_config: {}\n", CHANGES),
        ("vocab_size: 10\n", "vocab_size: 1000000000000\n", "vocab_size' is wrong"),
    ],
)
def test_a_peers_architecture_that_is_none(peer, old, new, words):
    text = (peer / "peer.yaml").read_text()
    assert old in text
    (peer / "peer.yaml").write_text(text.replace(old, new))
    refused(peer, words)


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("image.model.blocks.99999999999.x", (1,)),
        ("image.model.blocks.0.mlp.fc1.weight", (10**9, 0)),
    ],
)
def test_tensors_that_claim_a_size_without_numbers(bert_folder, tmp_path, name, shape):
    """Of a peer whose tower is as large as they say."""
    shapes = {
        "image.model.patch_embed.proj.weight": (16, 3, 16, 16),
        "image.model.pos_embed": (1, 5, 16),
        "image.model.blocks.0.mlp.fc1.weight": (24, 16),
        "fusion.layers.0.linear1.weight": (8, 16),
    }
    content = {"kind": "carzero", "image": {"kind": "vit"}}
    content |= {"fusion": {"kind": "query_attention", "positions": 9, "heads": 2}}
    text, how = {"kind": "words", "positions": 9}, PeerPreprocessing(input_size=32)
    make_peer(bert_folder, how, shapes, text, **content).save(tmp_path / "peer")
    weights = tmp_path / "peer" / "model.safetensors"
    save_file(load_file(weights) | {name: torch.empty(shape)}, weights)
    refused(tmp_path / "peer", "another architecture")


NINE = "".join(f"a{n}: &a{n} [{','.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, 11))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a0: &a0 [x]\n" + NINE, "expands to more values"),
        ("a: &a {b: *a}\n", "nested without end"),
        ("a: 1" + ":1" * 200_000 + "\n", "the number is too long"),
        ("a: " + "x" * (1 << 20) + "\n", "is longer than"),
    ],
)
def test_a_peers_yaml_that_is_a_bomb(peer, text, words):
    """More of them: tests/test_settings_files.py."""
    (peer / "peer.yaml").write_text(text)
    refused(peer, words)


# -------------------------------------------------------------------------- folders of no model


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ({"model_type": "bert"}, "does not say how images are prepared"),
        ({"preprocessing": {"input_size": 4096}}, "'preprocessing' is wrong: input_size 4096"),
        (None, r"no config\.json or peer\.yaml; .*model is one\.$"),
    ],
)
def test_a_folder_that_is_no_model_is_one_sentence(tmp_path, content, sentence):
    (tmp_path / "model").mkdir()
    for place in (tmp_path / "model", tmp_path)[: 1 if content is None else 2]:
        (place / "config.json").write_text(json.dumps(content))
    with pytest.raises(UserError, match=sentence):
        expected_images(tmp_path)


def test_a_run_in_the_place_of_its_model_is_shown_the_model(tmp_path):
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text("{}")
    with pytest.raises(UserError, match=r"config.json is missing; .*model is one"):
        DualEncoder.load(tmp_path)
    with pytest.raises(UserError, match="there is no such folder; give the folder 'model'"):
        DualEncoder.load(tmp_path / "modle")
