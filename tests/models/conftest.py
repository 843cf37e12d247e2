"""A small BERT folder and a small CXR-BERT folder, as their publishers lay them out."""

from __future__ import annotations

import json

import pytest
import torch

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "no", "pleural", "effusion", "##s", "left"]


def write_bert(folder, *, projection=None, seed=0, **sizes):
    from transformers import BertConfig, BertForMaskedLM

    folder.mkdir()
    torch.manual_seed(seed)
    usual = {"vocab_size": len(WORDS), "hidden_size": 16, "num_hidden_layers": 2}
    usual |= {"num_attention_heads": 2, "intermediate_size": 32, "max_position_embeddings": 32}
    config = BertConfig(**usual | sizes)
    model = BertForMaskedLM(config).eval()
    state = dict(model.state_dict())
    content = config.to_dict() | {"model_type": "bert"}
    if projection:
        content |= {
            "model_type": "cxr-bert",
            "projection_size": projection,
            "auto_map": {"AutoModel": "modeling_cxrbert.CXRBertModel"},
        }
        head = "cls_projection_head."
        state |= {
            head + "dense_to_hidden.weight": torch.randn(projection, 16),
            head + "dense_to_hidden.bias": torch.randn(projection),
            head + "LayerNorm.weight": torch.randn(projection),
            head + "LayerNorm.bias": torch.randn(projection),
            head + "dense_to_output.weight": torch.randn(projection, projection),
            head + "dense_to_output.bias": torch.randn(projection),
        }
    torch.save(state, folder / "pytorch_model.bin")
    (folder / "config.json").write_text(json.dumps(content))
    (folder / "vocab.txt").write_text("\n".join(WORDS) + "\n")
    return folder, model


@pytest.fixture
def bert_folder(tmp_path):
    return write_bert(tmp_path / "bert")[0]


@pytest.fixture
def cxr_bert_folder(tmp_path):
    return write_bert(tmp_path / "cxr-bert", projection=6)[0]
