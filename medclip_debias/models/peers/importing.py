"""From the files that other groups publish to a peer folder."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, get_args

from huggingface_hub import ModelCard
from torch import Tensor

from medclip_debias.config import PrepareSettings, validate
from medclip_debias.errors import UserError, explained, one_of
from medclip_debias.files import check_out, file_hash, read_bytes
from medclip_debias.models.checkpoint import (
    load_strictly,
    read_checkpoint,
    uninitialised,
    weight_file,
)
from medclip_debias.models.peers.checkpoints import named_tensors, read_published
from medclip_debias.models.peers.families import family
from medclip_debias.models.peers.folder_models import MODEL_TYPES, read_folder
from medclip_debias.models.peers.open_clip import read_open_clip
from medclip_debias.models.peers.peer import FILE, Peer
from medclip_debias.models.peers.settings import Kind, Score

BAD = (AssertionError, ValueError, TypeError, ZeroDivisionError, RuntimeError, AttributeError)
"""What building a model of numbers that do not fit raises, in one library or another."""
KINDS: tuple[Kind, ...] = get_args(Kind)
SIDE_FILES = [
    "config.json",
    "preprocessor_config.json",
    "tokenizer_config.json",
    "tokenizer.json",
    "spiece.model",
    "merges.txt",
]
"""What is read of a folder beside its weights."""


def import_model(
    kind: str,
    weights: Path,
    out: Path,
    *,
    text: Path | None = None,
    config: Path | None = None,
    golden: bool = False,
    score: str = "whole",
    levels: str | None = None,
    fit: str | None = None,
) -> Peer:
    """Read published files, check every tensor, write the peer folder ``out``, and load it.

    Args:
        kind: one of `KINDS`.
        weights: the published checkpoint, or the folder that transformers wrote.
        out: folder to write.
        text: BERT folder, or for CLIP's tokenizer ``bpe_simple_vocab_16e6.txt.gz``.
        config: ``open_clip_config.json`` (open_clip), ``preprocessor_config.json`` (radzero,
            conns), or the questions (kad, medklip).
        golden: store golden samples, with which every later loading tests the machine.
        score: by what it shall score (GLoRIA).
        levels: of 8-bit files, ``stretched`` or ``as_stored``; None as published.
        fit: how an image becomes a square, ``pad``, ``crop`` or ``squash``; None as published.
    """
    kind = one_of(kind, KINDS, "kind of model")
    one_of(score, get_args(Score), "score")
    check_out(out, FILE, "imported model")
    if score != "whole" and kind != "gloria":
        raise UserError(f"only gloria has a local score; leave --score {score} out for {kind}.")
    files = [path for path in (weights, text, config) if path is not None]
    folder = weights.parent if weights.is_file() else weights
    if kind in MODEL_TYPES:
        if text or config:
            raise UserError(f"{kind} is read from its one folder; leave --text and --config out.")
        if not folder.is_dir():
            raise UserError(f"{folder}: there is no such folder; {kind} is read from a folder.")
        weights = weight_file(folder)
        files = [weights, *(folder / name for name in SIDE_FILES)]
    published, where = read_checkpoint(weights), str(weights)
    unused: Counter[str] = Counter()
    misfit = f"{where}: a tensor of another shape than this model's"
    with _of_file(where), explained(misfit, *BAD, LookupError):
        state = named_tensors(family(kind), published, where, unused)
        if kind in MODEL_TYPES:
            read = read_folder(kind, folder, state, where)
        else:
            reader = read_open_clip if kind in ("chexzero", "open_clip") else read_published
            read = reader(kind, state, text, config, where, unused)
    settings, state, tokenizer, preprocessing = read
    change: dict[str, Any] = {"score": score}
    if settings.fusion is None:
        change |= _learned_by_loss(published)
    settings = settings.model_copy(update=change)
    asked = {name: value for name, value in (("levels", levels), ("fit", fit)) if value}
    prepare = validate(PrepareSettings, preprocessing.prepare.model_dump() | asked, "import-model")
    preprocessing = preprocessing.model_copy(update={"prepare": prepare})
    provenance = {
        "imported": {path.name: file_hash(path) for path in files if path.is_file()},
        "licence": licence_line(kind, weights, text),
        "unused_tensors": dict(unused),
    }
    misfit = f"{where}: the widths and heads of this model do not fit together"
    with _of_file(where), explained(misfit, *BAD), uninitialised():
        peer = Peer(settings, preprocessing, tokenizer, provenance, state)
    load_strictly(peer, state, where)
    peer.eval().save(out, golden=golden)
    return Peer.load(out)


@contextmanager
def _of_file(where: str) -> Iterator[None]:
    """Let an error about the tensors name their file."""
    try:
        yield
    except UserError as error:
        if not str(error).startswith("these weights"):
            raise
        raise UserError(f"{where}: {error}") from error


def _learned_by_loss(state: Mapping[str, Tensor]) -> dict[str, float | None]:
    """Scale and SigLIP's bias of `PeerSettings`, as far as the file holds them."""
    learned: dict[str, float | None] = {}
    for name, value in state.items():
        if name.rpartition(".")[2] == "logit_scale" and value.numel() == 1:
            scale = float(value.double().exp())
            learned["scale"] = scale if 0 < scale <= 1e4 else None
            break
    bias = state.get("logit_bias")
    if bias is not None and bias.numel() == 1 and abs(float(bias)) <= 1e4:
        learned["bias"] = float(bias)
    return learned


def licence_line(kind: Kind, *places: Path | None) -> str:
    """One line on the terms of weights: the folder's own word, or what is known of the kind."""
    folders = [place if place.is_dir() else place.parent for place in places if place is not None]
    for folder in folders:
        if stated := _card_licence(folder / "README.md"):
            return f"{stated} (README.md beside the weights)"
    for folder in folders:
        for name in ("LICENSE", "LICENSE.txt", "LICENSE.md", "LICENCE"):
            if (folder / name).is_file():
                return f"see {name} beside the weights"
    return family(kind).licence


def _card_licence(path: Path) -> str | None:
    """``license`` of a model card's front matter: name and link, or the short word."""
    try:
        text = read_bytes(path, "", limit=4 << 20).decode("utf-8", errors="replace")
        content = ModelCard(text, ignore_metadata_errors=True).data.to_dict()
    except Exception:  # no card, or one whose front matter is none
        return None
    named = content.get("license_name") or content.get("license")
    named = ", ".join(map(str, named)) if isinstance(named, list) else named
    if not isinstance(named, str) or not named.strip():
        return None
    link = content.get("license_link")
    words = f"{named}, {link}" if isinstance(link, str) and link else named
    return " ".join(words.split())[:300]
