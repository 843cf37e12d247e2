"""Model folders from strangers: each is one sentence, at once, and nothing in it is run."""

from __future__ import annotations

import json
import os
import shutil
import time

import pytest
import torch
from safetensors.torch import load_file, save_file

from medclip_debias.cli import run
from medclip_debias.config import PrepareSettings
from medclip_debias.errors import UserError
from medclip_debias.models.dual_encoder import DualEncoder
from medclip_debias.models.golden import SelfTestWarning
from medclip_debias.models.load import expected_images, load_model
from medclip_debias.models.peers.settings import PeerPreprocessing
from medclip_debias.models.text_encoder import SentenceTokenizer, TextEncoder, load_masked_lm
from medclip_debias.settings_files import load_yaml
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


def test_the_honest_folders_load(folder, peer):
    assert load_model(folder).self_test["status"] == "passed"
    load_model(peer)


@pytest.mark.parametrize(
    "name", ["config.json", "model.safetensors", "tokenizer.json", "golden.json"]
)
@pytest.mark.parametrize("kind", ["device", "pipe", "sparse"])
def test_a_file_that_never_ends_does_not_hold_up(folder, name, kind):
    (folder / name).unlink()
    if kind == "device":
        (folder / name).symlink_to("/dev/zero")
    elif kind == "pipe":
        os.mkfifo(folder / name)
    else:
        with (folder / name).open("wb") as file:
            file.truncate(8 << 30)
    began = time.perf_counter()
    if name == "golden.json":  # the weights are whole; the test of this machine says that it is not
        with pytest.warns(SelfTestWarning, match="is damaged"):
            load_model(folder)
        assert time.perf_counter() - began < 20
    else:
        refused(folder, "is missing|is larger than|cannot be read as a weight file")


CHANGES = "changes how the model is computed"


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"_attn_implementation": "someone/kernel"}, f"'_attn_implementation' {CHANGES}"),
        ({"_attn_implementation_internal": "x"}, CHANGES),
        ({"position_embedding_type": "relative_key"}, CHANGES),
        ({"is_decoder": True}, CHANGES),
        ({"pruned_heads": {"0": [1]}}, CHANGES),
        ({"quantization_config": {"quant_method": "x"}}, CHANGES),
        ({"hidden_act": "os.system"}, r"text_config\.hidden_act' is wrong"),
        ({"vocab_size": 10**12}, r"text_config\.vocab_size' is wrong"),
        ({"vocab_size": 2_000_000}, "it is of another architecture"),
        ({"hidden_size": 10**9}, r"text_config\.hidden_size' is wrong"),
        ({"hidden_size": "16; x"}, r"text_config\.hidden_size' is wrong"),
        ({"num_hidden_layers": 10**9}, r"text_config\.num_hidden_layers' is wrong"),
        ({"num_attention_heads": 3}, "must divide hidden_size"),
        ({"num_attention_heads": 0}, r"num_attention_heads' is wrong"),
        ({"max_position_embeddings": 65_536}, "another architecture"),
        ({"layer_norm_eps": -1}, r"layer_norm_eps' is wrong"),
        ({"pad_token_id": 10**5}, "pad_token_id must be below"),
        ({"projection_size": 10**9}, r"projection_size' is wrong"),
    ],
)
def test_a_text_config_that_is_none(folder, fields, words):
    content = json.loads((folder / "config.json").read_text())
    edit_json(folder / "config.json", text_config=content["text_config"] | fields)
    refused(folder, words)


def test_fields_that_change_no_number_are_left_aside(folder):
    content = json.loads((folder / "config.json").read_text())["text_config"]
    content |= {"auto_map": {"AutoModel": "evil.Model"}, "torch_dtype": "float16", "future": 1}
    edit_json(folder / "config.json", text_config=content)
    assert load_model(folder, check=False).text_encoder.bert.dtype == torch.float32


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"auto_map": {"AutoModel": "evil.Model"}}, "unknown setting 'auto_map'"),
        ({"_name_or_path": "x"}, "unknown setting '_name_or_path'"),
        ({"architecture": None}, "setting 'architecture' is wrong"),
        ({"text_config": [1]}, "setting 'text_config' is wrong"),
        ({"prompts": "x"}, "setting 'prompts' is wrong"),
        ({"dim": 10**12}, "'architecture.dim' is wrong"),
        ({"dim": 16_384, "image": {"arch": "resnet50"}}, "another architecture"),
    ],
)
def test_a_field_that_no_model_folder_has(folder, fields, words):
    if "dim" in fields:
        content = json.loads((folder / "config.json").read_text())
        fields = {"architecture": content["architecture"] | fields}
    edit_json(folder / "config.json", **fields)
    refused(folder, words)


@pytest.mark.parametrize("text", ["[" * 100_000, '{"a":' * 100_000, "[]", "{", "\ud800"])
def test_json_that_is_nested_without_end_or_damaged(folder, text):
    (folder / "config.json").write_text(text, errors="surrogatepass")
    refused(folder, "copy the model folder again")


def test_weights_with_a_name_too_many_are_refused(folder):
    state = load_file(folder / "model.safetensors")
    save_file(state | {"extra": torch.zeros(1)}, folder / "model.safetensors")
    refused(folder, "another architecture")


# ----------------------------------------------------------------------------------- tokenizers


def step(kind, **fields):
    return {"type": kind, **fields}


def steps(*normalizers):
    return {"normalizer": step("Sequence", normalizers=list(normalizers))}


def replaced(pattern, content):
    return step("Replace", pattern=pattern, content=content)


GROWS = replaced({"String": "e"}, "ee")
NEVER_ENDS = step("Split", pattern={"Regex": "(\\w*)*x"}, behavior="Isolated", invert=False)
MANY = [{"SpecialToken": {"id": "[CLS]", "type_id": 0}}] * 100_000
LONG = step("TemplateProcessing", single=MANY, pair=[], special_tokens={})
REPLACES, SPLITS = r"normalizer \(Replace\) with settings", r"pre_tokenizer \(Split\) with settings"


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"normalizer": replaced({"String": "e"}, "e" * 10_000_000)}, REPLACES),
        (steps(*[GROWS] * 8), REPLACES),
        ({"normalizer": replaced({"Regex": "(e+)+$"}, "")}, REPLACES),
        ({"pre_tokenizer": NEVER_ENDS}, SPLITS),
        ({"normalizer": step("Prepend", prepend="x" * 10**6)}, "another type than"),
        ({"normalizer": step("Precompiled", precompiled_charsmap="")}, "another type"),
        (steps(*[step("NFC")] * 1000), "1000 steps"),
        ({"post_processor": LONG}, r"post_processor \(TemplateProcessing\) with settings"),
        ({"model": {"type": "Unigram", "vocab": [["a", 0.0]], "unk_id": 0}}, "another type"),
        ({"model": {"vocab": {}}, "added_tokens": 3}, "not a tokenizer file"),
        ({"model": None}, "not a tokenizer file"),
        (None, "not a tokenizer file"),
    ],
)
def test_a_tokenizer_with_parts_that_no_bert_has(folder, fields, words):
    if fields is None:
        (folder / "tokenizer.json").write_text("[" * 100_000)
    else:
        edit_json(folder / "tokenizer.json", **fields)
    refused(folder, words)


@pytest.mark.parametrize("vocabulary", [{}, {"[PAD]": 0}])
def test_an_empty_vocabulary_ends_the_command_with_one_sentence(
    vocabulary, folder, tmp_path, capsys
):
    content = json.loads((folder / "tokenizer.json").read_text())
    model = content["model"] | {"vocab": vocabulary}
    edit_json(folder / "tokenizer.json", model=model, added_tokens=[])
    words = ["ground", str(folder), str(tmp_path / "none.png"), "--text", "no"]
    assert run([*words, "--out", str(tmp_path / "maps")]) == 2
    message = capsys.readouterr().err
    assert "tokenizer.json: its vocabulary of" in message
    assert message.count("\n") == 1


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


WIDTH, LAYERS, WORDS = ("width: 16\n", "layers: 1\n", "vocab_size: 10\n")


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        (WIDTH, "width: 1000000000\n", "'width': it is not from 0 to"),
        (WIDTH, "width: 16384\n", "another architecture"),
        ("head_width: 8\n", "head_width: 5\n", "no model can be built"),
        (LAYERS, "layers: 100000000\n", "'layers': it is not from 1 to"),
        (LAYERS, "layers: 1\n      evil: 1\n", "no model can be built"),
        (LAYERS, "layers: 1\n      quantization_config: {}\n", CHANGES),
        (WORDS, "vocab_size: 1000000000000\n", "vocab_size' is wrong"),
        (WORDS, "vocab_size: 2000000\n", "another architecture"),
        (WORDS, "vocab_size: 10\n      _attn_implementation: a/b\n", CHANGES),
    ],
)
def test_a_peers_architecture_that_is_none(peer, old, new, words):
    text = (peer / "peer.yaml").read_text()
    assert f"      {old}" in text
    (peer / "peer.yaml").write_text(text.replace(f"      {old}", f"      {new}"))
    refused(peer, words)


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("image.model.blocks.99999999999.x", (1,)),
        ("image.model.patch_embed.proj.weight", (10**9, 0, 1, 1)),
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
    load_model(tmp_path / "peer")
    weights = tmp_path / "peer" / "model.safetensors"
    save_file(load_file(weights) | {name: torch.empty(shape)}, weights)
    refused(tmp_path / "peer", "another architecture")


def nine(start, form):
    """Nine aliases of the level below, in each of ten levels."""
    levels = (form.format(n=n, below=",".join([f"*a{n - 1}"] * 9)) for n in range(1, 11))
    return start + "".join(levels)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (nine("a0: &a0 [x]\n", "a{n}: &a{n} [{below}]\n"), "expands to more values"),
        (nine("a0: &a0 {k: 1}\n", "a{n}: &a{n} {{<<: [{below}]}}\n"), "expands to more"),
        ("a: &a " + "x" * 500_000 + "\nb: [" + "*a," * 1000 + "]\n", "expands to more"),
        ("a: &a0 [1]\n" + "".join(f"b{n}: &a{n + 1} [*a{n}]\n" for n in range(5000)), "nested"),
        ("a: &a {b: *a}\n", "nested without end"),
        ("a: " + "{b: " * 3000, "nested without end"),
        ("a: 1" + ":1" * 200_000 + "\n", "the number is too long"),
        ("a: 0x" + "f" * 100_000 + "\n", "the number is too long"),
        ("a: " + "x" * (1 << 20) + "\n", "is longer than"),
    ],
)
def test_a_peers_yaml_that_is_a_bomb(peer, text, words):
    (peer / "peer.yaml").write_text(text)
    refused(peer, words)


def test_honest_aliases_are_read(tmp_path):
    path = tmp_path / "a.yaml"
    path.write_text("a: &a {x: 1, y: [2, 3]}\nb: {<<: *a, x: 4}\nc: [*a, *a]\n")
    content = load_yaml(path)
    assert content["b"] == {"x": 4, "y": [2, 3]}
    assert content["c"] == [{"x": 1, "y": [2, 3]}] * 2


# ---------------------------------------------------------------- how a folder's images are made


def test_own_models_and_peers_say_how_their_images_are_prepared(honest):
    for name in ("model", "peer"):
        assert expected_images(honest / name) == load_model(honest / name).preprocessing


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ({"model_type": "bert"}, "does not say how images are prepared"),
        ({"preprocessing": {"input_size": 4096}}, "'preprocessing' is wrong: input_size 4096"),
        ({"preprocessing": {"prepare": {"sise": 3}}}, "unknown setting 'preprocessing.prepare.sis"),
        (["a"], "is not a JSON object"),
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
