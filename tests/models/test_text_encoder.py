"""BERT and CXR-BERT folders: tokenizer, [CLS] feature, projection head, what is refused."""

from __future__ import annotations

import json

import pytest
import torch
import torch.nn.functional as F

from medclip_debias.errors import UserError
from medclip_debias.models.text_encoder import (
    SentenceTokenizer,
    TextEncoder,
    load_masked_lm,
    read_bert_state,
)

SENTENCES = ["No pleural effusions", "left", "no left pleural effusion"]


def test_vocab_txt_gives_wordpiece_with_cls_and_sep(bert_folder):
    tokenizer = SentenceTokenizer.load(bert_folder)
    (ids,) = tokenizer.encode(["No pleural effusions"], 32)
    assert tokenizer.tokens(ids) == ["[CLS]", "no", "pleural", "effusion", "##s", "[SEP]"]
    assert tokenizer.size == 10


def test_a_long_sentence_is_cut_and_still_ends_in_sep(bert_folder):
    tokenizer = SentenceTokenizer.load(bert_folder)
    (ids,) = tokenizer.encode(["no no no no no no"], 4)
    assert tokenizer.tokens(ids) == ["[CLS]", "no", "no", "[SEP]"]


def test_cxr_bert_has_its_projection_head(cxr_bert_folder):
    encoder = TextEncoder.from_folder(cxr_bert_folder).eval()
    tokenizer = SentenceTokenizer.load(cxr_bert_folder)
    state = read_bert_state(cxr_bert_folder)
    ids, mask = tokenizer.pad(tokenizer.encode(SENTENCES, 32))
    with torch.no_grad():
        cls = encoder.bert(input_ids=ids, attention_mask=mask).last_hidden_state[:, 0]
        h = "cls_projection_head."
        x = F.gelu(cls @ state[h + "dense_to_hidden.weight"].T + state[h + "dense_to_hidden.bias"])
        x = F.layer_norm(
            x, (6,), state[h + "LayerNorm.weight"], state[h + "LayerNorm.bias"], eps=1e-12
        )
        expected = x @ state[h + "dense_to_output.weight"].T + state[h + "dense_to_output.bias"]
        torch.testing.assert_close(encoder(ids, mask), expected)
    assert encoder.width == 6
    assert TextEncoder.from_folder(cxr_bert_folder, use_projection_head=False).width == 16


def test_cxr_bert_scores_sentences_without_remote_code(cxr_bert_folder):
    model = load_masked_lm(cxr_bert_folder)
    state = read_bert_state(cxr_bert_folder)
    assert torch.equal(
        model.bert.embeddings.word_embeddings.weight.data,
        state["bert.embeddings.word_embeddings.weight"],
    )


def test_folders_that_do_not_fit_are_named(bert_folder, tmp_path):
    config = json.loads((bert_folder / "config.json").read_text())
    (bert_folder / "config.json").write_text(json.dumps(config | {"hidden_size": 8}))
    with pytest.raises(UserError, match="do not fit its config"):
        TextEncoder.from_folder(bert_folder)
    (bert_folder / "config.json").write_text("{")
    with pytest.raises(UserError, match="cannot be read as JSON"):
        TextEncoder.from_folder(bert_folder)
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match=r"neither tokenizer\.json nor vocab\.txt"):
        SentenceTokenizer.load(tmp_path / "empty")
    (bert_folder / "vocab.txt").write_text("just\nwords\n")
    with pytest.raises(UserError, match=r"\[PAD\]"):
        SentenceTokenizer.load(bert_folder)
