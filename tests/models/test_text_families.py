"""RoBERTa, MPNet, ModernBERT and sentence encoders against transformers' own modules."""

from __future__ import annotations

import json

import pytest
import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, models, pre_tokenizers, processors, trainers

from medclip_debias.errors import ReportedWarning, UserError
from medclip_debias.models.text_encoder import (
    SentenceTokenizer,
    TextEncoder,
    folder_pooling,
    load_masked_lm,
)

SENTENCES = ["No pleural effusions.", "left", "no left pleural effusion, no pneumothorax"]
SIZES = {
    "vocab_size": 300,
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 24,
    "max_position_embeddings": 40,
}
BERT, ROBERTA = ("[PAD]", "[UNK]", "[CLS]", "[SEP]"), ("<pad>", "<unk>", "<s>", "</s>")
# RoBERTa's numbers: <s> 0, <pad> 1, </s> 2
ORDERS = {"roberta": [2, 0, 3, 1], "mpnet": [2, 0, 3, 1]}


def write(folder, kind):
    """A folder as published: tokenizer.json, config.json, and a masked language model's weights."""
    import transformers

    name = {"bert": "Bert", "roberta": "Roberta", "mpnet": "MPNet", "modernbert": "ModernBert"}
    folder.mkdir(exist_ok=True)
    words = BERT if kind in ("bert", "modernbert") else ROBERTA
    mask = "[MASK]" if words is BERT else "<mask>"
    order = [words[k] for k in ORDERS.get(kind, range(4))]
    tokenizer = Tokenizer(models.BPE(unk_token=words[1]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    tokenizer.train_from_iterator(
        SENTENCES,
        trainers.BpeTrainer(
            vocab_size=300, special_tokens=[*order, mask], initial_alphabet=alphabet
        ),
    )
    cls, sep = ((w, tokenizer.token_to_id(w)) for w in words[2:])
    tokenizer.post_processor = processors.RobertaProcessing(sep, cls, add_prefix_space=False)
    tokenizer.save(str(folder / "tokenizer.json"))
    pad = {"pad_token_id": tokenizer.token_to_id(words[0])}
    if kind == "modernbert":
        pad |= dict.fromkeys(("bos_token_id", "eos_token_id", "cls_token_id", "sep_token_id"))
        pad |= {"local_attention": 4, "global_attn_every_n_layers": 2}
    config = getattr(transformers, f"{name[kind]}Config")(**SIZES, **pad)
    torch.manual_seed(0)
    model = getattr(transformers, f"{name[kind]}ForMaskedLM")(config)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.2)
    model.save_pretrained(folder)
    return getattr(transformers, f"{name[kind]}Model").from_pretrained(folder).eval(), tokenizer


@pytest.mark.parametrize("pooling", ["cls", "mean"])
@pytest.mark.parametrize("kind", ["bert", "roberta", "mpnet", "modernbert"])
def test_the_feature_is_the_librarys_whatever_the_padding(tmp_path, kind, pooling):
    model, tokenizer = write(tmp_path / kind, kind)
    encoder = TextEncoder.from_folder(tmp_path / kind, pooling=pooling).eval()
    ours = SentenceTokenizer.load(tmp_path / kind)
    ids = ours.encode(SENTENCES, 32)
    assert ids == [tokenizer.encode(s).ids for s in SENTENCES]
    with torch.no_grad():
        together = encoder(*ours.pad(ids))
        for row, tokens in zip(together, ids, strict=True):
            hidden = model(input_ids=torch.tensor([tokens])).last_hidden_state[0]
            expected = hidden[0] if pooling == "cls" else hidden.mean(dim=0)
            torch.testing.assert_close(row, expected, rtol=0, atol=1e-5)
    longest = {"bert": 40, "roberta": 38, "mpnet": 38, "modernbert": 40}[kind]
    assert encoder.longest == longest
    text = torch.full((1, longest), 9)
    assert encoder(text, torch.ones_like(text)).isfinite().all()


def test_modernberts_older_files_name_their_rotations_otherwise(tmp_path):
    model, _ = write(tmp_path / "m", "modernbert")
    path = tmp_path / "m" / "config.json"
    config = json.loads(path.read_text())
    for key in ("rope_parameters", "layer_types"):
        config.pop(key, None)
    config |= {"global_rope_theta": 160000.0, "local_rope_theta": 10000.0}
    path.write_text(json.dumps(config | {"global_attn_every_n_layers": 2}))
    ids = torch.tensor([[2, 9, 30, 40, 50, 60, 70, 3]])
    with torch.no_grad():
        expected = model(input_ids=ids).last_hidden_state[:, 0]
        found = TextEncoder.from_folder(tmp_path / "m").eval()(ids, torch.ones_like(ids))
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)
    path.write_text(json.dumps(config | {"rope_scaling": {"rope_type": "yarn"}}))
    with pytest.raises(UserError, match="'rope_scaling' changes how"):
        TextEncoder.from_folder(tmp_path / "m")


def test_robertas_two_files_give_the_tokenizer_of_its_one(tmp_path):
    write(tmp_path / "r", "roberta")
    whole = SentenceTokenizer.load(tmp_path / "r")
    content = json.loads((tmp_path / "r" / "tokenizer.json").read_text())["model"]
    (tmp_path / "r" / "tokenizer.json").unlink()
    (tmp_path / "r" / "vocab.json").write_text(json.dumps(content["vocab"]))
    pairs = [pair if isinstance(pair, str) else " ".join(pair) for pair in content["merges"]]
    (tmp_path / "r" / "merges.txt").write_text("#version: 0.2\n" + "\n".join(pairs) + "\n")
    ours = SentenceTokenizer.load(tmp_path / "r")
    assert ours.encode([*SENTENCES, "x<mask> y"], 32) == whole.encode([*SENTENCES, "x<mask> y"], 32)
    (tmp_path / "saved").mkdir()
    ours.save(tmp_path / "saved")
    again = SentenceTokenizer.load(tmp_path / "saved")
    assert again.encode(SENTENCES, 32) == whole.encode(SENTENCES, 32)
    assert (again.pad_id, again.cls_id, again.sep_id) == (1, 0, 2)
    (tmp_path / "r" / "merges.txt").write_text("a b c\n")
    with pytest.raises(UserError, match="do not belong together"):
        SentenceTokenizer.load(tmp_path / "r")


def test_a_sentence_encoders_folder_says_how_it_pools(tmp_path):
    write(tmp_path / "s", "mpnet")
    assert folder_pooling(tmp_path / "s") == "cls"
    (tmp_path / "s" / "1_Pooling").mkdir()
    pooling = tmp_path / "s" / "1_Pooling" / "config.json"
    content = {"word_embedding_dimension": 16, "pooling_mode_cls_token": False}
    pooling.write_text(json.dumps(content | {"pooling_mode_mean_tokens": True}))
    assert TextEncoder.from_folder(tmp_path / "s").pooling == "mean"
    assert TextEncoder.from_folder(tmp_path / "s", pooling="cls").pooling == "cls"
    modules = [{"type": "sentence_transformers.models.Dense"}, {"type": "x.Pooling"}]
    (tmp_path / "s" / "modules.json").write_text(json.dumps(modules))
    with pytest.warns(ReportedWarning, match="of its 2 modules, 1 after the pooling"):
        folder_pooling(tmp_path / "s")
    pooling.write_text(json.dumps({"pooling_mode_max_tokens": True}))
    with pytest.warns(ReportedWarning), pytest.raises(UserError, match="pooling_mode_max_tokens"):
        folder_pooling(tmp_path / "s")


def test_every_tensor_is_accounted_for(tmp_path):
    write(tmp_path / "m", "modernbert")
    path = tmp_path / "m" / "model.safetensors"
    state = {k: v for k, v in load_file(path).items() if k != "model.final_norm.weight"}
    save_file(state | {"model.adapter.w": torch.ones(1)}, path)
    with pytest.raises(UserError, match=r"1 missing \(final_norm\..*1 unknown \(adapter.w\)"):
        TextEncoder.from_folder(tmp_path / "m")


def test_names_of_tensorflows_norms_are_read(tmp_path):
    model, _ = write(tmp_path / "b", "bert")
    path = tmp_path / "b" / "model.safetensors"
    old = {"LayerNorm.weight": "LayerNorm.gamma", "LayerNorm.bias": "LayerNorm.beta"}
    state = {}
    for key, value in load_file(path).items():
        for new, name in old.items():
            key = key.replace(new, name)
        state[key] = value
    save_file(state, path)
    found = TextEncoder.from_folder(tmp_path / "b").bert.state_dict()
    assert all(torch.equal(found[key], model.state_dict()[key]) for key in found)


def test_other_families_are_named(tmp_path):
    write(tmp_path / "m", "mpnet")
    with pytest.raises(UserError, match="masked language model is read of 'bert'"):
        load_masked_lm(tmp_path / "m")
    path = tmp_path / "m" / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"model_type": "t5"}))
    with pytest.raises(UserError, match="'t5'; text encoders that can be read: bert, cxr-bert"):
        TextEncoder.from_folder(tmp_path / "m")
