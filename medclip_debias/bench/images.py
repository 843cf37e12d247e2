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
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

import pandas as pd

from medclip_debias.bench.card import Card
from medclip_debias.config import PrepareSettings, SelectionSettings, json_hash, validate
from medclip_debias.data.label_maps import LabelMap, load_label_map
from medclip_debias.data.prepare import Reading, prepare
from medclip_debias.data.prepare.assemble import MISSING_IMAGES
from medclip_debias.data.prepare.chunks import Progress, Say
from medclip_debias.data.prepare.collect import recipe
from medclip_debias.data.prompts import PromptSet, load_prompts
from medclip_debias.data.records import ImageRecord, file_stem
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
from medclip_debias.errors import UserError, did_you_mean
from medclip_debias.evaluation.catalogue import PROTOCOLS, address
from medclip_debias.evaluation.item_tables import ItemNames
from medclip_debias.evaluation.options import EvaluationOptions
from medclip_debias.evaluation.presets import chosen_presets
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


# ---------------------------------------------------------------------- a card on its archive


@dataclass(frozen=True)
class CardInputs:
    """All that a card names, read and checked before hours of work.

    A set of it is an archive as one preprocessing wants its images: cards and models of equal
    `set_key` share one.
    """

    card: Card
    archive: Path
    listed: Listed | None
    selection: SelectionSettings
    reading: Reading
    protocols: frozenset[str]
    prompts: PromptSet
    options: EvaluationOptions
    label_map: LabelMap | None
    files: Mapping[str, Any]

    @classmethod
    def of(cls, card: Card, archive: Path) -> CardInputs:
        """Read what a card names."""
        where = f"card {card.full_name}"
        protocols = frozenset(address(key)[0] for key in card.metrics)
        if unknown := sorted(protocols - set(PROTOCOLS)):
            raise UserError(
                f"{card.full_name}: this version has no protocol"
                f" '{unknown[0]}'{did_you_mean(unknown[0], PROTOCOLS)}."
            )
        files = {keyword: archive / name for keyword, name in card.data.files if name is not None}
        for path in files.values():
            if not path.is_file():
                raise UserError(
                    f"{path}: is not there, and {card.full_name} is measured with it; it comes"
                    f" with: {card.data.obtain.rstrip('.')}."
                )
        chosen_presets(card.preset)
        options = {**card.options, "preset": card.preset}
        return cls(
            card=card,
            archive=archive,
            listed=read_list(card, archive),
            selection=validate(SelectionSettings, card.data.prepare, where, "data.prepare."),
            reading=Reading(
                kind=card.data.archive,
                text=validate(ReportSettings, card.data.reports, where, "data.reports."),
                all_test=card.data.list.split == "all",
            ),
            protocols=protocols,
            prompts=load_prompts(card.prompts or "chex5").only(card.classes),
            options=validate(EvaluationOptions, options, where, "options."),
            label_map=None if card.label_map is None else load_label_map(card.label_map),
            files=files,
        )

    def set_key(self, squares: PrepareSettings) -> str:
        """16 hex digits; what a model does after the stored square is not of the set."""
        how = recipe(squares, self.selection, self.reading)
        return json_hash([str(self.archive.resolve()), self.reading.kind, how])

    def prepared(
        self,
        squares: PrepareSettings,
        cache: Path,
        workers: int | None = None,
        progress: Progress | None = None,
        say: Say | None = None,
    ) -> PreparedSet:
        """Prepare the set, or what is left of it to do, or what changed in the archive."""
        out = cache / "sets" / self.set_key(squares)
        make = partial(
            prepare,
            self.archive,
            out,
            squares,
            selection=self.selection,
            reading=self.reading,
            workers=workers,
            progress=progress,
        )
        try:
            data = make()
        except UserError:
            if not (out / "meta.json").is_file():
                raise
            # Of an earlier version, or the archive changed since.
            data = make(update=True)
            if say:
                say(f"{self.archive}: changed, or was prepared by another version; read again.")
        check_sample(data)
        return data

    def images(self, data: PreparedSet) -> CardImages:
        """Find the card's images in a prepared set.

        Where the archive has an official list, the listed images are judged, whatever split the
        set gave them. Else those of the card's split are, and those that its tables put there and
        that are not on the disk, or cannot be read, are missing.
        """
        split = "test" if self.reading.all_test else self.card.data.list.split
        images = data.images
        if self.listed is not None:
            among = self.listed.among(images["image_id"].tolist())
            present = frozenset(filter(None, among))
            if not present:
                raise UserError(
                    f"{self.listed.file}: none of its {len(among)} images is among the"
                    f" {len(images)} of {self.archive}; the list and the images are from different"
                    " releases."
                )
            chosen = only_listed(data, present, split)
            names = frozenset(self.listed.names)
            return CardImages(chosen, split, names, present, among.count(""))
        splits = {split, HELD_OUT} if self.card.kind in HELD else {split}
        there = images.loc[images["split"].isin(splits), "image_id"]
        found = frozenset(map(str, there))
        lost = self._lost(data, splits) - found
        return CardImages(data, split, found | lost, found, len(lost))

    def _lost(self, data: PreparedSet, splits: Collection[str]) -> set[str]:
        """Ids of the images of the splits whose files are not there or cannot be read."""
        names: set[str] = set()
        for path in (data.folder / MISSING_IMAGES, data.folder / "rejected.csv"):
            if path.is_file():
                names |= set(pd.read_csv(path, dtype=str, keep_default_na=False)["image_id"])
        if not names:
            return set()
        source = self.reading.source(self.archive)  # it alone knows the split of what is missing
        named = self.reading.split(source)
        held_out = source.held_out_patients() if HELD_OUT in splits else frozenset()

        def split_of(image: ImageRecord) -> str:
            if self.reading.all_test:
                return "test"
            return image.split if named is None else named.studies.get(image.study_id, "")

        return {
            image.image_id
            for image in source.images()
            if image.image_id in names
            and (split_of(image) in splits or image.patient_id in held_out)
        }


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
