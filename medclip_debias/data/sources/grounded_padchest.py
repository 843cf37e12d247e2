"""PadChest-GR: sentences of PadChest's reports in English and Spanish, with readers' boxes.

``grounded_reports_20240819.json`` lists studies: ``StudyID``, ``ImageID`` and ``findings``, each a
sentence (``sentence_en``, ``sentence_es``) that is ``abnormal`` or not. One that is has ``boxes``
of one reader and ``extra_boxes`` of a second one (``x1, y1, x2, y2``, fractions of the image's
sides), ``labels``, ``locations`` and ``progression``; one that is not lacks these keys.
``master_table.csv`` has patient and split, several rows a study.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from pydantic import AfterValidator, BaseModel, ConfigDict, ValidationError

from medclip_debias.data.records import (
    RELATIVE,
    Annotations,
    PhraseRecord,
    StudyRecord,
    file_stem,
)
from medclip_debias.data.sources.archive import ArchiveSource, find_table
from medclip_debias.data.sources.findings import Corners, box_of
from medclip_debias.data.sources.ids import is_blank
from medclip_debias.data.sources.label_groups import LabelColumns, label_groups
from medclip_debias.data.sources.registry import Given, Sure, source
from medclip_debias.data.sources.tables import distinct_rows, refuse_rows
from medclip_debias.data.sources.texts import spaced
from medclip_debias.data.splits import split_name
from medclip_debias.errors import UserError, counted
from medclip_debias.files import read_json_value

if TYPE_CHECKING:
    import pandas as pd

REPORTS = "grounded_reports_*.json"
MASTER = "master_table.csv"
SENTENCES = "grounded_sentences"
LANGUAGES = ("en", "es")

_FOLDERS = (
    *("PadChest_GR", "Padchest_GR_files/PadChest_GR", "Padchest_GR_files"),
    *("images", "images_grounding"),
)
_COLUMNS = (
    *(("study_id", "text"), ("image_id", "text"), ("number", "number"), ("text", "text")),
    *(("abnormal", "yes_no"), ("labels", "texts"), ("places", "texts"), ("progression", "text")),
    *(("boxes", "boxes"), ("extra_boxes", "boxes")),
)
_MUST_BE = {
    **dict.fromkeys(("labels", "locations"), "a list of words"),
    **dict.fromkeys(("boxes", "extra_boxes"), "boxes of x1, y1, x2, y2"),
}


def _words(items: list[str]) -> list[str]:
    """Labels or places in lower case, each once."""
    return list(dict.fromkeys(filter(None, (spaced(item.lower()) for item in items))))


def _state(value: Any) -> str | None:
    return value.strip().lower() if isinstance(value, str) else None


Words = Annotated[list[str], AfterValidator(_words)]


class _Finding(BaseModel):
    """A sentence of an image, as the file has it."""

    model_config = ConfigDict(strict=True)

    text: Annotated[str, AfterValidator(spaced)] = ""
    abnormal: bool = False
    labels: Words = []
    locations: Words = []
    progression: Annotated[Any, AfterValidator(_state)] = None
    boxes: list[Corners] = []
    extra_boxes: list[Corners] = []


@source(
    title="PadChest-GR",
    looks=f"PadChest-GR ({REPORTS})",
    give="folder of `grounded_reports_20240819.json`",
    needs="`master_table.csv`, and the images beside it or in `PadChest_GR/`",
    takes=("split_seed", "text_only", "language"),
)
class GroundedPadChestSource(ArchiveSource):
    """A PadChest-GR folder, in one of its two languages."""

    kind: ClassVar[str] = "padchest_gr"

    def __init__(self, root: Path, given: Given) -> None:
        super().__init__(root, given)
        self.language = given.language or LANGUAGES[0]
        if self.language not in LANGUAGES:
            raise UserError(
                f"{root}: PadChest-GR has no sentences in '{self.language}'; its languages are"
                f" {' and '.join(LANGUAGES)}."
            )
        path = find_table([root], REPORTS)
        master = find_table([root], MASTER, f"{MASTER}.gz")
        if path is None or master is None:
            lacking = REPORTS if path is None else MASTER
            raise UserError(
                f"{root}: has no {lacking}, which comes with PadChest-GR; put it there (unpacked)."
            )
        self.path, self.master = path, master
        images = self._read_master()
        entries = self._read_entries(images)
        images = images.loc[list(entries)]
        self._rows: list[tuple[Any, ...]] = []
        for file, study, split in zip(entries, images["study"], images["split"], strict=True):
            self._add_sentences(file, study, split, entries[file])
        self._add_studies(images, entries)
        if not self.text_only:
            places = self.locate(list(entries), _FOLDERS)
            rows = images.assign(image=images.index.map(file_stem), view="FRONTAL")
            self.add_images(rows, map(places.path, images.index))
        self._count([finding for findings in entries.values() for finding in findings])
        self._describe(entries)

    @classmethod
    def recognise(cls, path: Path) -> Sure:
        return Sure.RELEASE if path.is_dir() and any(path.glob(REPORTS)) else Sure.NO

    def annotations(self) -> list[Annotations]:
        """Return every sentence, positive and negative, with both readers' boxes as they stand."""
        about = SENTENCES, "sentences", _COLUMNS, self._rows
        by_study = Annotations(*about, study="study_id")
        return [Annotations(*about, images=("image_id",)) if self.image_records else by_study]

    def _read_master(self) -> pd.DataFrame:
        """Return study, patient, split and origin of each image by its file name."""
        path, ids = self.master, {"study": "StudyID", "patient": "PatientID"}
        table = self.read_rows(path, ("ImageID", *ids.values(), "split"), ids=ids)
        problem = "column 'ImageID' is blank; download the table again."
        refuse_rows(path, table, table["ImageID"].map(is_blank), problem)
        if self.seed is None:
            table["split"] = list(map(split_name, table["split"], table["origin"]))
        table["split"] = list(map(self.split, table["patient"], table["split"]))
        problem = (
            "its image has another study, patient or split in row {}; download the table again."
        )
        columns = ["ImageID", "study", "patient", "split"]
        return distinct_rows(path, table, "ImageID", problem, columns).set_index("ImageID")

    def _read_entries(self, images: pd.DataFrame) -> dict[str, list[_Finding]]:
        content = read_json_value(self.path, "download it again", encoding="utf-8-sig")
        if not isinstance(content, list) or not content:
            raise UserError(f"{self.path}: is not a list of studies; download it again.")
        entries: dict[str, list[_Finding]] = {}
        unknown = 0
        for number, entry in enumerate(content, start=1):
            where = f"{self.path}, entry {number}"
            file = entry.get("ImageID") if isinstance(entry, dict) else None
            if not isinstance(file, str) or not isinstance(entry.get("findings"), list):
                raise UserError(
                    f"{where}: has no 'ImageID' or no list 'findings'; download it again."
                )
            unknown += file not in images.index
            if file in images.index and file not in entries:
                findings = enumerate(entry["findings"], start=1)
                entries[file] = [self._finding(f, f"{where}, finding {n}") for n, f in findings]
        listed, once = len(content), len(entries) + unknown
        self.count(f"entry of {self.path.name} is not a repeat", "rows", once, listed)
        step = f"image of {self.path.name} is in {self.master.name}"
        self.count(step, "rows", len(entries), once)
        step = f"image of {self.master.name} is in {self.path.name}"
        self.count(step, "rows", len(entries), len(images))
        return entries

    def _finding(self, content: Any, where: str) -> _Finding:
        if not isinstance(content, dict):
            raise UserError(f"{where}: is not an object with a sentence; download the file again.")
        values = {name: value for name, value in content.items() if value is not None}
        sentence = f"sentence_{self.language}"
        try:
            return _Finding.model_validate({**values, "text": values.get(sentence, "")})
        except ValidationError as error:
            name = str(error.errors()[0]["loc"][0])
            problem = f": '{sentence}' is not a sentence, or 'abnormal' is not true or false"
            if name in _MUST_BE:
                problem = f", '{name}': must be {_MUST_BE[name]}"
            raise UserError(f"{where}{problem}; download the file again.") from None

    def _add_sentences(self, file: str, study: str, split: str, findings: list[_Finding]) -> None:
        """Add the rows of an image's sentences, and a phrase for each that has boxes."""
        name = file_stem(file)
        for number, f in enumerate(findings, start=1):
            self._rows.append((study, name, number, *f.model_dump().values()))
            if f.abnormal and f.text and f.boxes:
                category = f.labels[0] if f.labels else ""
                boxes = [box_of(corners, corners=True) for corners in f.boxes]
                about = category, f.text, tuple(filter(None, boxes)), RELATIVE, split
                self.phrase_records.append(PhraseRecord(f"{name}/{number}", name, *about))

    def _add_studies(self, images: pd.DataFrame, entries: dict[str, list[_Finding]]) -> None:
        every = (n for findings in entries.values() for f in findings for n in f.labels)
        columns = LabelColumns(every, label_groups("padchest"))
        for study, members in images.groupby("study", sort=False):
            findings = [finding for file in members.index for finding in entries[file]]
            # Images of one study may share its sentences.
            texts: list[str] = []
            for file in members.index:
                texts += [f.text for f in entries[file] if f.text and f.text not in {*texts}]
            texts = [t if t.endswith((".", "!", "?")) else f"{t}." for t in texts]
            report = "FINDINGS: " + " ".join(texts) if texts else None
            normal = findings and not any(f.abnormal for f in findings)
            present = {name for f in findings if f.abnormal for name in f.labels}
            labels = columns.values({"normal"} if normal else present)
            owner = members.iloc[0]
            about = str(study), owner["patient"], owner["split"], report, labels, owner["origin"]
            self.study_records.append(StudyRecord(*about))

    def _count(self, findings: list[_Finding]) -> None:
        texts = [f for f in findings if f.text]
        positive = [f for f in texts if f.abnormal]
        boxed = [f for f in positive if f.boxes]
        negative = [f for f in findings if not f.abnormal]
        second = sum(bool(f.extra_boxes) for f in boxed)
        first = sum(len(f.boxes) for f in findings)
        boxes = first + sum(len(f.extra_boxes) for f in findings)
        others = f"(others: {SENTENCES}.parquet alone)"
        unit = "label rows"
        self.counted += [
            ("sentence is not blank", unit, len(texts), len(findings)),
            (f"sentence is positive {others}", unit, len(positive), len(texts)),
            ("positive sentence has boxes", unit, len(boxed), len(positive)),
            ("sentence with boxes has a second reader's, too", unit, second, len(boxed)),
            (f"box is the first reader's {others}", "boxes", first, boxes),
        ]
        step = "phrase has one label (of others the first is the category)"
        self.count(step, unit, sum(len(f.labels) <= 1 for f in boxed), len(boxed))
        bare = sum(not (f.boxes or f.extra_boxes) for f in negative)
        self.count("negative sentence has no boxes", unit, bare, len(negative))

    def _describe(self, entries: dict[str, list[_Finding]]) -> None:
        splits = Counter(study.split for study in self.study_records)
        what = "reports alone" if self.text_only else "images"
        what += f" of {counted(len(entries), 'study')}, in '{self.language}'"
        self.said.insert(0, f"PadChest-GR {self.path}: {what}.")
        shown = ", ".join(f"{count} {split}" for split, count in splits.items())
        whose = "the master table's" if self.seed is None else f"by patient with seed {self.seed}"
        self.said += [
            f"Split: {whose}: {shown}.",
            "Boxes: those of 'boxes' are the phrases'; the second reader's ('extra_boxes') are in"
            f" {SENTENCES}.parquet, as are the negative sentences.",
        ]
        if not self.text_only and any(self.root.glob("**/PadChest_GR.zip.0*")):
            self.said.append(
                "There are parts PadChest_GR.zip.001 ...: join them in their order and unpack the"
                " zip that they make."
            )
