"""The books of KAD and MedKLIP: which questions are asked together, and prompts that ask them.

Lists and names from the public repositories xiaoman-zhang/KAD (``test_chestxray14.py``) and
MediaBrain-SJTU/MedKLIP (``Sample_zero-shot_Classification_CXR14/test.py``). MedKLIP's descriptions
come from the user's file.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from medclip_debias.errors import UserError
from medclip_debias.files import read_json
from medclip_debias.models.peers.settings import Kind, PeerSettings

_KAD = [
    "atelectasis",
    "cardiomegaly",
    "pleural effusion",
    "infiltration",
    "lung mass",
    "lung nodule",
    "pneumonia",
    "pneumothorax",
    "consolidation",
    "edema",
    "emphysema",
    "fibrosis",
    "pleural thicken",
    "hernia",
]
_KAD_NAMES = {
    "effusion": "pleural effusion",
    "pleural effusions": "pleural effusion",
    "mass": "lung mass",
    "nodule": "lung nodule",
    "pleural thickening": "pleural thicken",
    "pulmonary edema": "edema",
}
_MEDKLIP_NAMES = {
    # The published file has "eumonia" where the published code reads "pneumonia".
    "pneumonia": "eumonia",
    "pleural effusion": "effusion",
    "pleural effusions": "effusion",
    "infiltration": "infiltrate",
    "pleural thickening": "thicken",
    "lung mass": "mass",
    "lung nodule": "nodule",
    "pulmonary edema": "edema",
    "lung opacity": "opacity",
    # "Fibrosis seldom appears in MIMIC-CXR", and is asked as the rare findings.
    "fibrosis": "tail_abnorm_obs",
}
_FINDINGS = ("Cardiomegaly", "Edema", "Pleural Effusion", "Pneumonia", "Pneumothorax")


def read_book(kind: Kind, path: Path | None) -> dict[str, str]:
    """The questions of a kind by name; empty for a kind that asks none.

    Args:
        kind: of KAD those of its ChestX-ray14 evaluation where there is no file; of MedKLIP the
            entities and their descriptions, in the file's order, and other names of them.
        path: a JSON object of names to texts.
    """
    if kind not in ("kad", "medklip"):
        return {}
    if path is None and kind == "kad":
        return {name: name for name in _KAD} | _KAD_NAMES
    if path is None:
        raise UserError(
            "medklip needs its book of descriptions ('observation explanation.json' in its "
            "authors' repository); name it with --config."
        )
    book = read_json(path, "give a JSON object of names to questions")
    if not book or not all(isinstance(text, str) and text.strip() for text in book.values()):
        raise UserError(f"{path}: is no JSON object of names to texts, the questions to be asked.")
    names = _MEDKLIP_NAMES if kind == "medklip" else {}
    more = {name: book[entity] for name, entity in names.items() if entity in book}
    return book | {name: text for name, text in more.items() if name not in book}


def book_prompts(settings: PeerSettings) -> dict[str, Any]:
    """A chex5 prompt set that asks by the book's names; none without a book, or such names."""
    book = {} if settings.fusion is None else settings.fusion.book
    names = {name.lower() for name in book}
    classes = {
        name: {"positive": [name.lower()], "negative": [f"no {name.lower()}"]}
        for name in _FINDINGS
        if name.lower() in names
    }
    return {"chex5": {"name": f"chex5 ({settings.kind})", "classes": classes}} if classes else {}
