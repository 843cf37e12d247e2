"""Prepared sets of the benchmark, and which of their images a card judges.

A set is one archive as one preprocessing wants its images, in ``RESULTS/cache/sets/KEY``: two
models that prepare alike share it, and so do two cards that take the same images and reports.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from medclip_debias.bench.card import Card
from medclip_debias.bench.lists import check_list, list_hash
from medclip_debias.config import Preprocessing, SelectionSettings, json_hash, validate
from medclip_debias.data.prepare import Reading, prepare
from medclip_debias.data.prepare.assemble import MISSING_IMAGES
from medclip_debias.data.prepare.chunks import Progress, Say
from medclip_debias.data.prepare.collect import recipe
from medclip_debias.data.store import PreparedSet
from medclip_debias.data.text.reports import ReportSettings
from medclip_debias.data.verify import check_sample
from medclip_debias.errors import UserError
from medclip_debias.evaluation.item_tables import ItemNames
from medclip_debias.evaluation.protocol import HELD_OUT

NOT_LISTED = "not_listed"
"""Split of the images that an official list leaves out of the judged split."""

PLACES = ("grounding", "segmentation")
"""Kinds of card that ask where in an image a finding is."""

HELD = (*PLACES, "time")
"""Kinds of card that also judge held-out images: those of patients with boxes."""


@dataclass(frozen=True)
class Recipe:
    """How a set is made; equal recipes are one set."""

    archive: Path
    preprocessing: Preprocessing
    selection: SelectionSettings
    reading: Reading

    @classmethod
    def of(cls, card: Card, archive: Path, preprocessing: Preprocessing) -> Recipe:
        """The set that a card needs for a model."""
        where = f"card {card.full_name}"
        selection = validate(SelectionSettings, card.data.prepare, where, "data.prepare.")
        text = validate(ReportSettings, card.data.reports, where, "data.reports.")
        all_test = card.data.list.split == "all"
        reading = Reading(kind=card.data.archive, text=text, all_test=all_test)
        return cls(archive, preprocessing, selection, reading)

    @property
    def key(self) -> str:
        """16 hex digits; what a model does after the stored square is not of the set."""
        how = recipe(self.preprocessing.prepare, self.selection, self.reading)
        return json_hash([str(self.archive.resolve()), self.reading.kind, how])

    def make(
        self, cache: Path, workers: int | None, progress: Progress | None, say: Say | None
    ) -> PreparedSet:
        """Prepare the set, or what is left of it to do, or what changed in the archive."""
        out = cache / "sets" / self.key
        how = {"selection": self.selection, "reading": self.reading, "workers": workers}
        rows = self.preprocessing.prepare
        try:
            data = prepare(self.archive, out, rows, **how, progress=progress)  # type: ignore[arg-type]
        except UserError:
            if not (out / "meta.json").is_file():
                raise
            # Of an earlier version, or the archive changed since.
            data = prepare(self.archive, out, rows, **how, progress=progress, update=True)  # type: ignore[arg-type]
            if say:
                say(f"{self.archive}: changed, or was prepared by another version; read again.")
        check_sample(data)
        return data


@dataclass(frozen=True)
class CardImages:
    """The images that a card judges."""

    data: PreparedSet
    split: str
    listed: frozenset[str]
    found: frozenset[str]
    missing: int

    @property
    def list_hash(self) -> str:
        """Equal for two sets in which the same images are judged."""
        return list_hash(self.found)

    @property
    def names(self) -> ItemNames:
        """What items are called: by a key that those who have the same list can compute."""
        text = "\n".join(["medclip-debias bench", *sorted(self.listed)])
        return ItemNames(list_hash(self.listed), hashlib.sha256(text.encode()).digest())


def card_images(card: Card, archive: Path, recipe: Recipe, data: PreparedSet) -> CardImages:
    """Find the card's images in a prepared set.

    Where the archive has an official list, the listed images are judged, whatever split the set
    gave them. Else those of the card's split are, and those that its tables put there and that are
    not on the disk, or cannot be read, are missing.
    """
    split = "test" if card.data.list.split == "all" else card.data.list.split
    images = data.images
    listed = check_list(card, archive)
    if listed is not None:
        among = listed.among(images["image_id"].tolist())
        if not among.image_ids:
            raise UserError(
                f"{listed.file}: none of its {len(listed.names)} images is among the"
                f" {len(images)} of {archive}; the list and the images are of two releases."
            )
        names = frozenset(listed.names), frozenset(among.image_ids)
        return CardImages(only_listed(data, names[1], split), split, *names, among.missing)
    judged = {split, HELD_OUT} if card.kind in HELD else {split}
    there = images.loc[images["split"].isin(judged), "image_id"]
    found = frozenset(map(str, there))
    lost = _lost(data, recipe, judged) - found
    return CardImages(data, split, found | lost, found, len(lost))


def only_listed(data: PreparedSet, found: Collection[str], split: str) -> PreparedSet:
    """The same set, whose ``split`` has the images ``found`` and no others."""
    images = data.images
    listed = images["image_id"].isin(found)
    judged = images["split"].isin({split, HELD_OUT})
    changed = PreparedSet(data.folder, data.meta, data.settings)
    changed.images = images.assign(
        split=images["split"].mask(judged, NOT_LISTED).mask(listed, split)
    )
    return changed


def _lost(data: PreparedSet, recipe: Recipe, judged: Collection[str]) -> set[str]:
    """Ids of the judged images whose files are not there or cannot be read."""
    names: set[str] = set()
    for file in (MISSING_IMAGES, "rejected.csv"):
        path = data.folder / file
        if path.is_file():
            table = pd.read_csv(path, dtype=str, keep_default_na=False)
            names |= set(table["image_id"])
    if not names:
        return set()
    source = recipe.reading.source(recipe.archive)  # it alone knows the split of what is missing
    named = recipe.reading.split(source)
    held_out = source.held_out_patients() if HELD_OUT in judged else frozenset()
    lost = set()
    for image in source.images():
        if image.image_id in names:
            split = image.split if named is None else named.studies.get(image.study_id, "")
            split = "test" if recipe.reading.all_test else split
            if split in judged or image.patient_id in held_out:
                lost.add(image.image_id)
    return lost
