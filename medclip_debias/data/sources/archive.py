"""What sources of public archives share: find tables and images, and count what is odd.

An archive is a table (or several) and a tree of images that its rows name. Whoever downloaded it
keeps the two apart, drops a leading folder or converts the images; the rows themselves have
defects. No bad row stops the reading: it is left aside, and counted.
"""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Self

from medclip_debias.data.labels import VALUES, Labels
from medclip_debias.data.records import ImageRecord, PhraseRecord, Source, Step, StudyRecord
from medclip_debias.data.sources.ids import is_blank, read_ids
from medclip_debias.data.sources.image_files import ImagePlaces, ImageTree, is_file
from medclip_debias.data.sources.registry import Given
from medclip_debias.data.sources.tables import delimiter, open_text, origins, read_table
from medclip_debias.data.sources.texts import read_report
from medclip_debias.data.splits import SPLIT_SEED, seeded_split
from medclip_debias.errors import UserError

if TYPE_CHECKING:
    import pandas as pd

    from medclip_debias.data.sources.ms_cxr import BoxFile

_RANK = {1.0: 3, -1.0: 2, 0.0: 1, None: 0}


class ArchiveSource(Source):
    """Base of a source that reads its tables when it is opened: a subclass fills the lists.

    Args:
        root: folder of the archive.
        given: with a ``split_seed``, patients are split by a hash and not as the archive does;
            with ``text_only``, there are no images for `prepare`.

    Attributes:
        image_records: every image that the archive lists.
        study_records: every study, in the order of its first image.
        phrase_records: grounded phrases.
        boxes: the file of boxes, where they come in one of their own; the phrases are then its.
        counted: steps of the funnel.
        said: sentences on what is there and what is missing.
    """

    def __init__(self, root: Path, given: Given) -> None:
        self.root = root
        self.text_only = given.text_only
        self.seed = given.split_seed
        self.image_records: list[ImageRecord] = []
        self.study_records: list[StudyRecord] = []
        self.phrase_records: list[PhraseRecord] = []
        self.boxes: BoxFile | None = None
        self.counted: list[Step] = []
        self.said: list[str] = []
        self._searches: list[ImagePlaces | ImageTree] = []

    @classmethod
    def open(cls, path: Path, given: Given) -> Self:
        return cls(path, given)

    def images(self) -> list[ImageRecord]:
        return [] if self.text_only else self.image_records

    def studies(self, only: Collection[str] | None = None) -> Iterator[StudyRecord]:
        return (s for s in self.study_records if only is None or s.study_id in only)

    def phrases(self) -> list[PhraseRecord]:
        return self.phrase_records if self.boxes is None else self.boxes.phrases()

    def steps(self) -> list[Step]:
        step = "image file has another suffix than the table says"
        renamed: list[Step] = [(step, "images", self._renamed, None)] if self._renamed else []
        return self.counted + renamed

    def describe(self) -> list[str]:
        said = (
            f"{self.root}: {self._renamed} images have another suffix than the table says (.jpg for"
            " .png, say); they are found by their stems."
        )
        return [*self.said, said] if self._renamed else self.said

    @property
    def _renamed(self) -> int:
        return sum(len(search.renamed) for search in self._searches)

    # ------------------------------------------------------------------------- tables

    def count(self, step: str, unit: str, kept: int, before: int) -> None:
        """Note a step that left something aside; one that left nothing is not worth a line."""
        if kept < before:
            self.counted.append((step, unit, kept, before))

    def read_rows(
        self,
        path: Path,
        required: Sequence[str],
        optional: Sequence[str] = (),
        ids: Mapping[str, str] | None = None,
    ) -> pd.DataFrame:
        """Read columns of a table that may not be empty; ``origin`` is file and row of each row.

        ``ids`` are columns to add, and the columns that they are read from as ids.
        """
        table = read_table(path, required, optional)
        if table.empty:
            raise UserError(f"{path}: the table has no rows; download it again.")
        for name, column in (ids or {}).items():
            table[name] = self.ids(path, table, column)
        return table.assign(origin=origins(path, table))

    def ids(self, path: Path, table: pd.DataFrame, column: str, letter: str = "") -> list[str]:
        """Return the ids of a column; what was read otherwise than it is written is told."""
        ids, said = read_ids(path, table, column, letter)
        self.said += said
        return ids

    def keep(self, table: pd.DataFrame, good: pd.Series[bool], step: str) -> pd.DataFrame:
        """Return the good rows, and count them where others are left aside."""
        self.count(step, "rows", int(good.sum()), len(table))
        return table[good]

    def first_rows(self, path: Path, table: pd.DataFrame, key: str | list[str]) -> pd.DataFrame:
        """Return the first row of each ``key``; repeats are counted, and told if they differ."""
        repeated = table.duplicated(key)
        same = table.drop(columns="origin", errors="ignore").duplicated()
        other = int((repeated & ~same).sum())
        if other:
            self.said.append(
                f"{path}: {other} rows repeat a row above with other values; the first counts."
            )
        return self.keep(table, ~repeated, f"row of {path.name} is not a repeat")

    # ---------------------------------------------------------------- images and studies

    def locate(self, names: Sequence[str], folders: Sequence[str] = ()) -> ImagePlaces:
        """Return where the images of these names are; what it renames is counted and told."""
        self._searches.append(places := ImagePlaces(self.root, names, folders))
        return places

    def tree(self, root: Path) -> ImageTree:
        """Return the images anywhere below a folder; what it renames is counted and told."""
        self._searches.append(images := ImageTree(root))
        return images

    def split(self, patient: str, archives_own: str | None = None) -> str:
        """Return the split of a patient: the archive's own, or a hash's where it has none."""
        if archives_own is not None and self.seed is None:
            return archives_own
        return seeded_split(patient, SPLIT_SEED if self.seed is None else self.seed)

    def add_images(self, rows: pd.DataFrame, files: Iterable[Path]) -> None:
        """Add an image for each row of ``image``, ``study``, ``patient``, ``view``, ``split``."""
        columns = ["image", "study", "patient", "view", "split", "origin"]
        cells = zip(*(rows[name].tolist() for name in columns), files, strict=True)
        for image, study, patient, view, split, origin, file in cells:
            self.image_records.append(ImageRecord(image, study, patient, file, view, split, origin))

    def add_studies(
        self,
        labels: Mapping[str, Labels] | None = None,
        reports: Mapping[str, str | None] | None = None,
    ) -> None:
        """Make the studies of the images that were read, in their order.

        Args:
            labels: by image id. Where two images of a study disagree, present wins over
                uncertain, and that over absent; a sentence says how many studies that are.
            reports: by study id; a study that is not named has none.
        """
        labels, reports = labels or {}, reports or {}
        members: dict[str, list[ImageRecord]] = {}
        for image in self.image_records:
            members.setdefault(image.study_id, []).append(image)
        differ = 0
        for study, images in members.items():
            rows = [labels[image.image_id] for image in images if image.image_id in labels]
            merged, differs = merged_labels(rows)
            differ += differs
            about = images[0].patient_id, images[0].split, reports.get(study), merged
            self.study_records.append(StudyRecord(study, *about, images[0].origin))
        if differ:
            self.said.append(
                f"{self.root}: the images of {differ} studies have other labels; present counts"
                " before uncertain, and that before absent."
            )

    def views_said(self) -> str:
        views = Counter(image.view or "unknown" for image in self.image_records)
        return f"Views: {', '.join(f'{n} {view}' for view, n in sorted(views.items()))}."


def seeded_said(seed: int) -> str:
    """Say how a hash with this seed splits."""
    return f"patients 80/10/10 by a hash of their id with seed {seed}"


def header_of(path: Path) -> tuple[str, ...]:
    """Return the column names of a CSV (also gzipped) by its first line; none if unreadable."""
    try:
        with open_text(path) as file:
            first = file.readline(1 << 16)
        return tuple(
            name.strip() for name in next(csv.reader([first], delimiter=delimiter(first)), [])
        )
    except (UserError, OSError, EOFError, UnicodeDecodeError, csv.Error):
        return ()


def find_table(folders: Iterable[Path], *patterns: str) -> Path | None:
    """Return the table of an archive: the first folder and pattern that has one.

    Two in a folder that fit one pattern are refused (``a.csv`` and ``a.csv.gz`` are one).
    """
    for folder in folders:
        for pattern in patterns:
            tables = sorted(path for path in folder.glob(pattern) if is_file(path))
            if pattern.endswith(".csv*"):
                tables = [path for path in tables if path.name.endswith((".csv", ".csv.gz"))]
            if len({path.name.removesuffix(".gz") for path in tables}) > 1:
                raise UserError(
                    f"{folder}: both {tables[0].name} and {tables[-1].name} are there; keep one"
                    " release."
                )
            if tables:
                return tables[0]
    return None


def report_of(sections: Mapping[str, str]) -> str:
    """Return a report that has these sections under their headings; ``""`` when all are blank.

    >>> report_of({"findings": "Clear.", "impression": "nan"})
    'FINDINGS: Clear.'
    """
    texts = {name: read_report(text)[0].strip() for name, text in sections.items()}
    return "\n \n".join(f"{name.upper()}: {text}" for name, text in texts.items() if text)


class LabelCells:
    """Reads label cells; one with a value that the archive does not define counts as blank."""

    def __init__(self, path: Path, values: Mapping[str, float] = VALUES) -> None:
        self.step = f"label cell of {path.name} has a value that the archive defines"
        self.good = self.all = 0
        self._values = values

    def read(self, cell: str) -> float | None:
        if is_blank(cell):
            return None
        value = self._values.get(cell.strip().removesuffix(".0"))
        self.all += 1
        self.good += value is not None
        return value


def merged_labels(rows: Sequence[Labels]) -> tuple[Labels, bool]:
    """Merge the labels of a study's images; return them, and whether two images disagree.

    Present wins over uncertain, that over absent, that over not mentioned.
    """
    merged: Labels = {}
    differ = False
    for row in rows:
        for name, value in row.items():
            known = merged.setdefault(name, value)
            differ |= known is not None and value is not None and known != value
            if _RANK[value] > _RANK[known]:
                merged[name] = value
    return merged, differ
