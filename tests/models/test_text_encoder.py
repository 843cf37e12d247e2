"""Text encoders of every family against transformers' own modules; tokenizers; what is refused."""

from __future__ import annotations

import json

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, models, pre_tokenizers, processors, trainers

from medclip_debias.errors import ReportedWarning, UserError
from medclip_debias.models.text_encoder import (
    SentenceTokenizer,
    TextEncoder,
    folder_pooling,
    load_masked_lm,
    read_bert_state,
)
from tests.helpers.small_models import edit_json

SENTENCES = ["No pleural effusions.", "left", "no left pleural effusion, no pneumothorax"]
SIZES = {
    "vocab_size": 300,
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 24,
    "max_position_embeddings": 40,
}
NAMES = {"bert": "Bert", "roberta": "Roberta", "mpnet": "MPNet", "modernbert": "ModernBert"}
LONGEST = {"bert": 40, "roberta": 38, "mpnet": 38, "modernbert": 40}


def write(folder, kind):
    """A folder as published: tokenizer.json, config.json, and a masked language model's weights."""
    import transformers

    folder.mkdir(exist_ok=True)
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    pad, unk, cls, sep, _ = words
    if kind in ("roberta", "mpnet"):  # RoBERTa's numbers: <s> 0, <pad> 1, </s> 2
        cls, pad, sep, unk = "<s>", "<pad>", "</s>", "<unk>"
        words = [cls, pad, sep, unk, "<mask>"]
    tokenizer = Tokenizer(models.BPE(unk_token=unk))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    options = {"vocab_size": 300, "special_tokens": words, "initial_alphabet": alphabet}
    tokenizer.train_from_iterator(SENTENCES, trainers.BpeTrainer(**options))
    ends = [(word, tokenizer.token_to_id(word)) for word in (sep, cls)]
    tokenizer.post_processor = processors.RobertaProcessing(*ends, add_prefix_space=False)
    tokenizer.save(str(folder / "tokenizer.json"))
    sizes = SIZES | {"pad_token_id": tokenizer.token_to_id(pad)}
    if kind == "modernbert":
        sizes |= dict.fromkeys(("bos_token_id", "eos_token_id", "cls_token_id", "sep_token_id"))
        sizes |= {"local_attention": 4, "global_attn_every_n_layers": 2}
    config = getattr(transformers, f"{NAMES[kind]}Config")(**sizes)
    torch.manual_seed(0)
    model = getattr(transformers, f"{NAMES[kind]}ForMaskedLM")(config)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.2)
    model.save_pretrained(folder)
    return getattr(transformers, f"{NAMES[kind]}Model").from_pretrained(folder).eval(), tokenizer


@pytest.mark.parametrize(
    ("kind", "pooling"),
    [("bert", "mean"), ("roberta", "cls"), ("mpnet", "mean"), ("modernbert", "cls")],
)
@torch.no_grad()
def test_the_feature_is_the_librarys_whatever_the_padding(tmp_path, kind, pooling):
    model, tokenizer = write(tmp_path / kind, kind)
    encoder = TextEncoder.from_folder(tmp_path / kind, pooling=pooling).eval()
    ours = SentenceTokenizer.load(tmp_path / kind)
    ids = ours.encode(SENTENCES, 32)
    assert ids == [tokenizer.encode(s).ids for s in SENTENCES]
    for row, tokens in zip(encoder(*ours.pad(ids)), ids, strict=True):
        hidden = model(input_ids=torch.tensor([tokens])).last_hidden_state[0]
        expected = hidden[0] if pooling == "cls" else hidden.mean(dim=0)
        torch.testing.assert_close(row, expected, rtol=0, atol=1e-5)
    assert encoder.longest == LONGEST[kind]
    text = torch.full((1, encoder.longest), 9)
    assert encoder(text, torch.ones_like(text)).isfinite().all()


@torch.no_grad()
def test_cxr_bert_has_its_projection_head_and_scores_without_remote_code(texts):
    encoder, tokenizer = TextEncoder.from_folder(texts).eval(), SentenceTokenizer.load(texts)
    state = read_bert_state(texts)
    h = {k.removeprefix("cls_projection_head."): v for k, v in state.items()}
    ids, mask = tokenizer.pad(tokenizer.encode(SENTENCES, 32))
    cls = encoder.bert(input_ids=ids, attention_mask=mask).last_hidden_state[:, 0]
    x = F.gelu(F.linear(cls, h["dense_to_hidden.weight"], h["dense_to_hidden.bias"]))
    x = F.layer_norm(x, (6,), h["LayerNorm.weight"], h["LayerNorm.bias"], eps=1e-12)
    expected = F.linear(x, h["dense_to_output.weight"], h["dense_to_output.bias"])
    torch.testing.assert_close(encoder(ids, mask), expected)
    assert TextEncoder.from_folder(texts, use_projection_head=False).width == 16
    name = "embeddings.word_embeddings.weight"
    assert torch.equal(load_masked_lm(texts).bert.get_parameter(name), state[f"bert.{name}"])


def test_vocab_txt_gives_wordpiece_between_cls_and_sep_also_of_a_long_sentence(texts):
    tokenizer = SentenceTokenizer.load(texts)
    assert tokenizer.size == 10
    whole, cut = tokenizer.encode(["No pleural effusions"], 32) + tokenizer.encode(["no " * 6], 4)
    assert tokenizer.tokens(whole) == ["[CLS]", "no", "pleural", "effusion", "##s", "[SEP]"]
    assert tokenizer.tokens(cut) == ["[CLS]", "no", "no", "[SEP]"]


def test_modernberts_older_files_name_their_rotations_otherwise(tmp_path):
    model, _ = write(tmp_path / "m", "modernbert")
    path = tmp_path / "m" / "config.json"
    config = json.loads(path.read_text())
    config = {k: v for k, v in config.items() if k not in ("rope_parameters", "layer_types")}
    config |= {"global_rope_theta": 160000.0, "local_rope_theta": 10000.0}
    path.write_text(json.dumps(config | {"global_attn_every_n_layers": 2}))
    ids = torch.tensor([[2, 9, 30, 40, 50, 60, 70, 3]])
    with torch.no_grad():
        expected = model(input_ids=ids).last_hidden_state[:, 0]
        cls = TextEncoder.from_folder(tmp_path / "m").eval()(ids, torch.ones_like(ids))
    torch.testing.assert_close(cls, expected, rtol=0, atol=1e-5)
    edit_json(path, rope_scaling={"rope_type": "yarn"})
    with pytest.raises(UserError, match="'rope_scaling' changes how"):
        TextEncoder.from_folder(tmp_path / "m")


def test_robertas_two_files_give_the_tokenizer_of_its_one(tmp_path):
    write(tmp_path, "roberta")
    texts = [*SENTENCES, "x<mask> y"]
    expected = SentenceTokenizer.load(tmp_path).encode(texts, 32)
    content = json.loads((tmp_path / "tokenizer.json").read_text())["model"]
    (tmp_path / "tokenizer.json").unlink()
    (tmp_path / "vocab.json").write_text(json.dumps(content["vocab"]))
    pairs = [pair if isinstance(pair, str) else " ".join(pair) for pair in content["merges"]]
    (tmp_path / "merges.txt").write_text("#version: 0.2\n" + "\n".join(pairs) + "\n")
    ours = SentenceTokenizer.load(tmp_path)
    assert ours.encode(texts, 32) == expected
    (tmp_path / "saved").mkdir()
    ours.save(tmp_path / "saved")
    again = SentenceTokenizer.load(tmp_path / "saved")
    assert again.encode(texts, 32) == expected
    assert (again.pad_id, again.cls_id, again.sep_id) == (1, 0, 2)
    (tmp_path / "merges.txt").write_text("a b c\n")
    with pytest.raises(UserError, match="do not belong together"):
        SentenceTokenizer.load(tmp_path)


def test_a_sentence_encoders_folder_says_how_it_pools(tmp_path):
    write(tmp_path, "mpnet")
    assert folder_pooling(tmp_path) == "cls"
    (tmp_path / "1_Pooling").mkdir()
    pooling = tmp_path / "1_Pooling" / "config.json"
    modes = {"pooling_mode_cls_token": False, "pooling_mode_mean_tokens": True}
    pooling.write_text(json.dumps({"word_embedding_dimension": 16} | modes))
    assert TextEncoder.from_folder(tmp_path).pooling == "mean"
    assert TextEncoder.from_folder(tmp_path, pooling="cls").pooling == "cls"
    modules = [{"type": "sentence_transformers.models.Dense"}, {"type": "x.Pooling"}]
    (tmp_path / "modules.json").write_text(json.dumps(modules))
    with pytest.warns(ReportedWarning, match="of its 2 modules, 1 after the pooling"):
        folder_pooling(tmp_path)
    pooling.write_text(json.dumps({"pooling_mode_max_tokens": True}))
    with pytest.warns(ReportedWarning), pytest.raises(UserError, match="pooling_mode_max_tokens"):
        folder_pooling(tmp_path)


def test_every_tensor_is_accounted_for_and_tensorflows_names_are_read(tmp_path):
    model, _ = write(tmp_path / "b", "bert")
    path = tmp_path / "b" / "model.safetensors"
    state = load_file(path)
    old = {"LayerNorm.weight": "LayerNorm.gamma", "LayerNorm.bias": "LayerNorm.beta"}
    for new, name in old.items():
        state = {key.replace(new, name): value for key, value in state.items()}
    save_file(state, path)
    read = TextEncoder.from_folder(tmp_path / "b").bert.state_dict()
    assert all(torch.equal(read[key], model.state_dict()[key]) for key in read)
    del state["bert.encoder.layer.1.output.dense.bias"]
    save_file(state | {"bert.adapter.w": torch.ones(1)}, path)
    with pytest.raises(UserError, match=r"1 missing \(encoder\..*1 unknown \(adapter.w\)"):
        TextEncoder.from_folder(tmp_path / "b")


def test_folders_that_do_not_fit_are_named(bert_folder, tmp_path):
    def refused(words, read=TextEncoder.from_folder, folder=bert_folder):
        with pytest.raises(UserError, match=words):
            read(folder)

    edit_json(bert_folder / "config.json", hidden_size=8)
    refused("do not fit its config")
    edit_json(bert_folder / "config.json", model_type="mpnet")
    refused("masked language model is read of 'bert'", load_masked_lm)
    edit_json(bert_folder / "config.json", model_type="t5")
    refused("'t5'; text encoders that can be read: bert, cxr-bert")
    (bert_folder / "vocab.txt").write_text("just\nwords\n")
    refused(r"\[PAD\]", SentenceTokenizer.load)
    (bert_folder / "vocab.txt").unlink()
    refused(r"neither tokenizer\.json nor vocab\.txt", SentenceTokenizer.load)
