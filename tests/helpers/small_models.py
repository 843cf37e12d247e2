"""Small models for tests: BERT folders as published, models of this project and of others."""

from __future__ import annotations

import json

import torch

from medclip_debias.config import ModelSettings, PrepareSettings, Preprocessing
from medclip_debias.models.dual_encoder import DualEncoder
from medclip_debias.models.peers.peer import Peer
from medclip_debias.models.peers.settings import PeerSettings
from medclip_debias.models.text_encoder import SentenceTokenizer

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "no", "pleural", "effusion", "##s", "left"]


def edit_json(path, **changes):
    """Change fields of a JSON object in a file; what it was before."""
    content = json.loads(path.read_text())
    path.write_text(json.dumps(content | changes))
    return content


def write_bert(folder, *, projection=None, seed=0, words=WORDS, **sizes):
    """A BERT, or with ``projection`` a CXR-BERT, of the vocabulary ``words``: folder and model."""
    from transformers import BertConfig, BertForMaskedLM

    folder.mkdir()
    torch.manual_seed(seed)
    usual = {"vocab_size": len(words), "hidden_size": 16, "num_hidden_layers": 2}
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
        shapes = {
            "dense_to_hidden.weight": (projection, 16),
            "dense_to_hidden.bias": (projection,),
            "LayerNorm.weight": (projection,),
            "LayerNorm.bias": (projection,),
            "dense_to_output.weight": (projection, projection),
            "dense_to_output.bias": (projection,),
        }
        head = {f"cls_projection_head.{k}": torch.randn(*shape) for k, shape in shapes.items()}
        state |= head
    torch.save(state, folder / "pytorch_model.bin")
    (folder / "config.json").write_text(json.dumps(content))
    (folder / "vocab.txt").write_text("\n".join(words) + "\n")
    return folder, model


def dual_encoder(folder, arch="resnet_small", size=40, side=32, clip=(0.5, 99.5), **more):
    """A model of this project with weights at random."""
    torch.manual_seed(0)
    settings = {
        "image": {"arch": arch},
        "text": {"folder": str(folder), "max_tokens": 16},
        "dim": 8,
    }
    place = Preprocessing(prepare=PrepareSettings(size=size, clip=clip), input_size=side)
    return DualEncoder.create(ModelSettings.model_validate(settings | more), place).eval()


def make_peer(language, how, shapes=None, text=None, provenance=None, tokenizer=None, **content):
    """Another group's model with weights at random, its images prepared as ``how`` says.

    Its text's ``config`` is that of the BERT folder ``language``; ``shapes`` are of tensors that
    sizes are read off.
    """
    torch.manual_seed(0)
    config = json.loads((language / "config.json").read_text())
    text = {"kind": "bert", "config": config} | (text or {})
    content = {"kind": "open_clip", "dim": 16, "max_tokens": 16, "text": text} | content
    settings = PeerSettings.model_validate(content)
    tokenizer = tokenizer or SentenceTokenizer.load(language)
    state = {name: torch.empty(shape) for name, shape in (shapes or {}).items()}
    peer = Peer(settings, how, tokenizer, provenance, state)
    with torch.no_grad():
        for value in peer.parameters():
            if value.abs().max() == 0:  # class tokens, places, projections
                value.normal_(std=0.2)
    return peer.eval()
