"""Masked language model, pseudo-likelihood and class probability."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch

from medclip_debias.data.store import write_scores
from medclip_debias.errors import UserError
from medclip_debias.language.class_probability import eta_table
from medclip_debias.language.masked_lm import (
    LanguageModelSettings,
    language_model_hash,
    mask_tokens,
    train_masked_lm,
    train_tokenizer,
)
from medclip_debias.language.pseudo_likelihood import last_hidden_at, pseudo_log_likelihood
from medclip_debias.models.text_encoder import SentenceTokenizer, load_masked_lm

CORPUS = (
    ["No pleural effusion."] * 40
    + ["No pneumothorax."] * 40
    + ["There is a small left pleural effusion."] * 6
    + ["Right apical pneumothorax is seen.", "Heart size is normal."] * 5
)
SMALL = LanguageModelSettings(
    vocabulary=120, hidden=16, layers=1, heads=2, steps=60, batch_size=32, max_tokens=16, lr=1e-2
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    out = tmp_path_factory.mktemp("lm") / "model"
    train_masked_lm(CORPUS, out, SMALL)
    return out


def one_token_at_a_time(model, tokenizer, sentence):
    """Salazar et al. (2020), equation 1, without any batching."""
    (ids,) = tokenizer.encode([sentence], model.config.max_position_embeddings)
    total = 0.0
    for place in range(1, len(ids) - 1):
        masked = torch.tensor([ids])
        masked[0, place] = tokenizer.mask_id
        with torch.no_grad():
            logits = model(input_ids=masked).logits[0, place]
        total += torch.log_softmax(logits, -1)[ids[place]].item()
    return total


def test_pseudo_likelihood_equals_one_token_at_a_time_scoring(folder):
    model, tokenizer = load_masked_lm(folder), SentenceTokenizer.load(folder)
    sentences = [*dict.fromkeys(CORPUS), "Heart.", "Entirely unseen words, 3.5 cm!", "No " * 30]
    scores, tokens = pseudo_log_likelihood(model, tokenizer, sentences, tokens_per_batch=100)
    for sentence, score in zip(sentences, scores, strict=True):
        assert score == pytest.approx(one_token_at_a_time(model, tokenizer, sentence), abs=1e-4)
    assert tokens[-1] == 14  # cut to the 16 tokens that the model reads


@pytest.mark.parametrize("layers", [1, 3])
def test_the_last_layer_at_one_place_is_that_of_the_whole_network(layers):
    from transformers import BertConfig, BertModel

    torch.manual_seed(0)
    size = {"hidden_size": 24, "num_attention_heads": 3, "intermediate_size": 40}
    config = BertConfig(vocab_size=50, num_hidden_layers=layers, **size)
    bert = BertModel(config, add_pooling_layer=False).double().eval()
    ids, places = torch.randint(0, 50, (7, 9)), torch.randint(0, 9, (7,))
    with torch.no_grad():
        expected = bert(input_ids=ids).last_hidden_state[torch.arange(7), places]
        assert torch.allclose(last_hidden_at(bert, ids, places), expected, atol=1e-12)


def test_a_frequent_sentence_is_more_probable_than_a_rare_one(folder):
    model, tokenizer = load_masked_lm(folder), SentenceTokenizer.load(folder)
    scores, _ = pseudo_log_likelihood(
        model, tokenizer, ["No pneumothorax.", "Right apical pneumothorax is seen."]
    )
    assert scores[0] > scores[1]


def test_an_empty_sentence_has_nothing_to_score(folder):
    model, tokenizer = load_masked_lm(folder), SentenceTokenizer.load(folder)
    scores, tokens = pseudo_log_likelihood(model, tokenizer, [""])
    assert (scores[0], tokens[0]) == (0.0, 0)


def test_training_lowers_the_loss_below_guessing(folder):
    import json

    figures = json.loads((folder / "training.json").read_text())["figures"]
    assert figures["loss"] < 0.6 * math.log(figures["tokens"])


def test_the_same_corpus_in_any_order_gives_the_same_bytes(tmp_path):
    quick = SMALL.model_copy(update={"steps": 3})
    train_masked_lm(CORPUS, tmp_path / "a", quick)
    train_masked_lm(CORPUS, tmp_path / "b", quick)
    assert language_model_hash(tmp_path / "a") == language_model_hash(tmp_path / "b")
    forward, backward = train_tokenizer(CORPUS, 120), train_tokenizer(CORPUS[::-1], 120)
    assert forward.encode(CORPUS, 16) == backward.encode(CORPUS, 16)
    train_masked_lm(CORPUS, tmp_path / "c", quick.model_copy(update={"seed": 1}))
    assert language_model_hash(tmp_path / "a") != language_model_hash(tmp_path / "c")


def test_masking_follows_bert(folder):
    tokenizer = SentenceTokenizer.load(folder)
    ids, mask = tokenizer.pad(tokenizer.encode(CORPUS * 20, 16))
    rng = np.random.default_rng(0)
    inputs, places, targets = mask_tokens(ids, mask, tokenizer, 0.15, rng)
    assert torch.equal(ids[places], targets)
    assert torch.equal(inputs[~places], ids[~places])
    assert not torch.isin(targets, torch.tensor([tokenizer.cls_id, tokenizer.sep_id])).any()
    assert not places[mask == 0].any()
    inner = int(mask.sum() - 2 * len(mask))
    assert places.sum().item() / inner == pytest.approx(0.15, abs=0.01)
    masked = (inputs[places] == tokenizer.mask_id).float().mean().item()
    assert masked == pytest.approx(0.8, abs=0.03)
    kept = (inputs[places] == targets).float().mean().item()
    assert kept == pytest.approx(0.1, abs=0.03)


def test_a_corpus_of_one_sentence_is_refused(tmp_path):
    with pytest.raises(UserError, match="fewer than two"):
        train_masked_lm(["One."], tmp_path / "lm")
    assert not (tmp_path / "lm").exists()


def test_a_folder_that_holds_something_else_is_not_replaced(tmp_path):
    (tmp_path / "mine.txt").write_text("x")
    with pytest.raises(UserError, match="is not empty and holds no language model"):
        train_masked_lm(["Clear lungs.", "No effusion."] * 20, tmp_path, SMALL)
    assert (tmp_path / "mine.txt").read_text() == "x"


def test_a_folder_that_is_no_bert_is_named(tmp_path):
    with pytest.raises(UserError, match="no such language-model folder"):
        language_model_hash(tmp_path / "none")
    with pytest.raises(UserError, match=r"config\.json"):
        load_masked_lm(tmp_path)
    (tmp_path / "config.json").write_text('{"model_type": "gpt2"}')
    with pytest.raises(UserError, match="gpt2"):
        load_masked_lm(tmp_path)


def test_the_hash_follows_weights_and_tokenizer(folder, tmp_path):
    import shutil

    copy = Path(shutil.copytree(folder, tmp_path / "copy"))
    assert language_model_hash(copy) == language_model_hash(folder)
    text = (copy / "tokenizer.json").read_text()
    (copy / "tokenizer.json").write_text(text.replace("pneumothorax", "pneumothorux"))
    assert language_model_hash(copy) != language_model_hash(folder)


def test_a_table_of_eta_is_read_and_checked(tmp_path):
    path = tmp_path / "eta.csv"
    path.write_text("text,eta\nNo effusion.,0.8\nNodule.,0.01\n")
    assert eta_table(path, ["Nodule.", "No effusion."]).tolist() == [0.01, 0.8]
    with pytest.raises(UserError, match="1 of 2 sentences"):
        eta_table(path, ["Nodule.", "Other."])
    path.write_text("text,eta\nNodule.,1.5\n")
    with pytest.raises(UserError, match="row 2"):
        eta_table(path, ["Nodule."])
    path.write_text("sentence,eta\nNodule.,0.5\n")
    with pytest.raises(UserError, match="none of its 2 columns is 'text'"):
        eta_table(path, ["Nodule."])
    with pytest.raises(UserError, match="there is no such file; give a table"):
        eta_table(tmp_path / "none.csv", [])


def test_scores_must_be_finite(tmp_path):
    with pytest.raises(ValueError, match="finite"):
        write_scores(tmp_path, ["a"], [float("nan")], [1], "0")
