"""Splits: the words for them, a seeded split by patient, and the check that none leaks."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from pathlib import Path

from medclip_debias.data.records import ImageRecord
from medclip_debias.errors import UserError

SPLIT_SEED = 0
SHARES = {"train": 0.8, "validate": 0.1, "test": 0.1}
"""Shares of patients in each split when the source names none."""

_WORDS = {
    **dict.fromkeys(("train", "training"), "train"),
    **dict.fromkeys(("validate", "validation", "valid", "val", "dev"), "validate"),
    **dict.fromkeys(("test", "testing"), "test"),
}


def seeded_split(patient_id: str, seed: int = SPLIT_SEED) -> str:
    """Return the split of a patient: a pure function of the id, in the shares of `SHARES`.

    A hash rather than a shuffle: adding patients never moves those already there.
    """
    digest = hashlib.sha256(f"{seed}:{patient_id}".encode()).digest()
    place = int.from_bytes(digest[:8], "big") / 2**64
    for split, share in SHARES.items():
        place -= share
        if place < 0:
            return split
    return "test"


def split_name(word: str, where: str) -> str:
    """Return the split that ``word`` names; ``where`` names file and row for the message.

    >>> split_name("Val", "a.csv, row 2")
    'validate'
    """
    split = _WORDS.get(word.strip().lower())
    if split is None:
        raise UserError(f"{where}: its split is not one of {', '.join(SHARES)}.")
    return split


def splits_of(path: Path, rows: Iterable[tuple[int, str, str]], what: str) -> dict[str, str]:
    """Return the split of each name in a table."""
    splits: dict[str, str] = {}
    for row, name, word in rows:
        split = split_name(word, f"{path}, row {row}")
        if splits.setdefault(name, split) != split:
            raise UserError(
                f"{path}, row {row}: its {what} has another split in a row above; keep one row."
            )
    return splits


def check_leak(images: Sequence[ImageRecord]) -> None:
    """Stop when a study has two patients, or a study or a patient is in two splits.

    Images without a split are in none. The message names the rows, never the patient.
    """
    patients: dict[str, ImageRecord] = {}
    studies: dict[str, ImageRecord] = {}
    owners: dict[str, ImageRecord] = {}
    for image in images:
        other = owners.setdefault(image.study_id, image)
        if other.patient_id != image.patient_id:
            raise UserError(
                f"{image.origin}: the study of this image belongs to another patient in"
                f" {other.origin}; give each study one patient."
            )
        if not image.split:
            continue
        for what, key, first in (
            ("study", image.study_id, studies),
            ("patient", image.patient_id, patients),
        ):
            other = first.setdefault(key, image)
            if other.split != image.split:
                raise UserError(
                    f"{image.origin}: the {what} of this {image.split} image also has a"
                    f" {other.split} image ({other.origin}); give each {what} one split."
                )
