"""Which images a card judges: its archive, the official list of it, and the prepared set.

An archive is the folder itself, one that the card names, or whatever lies right below; it is taken
when its format recognises it, and of several by names and by how sure the format is, never by the
order of a directory. A list is read from the user's own copy, compared with what the card says of
it, and never stored. A set is one archive as one preprocessing wants its images, in
``RESULTS/cache/sets/KEY``: two models that prepare alike share it, and so do two cards that take
the same images and reports.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pandas as pd

from medclip_debias.bench.card import Card
from medclip_debias.config import Preprocessing, SelectionSettings, json_hash, validate
from medclip_debias.data.prepare import Reading, prepare
from medclip_debias.data.prepare.assemble import MISSING_IMAGES
from medclip_debias.data.prepare.chunks import Progress, Say
from medclip_debias.data.prepare.collect import recipe
from medclip_debias.data.records import file_stem
from medclip_debias.data.sources.archive import find_table
from medclip_debias.data.sources.ids import is_blank
from medclip_debias.data.sources.image_files import is_file
from medclip_debias.data.sources.paths import PathFinder
from medclip_debias.data.sources.registry import Sure, formats
from medclip_debias.data.sources.tables import read_table
from medclip_debias.data.store import PreparedSet
from medclip_debias.data.synthetic import is_phantom
from medclip_debias.data.text.reports import ReportSettings
from medclip_debias.data.verify import check_sample
from medclip_debias.errors import UserError
from medclip_debias.evaluation.item_tables import ItemNames
from medclip_debias.evaluation.protocol import HELD_OUT
from medclip_debias.files import read_json_value, read_text

NOT_LISTED = "not_listed"
"""Split of the images that an official list leaves out of the judged split."""

PLACES = ("grounding", "segmentation")
"""Kinds of card that ask where in an image a finding is."""

HELD = (*PLACES, "time")
"""Kinds of card that also judge held-out images: those of patients with boxes."""


class Archives:
    """The archives below ``root``."""

    def __init__(self, root: Path) -> None:
        if not root.is_dir():
            raise UserError(f"{root}: there is no such folder; give the one that holds archives.")
        below = sorted(path for path in root.iterdir() if not path.name.startswith("."))
        self.root, self.places = root, [root, *below]
        self._how_sure = cache(_how_sure)

    def of(self, card: Card) -> Path:
        """The archive of a card."""
        kind = card.data.archive
        if kind not in formats():
            raise UserError(
                f"this version does not know the archive '{kind}'; use a newer version."
            )
        hinted = [path for name in card.data.folders if (path := self.root / name).exists()]
        other = [path for path in self.places if path not in hinted]
        found: list[tuple[bool, int, Path]] = []
        odd: list[UserError] = []
        for path in (*hinted, *other):
            try:
                sure = self._how_sure(path, kind)
            except UserError as error:  # two releases in one folder
                odd.append(error)
                continue
            if sure > Sure.FILES or (sure == Sure.FILES and self._nothing_surer(path, kind)):
                found.append((path in hinted, int(sure), path))
        fitting = [each for each in found if is_phantom(each[2]) == card.data.synthetic]
        if fitting:  # the first of the best: a hinted name before a sure format before the order
            return max(fitting, key=lambda each: each[:2])[2]
        if odd:
            raise odd[0]
        title = "phantom" if card.data.synthetic else formats()[kind].title
        obtain = card.data.obtain.rstrip(".")
        if found:
            place = found[0][2]
            what = "a phantom, and the card is of real radiographs"
            if card.data.synthetic:
                what = "real, and the card is of generated radiographs"
            raise UserError(f"{place}: is {what}; what the card needs is: {obtain}.")
        raise UserError(f"{self.root}: there is no {title} here; get it: {obtain}.")

    def _nothing_surer(self, path: Path, kind: str) -> bool:
        return all(
            self._how_sure(path, other) <= Sure.FILES for other in formats() if other != kind
        )


def _how_sure(path: Path, kind: str) -> Sure:
    """How sure the format ``kind`` is of a place."""
    try:
        sure = formats()[kind].reader.recognise(path)
    except OSError:  # a folder of somebody else
        return Sure.NO
    # Any file at all: a manifest would be tried on it.
    return Sure.NO if path.is_file() and sure == Sure.FILES else sure


# -------------------------------------------------------------------------------- official lists


@dataclass(frozen=True)
class Listed:
    """An official list as a user has it."""

    names: tuple[str, ...]
    file: Path

    def among(self, image_ids: Sequence[str]) -> list[str]:
        """The image of a set for each name, which may have folders before it; "" for none."""
        find, known = PathFinder.of_ids(list(image_ids)).image, set(image_ids)
        return [name if name in known else find(name) or "" for name in self.names]


def list_hash(ids: Iterable[str]) -> str:
    """16 hex digits naming a set of ids, whatever their order.

    >>> list_hash(["b", "a"]) == list_hash(["a", "b"])
    True
    """
    text = "\n".join(sorted(set(ids)))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def read_list(card: Card, folder: Path) -> Listed | None:
    """Read the official list of a card from the archive's folder, and hold it against the card.

    None for a card without one.
    """
    wanted = card.data.list
    if (pattern := wanted.file) is None:
        return None
    folders = [folder, *sorted(path for path in folder.glob("*") if path.is_dir())]
    path = find_table(folders, pattern) if folder.is_dir() else None
    if path is None or not is_file(path):
        raise UserError(
            f"{folder}: has no {pattern}, the list of the images of the card {card.full_name};"
            f" it comes with: {card.data.obtain.rstrip('.')}."
        )
    names = list(dict.fromkeys(map(plain_name, _cells(card, path))))
    if not names:
        raise UserError(f"{path}: names no image of the card {card.full_name}; get it again.")
    digest, number_differs = list_hash(names), wanted.images not in (None, len(names))
    if number_differs or wanted.hash not in (None, digest):
        pinned = f"{wanted.images} images" if number_differs else f"the hash {wanted.hash}"
        raise UserError(
            f"{path}: is the list of another release: it has {len(names)} images and the hash"
            f" {digest}, the card {card.full_name} is of a list of {pinned}; get the release that"
            " the card names."
        )
    return Listed(tuple(names), path)


def plain_name(name: str) -> str:
    """A listed name without the suffix of an image, its folders kept.

    >>> plain_name("CheXpert/test/patient1/study1/view1_frontal.jpg"), plain_name("0001_005.png")
    ('CheXpert/test/patient1/study1/view1_frontal', '0001_005')
    """
    place = name.strip().replace("\\", "/")
    folder, slash, _ = place.rpartition("/")
    return f"{folder}{slash}{file_stem(place)}"


def _cells(card: Card, path: Path) -> Collection[str]:
    """The names in a list, as they stand there."""
    name, wanted = path.name.lower(), card.data.list
    if name.endswith((".csv", ".csv.gz", ".parquet")):
        column = wanted.column or "image_id"
        needed = list(dict.fromkeys((column, *wanted.where)))
        table = read_table(path, needed, ())
        for key, value in wanted.where.items():
            table = table[[cell.strip().lower() == value.lower() for cell in table[key]]]
        return [cell for cell in table[column] if not is_blank(cell)]
    if name.endswith(".json"):
        content = read_json_value(path, "get it again", encoding="utf-8-sig")
        if isinstance(content, dict) and wanted.column is None:
            return list(map(str, content))
        if isinstance(content, list):
            found = [e.get(wanted.column) if isinstance(e, dict) else None for e in content]
            if all(isinstance(cell, str) for cell in found):
                return [str(cell) for cell in found]
        raise UserError(f"{path}: is not the list that the card {card.full_name} reads.")
    lines = read_text(path, "get it again", limit=1 << 30, encoding="utf-8-sig").splitlines()
    return [line for line in map(str.strip, lines) if line]


# --------------------------------------------------------------------------------------------- sets


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
    listed = read_list(card, archive)
    if listed is not None:
        among = listed.among(images["image_id"].tolist())
        present = frozenset(filter(None, among))
        if not present:
            raise UserError(
                f"{listed.file}: none of its {len(listed.names)} images is among the"
                f" {len(images)} of {archive}; the list and the images are from different releases."
            )
        own = only_listed(data, present, split)
        return CardImages(own, split, frozenset(listed.names), present, among.count(""))
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
