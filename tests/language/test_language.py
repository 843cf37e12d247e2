"""Masked language model, its vocabulary, pseudo-likelihood and class probability."""

from __future__ import annotations

import json

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
from medclip_debias.language.scoring import last_hidden_at, pseudo_log_likelihood
from medclip_debias.language.vocabulary import allowed_words, without_others
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
PATIENTS = [str(number) for number in range(8)]
PATIENTS_OF = {
    "The lungs are clear.": PATIENTS,
    "Findings discussed with Dr. Zebrowska by phone.": PATIENTS,
    "Compared with Quillfeather Hospital, no change.": PATIENTS[:6],
    "A Swan Ganz catheter, and a Dobbhoff tube.": PATIENTS[:6],
    "Large echinococcal cyst.": PATIENTS[:1],
    "Call 5550199 at 10 pm.": PATIENTS,
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    out = tmp_path_factory.mktemp("lm") / "model"
    train_masked_lm(CORPUS, out, SMALL)
    return out


@pytest.fixture(scope="module")
def model(folder):
    return load_masked_lm(folder), SentenceTokenizer.load(folder)


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


def test_pseudo_likelihood_equals_one_token_at_a_time_scoring(model):
    unseen = ["Heart.", "Entirely unseen words, 3.5 cm!", "", "No " * 30]
    sentences = [*dict.fromkeys(CORPUS), *unseen]
    scores, tokens = pseudo_log_likelihood(*model, sentences, tokens_per_batch=100)
    expected = [one_token_at_a_time(*model, sentence) for sentence in sentences]
    assert scores.tolist() == pytest.approx(expected, abs=1e-4)
    assert tokens[-2:].tolist() == [0, 14]  # cut to the 16 tokens that the model reads
    probability = dict(zip(sentences, scores, strict=True))
    assert probability["No pneumothorax."] > probability["Right apical pneumothorax is seen."]


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


def test_the_same_corpus_gives_the_same_bytes_and_the_hash_follows_all_of_them(tmp_path):
    quick = SMALL.model_copy(update={"steps": 3})
    changes = {"a": {}, "b": {}, "c": {"seed": 1}}
    for name, change in changes.items():
        train_masked_lm(CORPUS, tmp_path / name, quick.model_copy(update=change))
    a, b, c = (language_model_hash(tmp_path / name) for name in changes)
    assert a == b != c
    tokenizer = tmp_path / "b" / "tokenizer.json"
    tokenizer.write_text(tokenizer.read_text().replace("pneumothorax", "pneumothorux"))
    assert language_model_hash(tmp_path / "b") != a
    forward, backward = train_tokenizer(CORPUS, 120), train_tokenizer(CORPUS[::-1], 120)
    assert forward.encode(CORPUS, 16) == backward.encode(CORPUS, 16)


def test_masking_follows_bert(model):
    _, tokenizer = model
    ids, mask = tokenizer.pad(tokenizer.encode(CORPUS * 20, 16))
    inputs, places, targets = mask_tokens(ids, mask, tokenizer, 0.15, np.random.default_rng(0))
    assert torch.equal(ids[places], targets)
    assert torch.equal(inputs[~places], ids[~places])
    assert not torch.isin(targets, torch.tensor([tokenizer.cls_id, tokenizer.sep_id])).any()
    assert not places[mask == 0].any()
    inner = int(mask.sum() - 2 * len(mask))
    masked, kept = inputs[places] == tokenizer.mask_id, inputs[places] == targets
    assert places.sum().item() / inner == pytest.approx(0.15, abs=0.01)
    assert masked.float().mean().item() == pytest.approx(0.8, abs=0.03)
    assert kept.float().mean().item() == pytest.approx(0.1, abs=0.03)


def test_a_corpus_or_folder_that_will_not_do_is_one_sentence(tmp_path):
    (tmp_path / "mine.txt").write_text("x")
    with pytest.raises(UserError, match="is not empty and holds no language model"):
        train_masked_lm(["Clear lungs.", "No effusion."] * 20, tmp_path, SMALL)
    assert (tmp_path / "mine.txt").read_text() == "x"
    few = {"a b": ["1"], "c d": ["2"]}
    with pytest.raises(UserError, match=r"reports of 5 patients.*min_patients=1"):
        train_masked_lm(list(few), tmp_path / "lm", patients_of=few)
    with pytest.raises(UserError, match="fewer than two"):
        train_masked_lm(["One."], tmp_path / "lm")
    assert not (tmp_path / "lm").exists()
    with pytest.raises(UserError, match="no such language-model folder"):
        language_model_hash(tmp_path / "lm")
    (tmp_path / "config.json").write_text('{"model_type": "gpt2"}')
    with pytest.raises(UserError, match="gpt2"):
        load_masked_lm(tmp_path)


def test_a_table_of_eta_is_read_and_checked(tmp_path):
    path, texts = tmp_path / "eta.csv", ["Nodule.", "No effusion."]
    path.write_text("text,eta\nNo effusion.,0.8\nNodule.,0.01\n")
    assert eta_table(path, texts).tolist() == [0.01, 0.8]
    for content, words in (
        ("text,eta\nNodule.,0.01\n", "1 of 2 sentences"),
        ("text,eta\nNodule.,1.5\n", "row 2"),
        ("sentence,eta\nNodule.,0.5\n", "column 'text' is missing"),
    ):
        path.write_text(content)
        with pytest.raises(UserError, match=words):
            eta_table(path, texts)


def test_a_table_of_eta_keeps_every_sentence_as_it_is_written(tmp_path):
    path = tmp_path / "eta.csv"
    path.write_text("text,eta\nNone,0.5\n12,0.25\nNone,0.5\n")
    assert eta_table(path, ["12", "None"]).tolist() == [0.25, 0.5]
    path.write_text("text,eta\nNodule.,0.5\nNone,0.1\nNodule.,0.25\nNone,0.1\n")
    with pytest.raises(UserError, match=r"eta\.csv, row 4: .* row 2") as caught:
        eta_table(path, ["Nodule."])
    assert "Nodule" not in str(caught.value)


def test_scores_must_be_finite(tmp_path):
    with pytest.raises(ValueError, match="finite"):
        write_scores(tmp_path, ["a"], [float("nan")], [1], "0")


def test_words_need_patients_and_names_and_numbers_stay_out():
    allowed, left_out = allowed_words(PATIENTS_OF, 5)
    assert {"the", "lungs", "are", "clear", "10", "change"} <= allowed
    assert {"swan", "ganz", "dobbhoff"} <= allowed  # eponyms of devices
    assert not allowed & {"echinococcal", "cyst"}
    assert {"echinococcal", "cyst"} <= allowed_words(PATIENTS_OF, 1)[0]
    assert not allowed & {"zebrowska", "quillfeather", "hospital", "5550199"}
    assert left_out >= 2
    assert "Zebrowska" not in without_others("Dr. Zebrowska saw clear lungs.", allowed)


def test_a_folder_holds_no_name_and_its_card_says_what_was_done(tmp_path):
    settings = SMALL.model_copy(update={"vocabulary": 400, "steps": 2, "batch_size": 4})
    corpus = [text for text in PATIENTS_OF for _ in range(50)]
    figures = train_masked_lm(corpus, tmp_path / "lm", settings, patients_of=PATIENTS_OF)
    train_masked_lm(corpus, tmp_path / "all", settings)
    filtered, everything = (
        set(json.loads((tmp_path / name / "tokenizer.json").read_text())["model"]["vocab"])
        for name in ("lm", "all")
    )
    assert {"lungs", "clear"} <= filtered
    assert not {"zebrowska", "quillfeather", "echinococcal", "5550199"} & filtered
    assert "zebrowska" in everything  # what the filter is for
    assert figures["words_left_out"] > 0
    assert "fewer than 5 patients" in (tmp_path / "lm/README.md").read_text()
