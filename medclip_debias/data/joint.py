"""Several prepared sets as one, for training: one behind the other, nothing is copied.

Ids get the name of their set, so that two archives may use the same. Patients stay on one side of
every split: who is judged in one set is not learned from in another. Sets whose patient ids mean
the same people are those of one archive (`ARCHIVES`), or of one ``patients`` in the settings;
patients of any sets who share a film, pixel by pixel, are one person.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from medclip_debias.config import SetSettings
from medclip_debias.data.layout import MANIFEST
from medclip_debias.data.sources.ids import plain_id
from medclip_debias.data.store import PreparedSet, read_table
from medclip_debias.errors import UserError, counted

ARCHIVES: Mapping[str, str] = {
    "rsna": "chestxray14",  # by RSNA's own table of its images
    "chexpert_plus": "chexpert",
    "chexlocalize": "chexpert",
    "padchest_gr": "padchest",
}
"""Kinds of source whose patients are those of another kind; each of the others is its own."""
FAMILIES = (
    frozenset(("chestxray14", "rsna", "siim", "chestx_det")),
    frozenset(("chexpert", "chexpert_plus", "chexlocalize")),
    frozenset(("padchest", "padchest_gr")),
)
"""Kinds of source whose images come from one archive: RSNA's, SIIM's and ChestX-Det's are images of
ChestX-ray14, under other names."""
SPLITS = ("test", "held_out", "validate", "train")
"""A patient who is in several splits stays in the first of these alone."""
ASIDE = "aside"
"""Split of images and studies that are left aside for their patient."""
_IDS = {"image_id", "study_id", "phrase_id"}


def open_prepared(sets: Path | Sequence[SetSettings]) -> PreparedSet:
    """Open a prepared set, or several as one."""
    if isinstance(sets, Path):
        return PreparedSet.open(sets)
    if len(sets) == 1 and sets[0].weight:  # alone its claims and evidence are those of its folder
        return PreparedSet.open(sets[0].path)
    return JointSet(sets)


class JointSet(PreparedSet):
    """Prepared sets one behind the other, as tables and pixels of one.

    Images and studies of patients whom another set judges are in the split `ASIDE`.

    Attributes:
        folder: that of the first set.
        weights: of each set.
        batches: name of the batches that each set has a part in.
        aside: by the name of a set, how many ``patients``, ``studies`` and ``images`` are left
            aside because another set has the patient in another split.
    """

    def __init__(self, sets: Sequence[SetSettings]) -> None:
        self._parts = [PreparedSet.open(each.path) for each in sets]
        self.weights = [each.weight for each in sets]
        self.batches = [each.batches for each in sets]
        if not any(self.weights):
            raise UserError("every prepared set has weight 0; give one a weight above 0.")
        first = self._parts[0]
        for number, part in enumerate(self._parts):
            if part.settings != first.settings:
                raise UserError(
                    f"{part.folder}: was prepared with '{part.settings.command_line()}', but"
                    f" {first.folder} with '{first.settings.command_line()}'; prepare them with the"
                    " same settings to train on both."
                )
            if part.content_hash in {other.content_hash for other in self._parts[:number]}:
                raise UserError(
                    f"{part.folder}: is listed twice (or copied); list it once, with its weight."
                )
        names = [part.folder.name for part in self._parts]
        self.names = [
            name if names.count(name) == 1 else str(part.folder)
            for name, part in zip(names, self._parts, strict=True)
        ]
        kinds = [str(part.meta["kind"]) for part in self._parts]
        self._people = [
            each.patients or ARCHIVES.get(kind, kind)
            for each, kind in zip(sets, kinds, strict=True)
        ]
        self._splits, self.aside = self._splits_of_patients()
        content = [
            [part.content_hash, weight, people, *([batches] if any(self.batches) else [])]
            for part, weight, people, batches in zip(
                self._parts, self.weights, self._people, self.batches, strict=True
            )
        ]
        meta = {
            "content_hash": hashlib.sha256(json.dumps(content).encode()).hexdigest(),
            "kind": "+".join(dict.fromkeys(kinds)),
            "synthetic": any(part.meta.get("synthetic") for part in self._parts),
            "counts": {"images": sum(map(len, self._parts))},
            "sets": [part.content_hash for part in self._parts],
        }
        super().__init__(first.folder, meta, first.settings)

    @property
    def parts(self) -> Sequence[PreparedSet]:
        """The sets."""
        return self._parts

    def by_name(self) -> dict[str, JointSet]:
        """Each set alone, without what is left aside in all of them together."""
        alone = {}
        for number, (name, part) in enumerate(zip(self.names, self._parts, strict=True)):
            view = JointSet.__new__(JointSet)
            PreparedSet.__init__(view, part.folder, part.meta, part.settings)
            view._parts, view.weights, view.names = [part], [self.weights[number]], [name]
            view.batches = [self.batches[number]]
            view._people, view._splits = [self._people[number]], self._splits
            view.aside = {k: v for k, v in self.aside.items() if k == name}
            alone[name] = view
        return alone

    @property
    def starts(self) -> NDArray[np.int64]:
        """``[sets + 1]``, the row at which each set begins, and where the last one ends."""
        return np.cumsum([0, *map(len, self._parts)])

    def describe(self) -> list[str]:
        """Return a sentence on each set of which something is left aside, and on what may leak."""
        said = [
            f"{name}: {counted(counts['patients'], 'patient')} in another split elsewhere, with"
            f" {counted(counts['images'], 'image')}, left aside (if ids of this set mean other"
            " people, name them in its 'patients')"
            for name, counts in self.aside.items()
        ]
        kinds = [str(part.meta["kind"]) for part in self._parts]
        for family in FAMILIES:
            pairs = zip(kinds, self._people, strict=True)
            apart = {kind: name for kind, name in pairs if kind in family}
            if len(set(apart.values())) > 1:
                said.append(
                    f"{' and '.join(sorted(apart))}: their films are of one archive under other"
                    " patient ids; who is judged in one may be learned from in another unless the"
                    " pixels are the same"
                )
        return said

    @property
    def drawn(self) -> NDArray[np.bool_]:
        """``[n]``, the images of sets that have a weight."""
        return np.repeat(np.array(self.weights) > 0, np.diff(self.starts))

    @cached_property
    def frontal(self) -> NDArray[np.bool_]:
        """``[n]``, which images count as frontal in their set."""
        return np.concatenate([part.frontal for part in self._parts])

    @cached_property
    def pixels(self) -> NDArray[np.uint8]:
        """Images ``[n, size, size]`` of all sets, read where they lie."""
        pixels: Any = JointPixels([part.pixels for part in self._parts])
        return pixels

    def scores(self, expected_hash: str | None = None) -> dict[str, float]:
        """Return the log-probability of every sentence; all by one language model."""
        scores: dict[str, float] = {}
        for part in self._parts:
            scores |= part.scores(expected_hash)
            expected_hash = expected_hash or part.scored_by
        return scores

    def _table(self, name: str) -> pd.DataFrame:
        """The rows of all sets; a label that a set does not have is blank there."""
        tables = []
        for number, part in enumerate(self._parts):
            table = getattr(part, name).copy()
            for column in _IDS & set(table.columns):
                table[column] = f"{self.names[number]}/" + table[column].astype(str)
            if "patient_id" in table:
                table["patient_id"] = self._patients(number, table)
                allowed = table["patient_id"].map(self._splits)
                table["split"] = table["split"].where(table["split"] == allowed, ASIDE)
            tables.append(table)
        return pd.concat(tables, ignore_index=True)

    def _patients(self, number: int, table: pd.DataFrame) -> pd.Series[str]:
        return f"{self._people[number]}/" + table["patient_id"].astype(str).map(plain_id)

    def _splits_of_patients(self) -> tuple[dict[str, str], dict[str, dict[str, int]]]:
        """The split that each patient stays in, and what that leaves aside in which set."""
        tables, films = [], []
        for number, part in enumerate(self._parts):
            table = part.studies[["study_id", "patient_id", "split"]].astype(str)
            tables.append(table.assign(patient_id=self._patients(number, table)))
            path = part.folder / MANIFEST
            pixels = read_table(path, "run 'prepare' again", ["study_id", "pixel_hash"])
            films.append(pixels.merge(tables[-1], on="study_id")[["patient_id", "pixel_hash"]])
        ranks = {split: rank for rank, split in enumerate(SPLITS)}
        everyone = pd.concat(tables)
        person = everyone["patient_id"].map(_one_person(pd.concat(films)))
        ranked = everyone["split"].map(ranks).groupby(person).transform("min")
        pairs = zip(everyone["patient_id"], ranked, strict=True)
        splits = {str(patient): SPLITS[int(rank)] for patient, rank in pairs}
        aside = {}
        for number, (part, table) in enumerate(zip(self._parts, tables, strict=True)):
            moved = table[table["split"] != table["patient_id"].map(splits)]
            if len(moved):
                images = part.images["study_id"].astype(str).isin(set(moved["study_id"])).sum()
                aside[self.names[number]] = {
                    "patients": int(moved["patient_id"].nunique()),
                    "studies": len(moved),
                    "images": int(images),
                }
        return splits, aside


def _one_person(films: pd.DataFrame) -> Callable[[str], str]:
    """Return what gives patients one name who share a film under several ids."""
    other_names: dict[str, str] = {}

    def name_of(patient: str) -> str:
        while patient in other_names:
            patient = other_names[patient]
        return patient

    films = films[films["pixel_hash"] != ""].drop_duplicates()  # reports alone have no pixels
    shared = films[films.duplicated("pixel_hash", keep=False)]
    for _, patients in shared.groupby("pixel_hash")["patient_id"]:
        first, *others = dict.fromkeys(map(name_of, patients))
        other_names.update(dict.fromkeys(others, first))
    return name_of


class JointPixels:
    """Images of several sets by one number, as `medclip_debias.data.store.PreparedSet.pixels`."""

    dtype = np.dtype(np.uint8)

    def __init__(self, parts: Sequence[NDArray[np.uint8]]) -> None:
        self._parts = parts
        self._ends = np.cumsum([len(part) for part in parts])
        self.shape = (int(self._ends[-1]), *parts[0].shape[1:])

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, index: Any) -> NDArray[np.uint8]:
        rows, inner = (index[0], index[1:]) if isinstance(index, tuple) else (index, ())
        if isinstance(rows, int | np.integer):
            if not 0 <= rows < len(self):
                raise IndexError(f"row {rows} of {len(self)}")
            part = int(np.searchsorted(self._ends, rows, side="right"))
            before = int(self._ends[part - 1]) if part else 0
            return np.asarray(self._parts[part][(int(rows) - before, *inner)])
        rows = range(*rows.indices(len(self))) if isinstance(rows, slice) else rows
        chosen = [self[(int(row), *inner)] for row in rows]
        return np.stack(chosen) if chosen else np.zeros((0, *self.shape[1:]), dtype=np.uint8)
