"""A split of studies that has a name, stored as a file with its hash.

The first line names the split and the SHA-256 of everything behind that line::

    # openi-report-80-10-10-v1 sha256:6b1e...
    study_id,split
    CXR1,train

``tail -n +2 FILE | sha256sum`` gives the same hash. Studies are sorted by id, so one split has one
hash wherever it is stored.
"""

from __future__ import annotations

import csv
import hashlib
import io
import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Protocol, runtime_checkable

from medclip_debias.data.records import ImageRecord
from medclip_debias.data.sources.ids import PATIENT, STUDY, Ids
from medclip_debias.data.sources.paths import PathFinder
from medclip_debias.data.splits import SHARES, split_name, splits_of
from medclip_debias.errors import UserError
from medclip_debias.files import file_hash, open_guarded, write_text

SPLIT_FILE = "split.csv"
"""Name of the file in a prepared set."""

_FIRST = re.compile(r"# ([\w.+-]{1,100}) sha256:([0-9a-f]{64})")
_HEADER = ["study_id", "split"]
_KEYS = ("study_id", "patient_id", "image_id", "image")


@dataclass(frozen=True)
class NamedSplit:
    """A split.

    Attributes:
        name: letters, digits, ``.``, ``+``, ``-`` and ``_``.
        studies: split of each study.
        unknown: rows of its table that name nothing of the source.
    """

    name: str
    studies: Mapping[str, str]
    unknown: int = 0

    @cached_property
    def body(self) -> str:
        """The file behind its first line."""
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(_HEADER)
        writer.writerows(sorted(self.studies.items()))
        return text.getvalue()

    @property
    def sha256(self) -> str:
        """Names the split: equal studies in equal splits, equal hash."""
        return hashlib.sha256(self.body.encode()).hexdigest()

    def write(self, path: Path) -> None:
        """Write the file, atomically."""
        write_text(path, f"# {self.name} sha256:{self.sha256}\n{self.body}")

    def describe(self) -> str:
        """Return a sentence on it."""
        counts = Counter(self.studies.values())
        shares = ", ".join(f"{counts[name]} {name}" for name in SHARES if counts[name])
        rest = f" {self.unknown} rows match nothing in the source." if self.unknown else ""
        return f"Split {self.name} (sha256 {self.sha256}): {shares} studies.{rest}"

    def check_covers(self, path: Path, known: Collection[str]) -> None:
        """Stop when the split and a source do not have the same studies."""
        missing = sum(study not in self.studies for study in known)
        unknown = len(self.studies) - (len(known) - missing)
        if missing or unknown:
            raise UserError(
                f"{path}: is not a split of this source: {missing} of its {len(known)} studies are"
                f" not in the file, and {unknown} of the file's {len(self.studies)} are not in the"
                " source; give the split file of this source."
            )


@runtime_checkable
class HasNamedSplit(Protocol):
    """A source whose split has a name."""

    def named_split(self) -> NamedSplit:
        """Return the split of every study, of those too that no image belongs to."""
        ...


def plain_split(path: Path, images: Sequence[ImageRecord], ids: Collection[str]) -> NamedSplit:
    """Read a table that says the split of studies, patients or images, as archives give it.

    Studies that it does not name have no split. Ids are found however they are written (`Ids`),
    images by their paths (`PathFinder`).

    Args:
        path: CSV or Parquet with a column ``split`` and one of ``study_id``, ``patient_id`` and
            ``image_id`` (or ``image``: a file's name or path).
        images: of the source.
        ids: of its studies.
    """
    from medclip_debias.data.sources.tables import read_table

    table = read_table(path, required=("split",))
    column = next((name for name in _KEYS if name in table), None)
    if column is None:
        raise UserError(f"{path}: needs a column {', '.join(_KEYS[:-1])} or {_KEYS[-1]}.")
    members: dict[str, list[str]] = {}
    for image in images:
        key = image.patient_id if column == "patient_id" else image.image_id
        members.setdefault(key, []).append(image.study_id)
    if column in ("study_id", "patient_id"):
        members = {study: [study] for study in ids} if column == "study_id" else members
        known = Ids(members, STUDY if column == "study_id" else PATIENT)
        keys = list(map(known.find, table[column]))
    else:
        finder = PathFinder.of_images(images, Path(), table[column].tolist())
        keys = list(map(finder.image, table[column]))
    named = zip(table.index.tolist(), keys, table["split"], strict=True)
    rows = ((row, study, word) for row, key, word in named for study in members.get(key, ()))
    studies = splits_of(path, rows, "study")
    unknown = keys.count("")
    if not studies:
        raise UserError(f"{path}: none of its {len(table)} rows matches anything in this source.")
    name = re.sub(r"[^\w.+-]", "_", path.name.split(".")[0])[:100] or "split"
    return NamedSplit(name, studies, unknown)


def is_plain(path: Path) -> bool:
    """Tell whether a split file is a table without the line of a name and a hash."""
    try:
        with open_guarded(path, "check the path") as file:
            return file.read(1) != b"#"
    except UserError:
        return False


def file_sha256(path: Path) -> str:
    """Return what names the content of a split file: of its studies, or of a table's bytes."""
    return file_hash(path) if is_plain(path) else read_split(path).sha256


def read_split(path: Path) -> NamedSplit:
    """Read a split file."""
    try:
        content = path.read_bytes()
        text = content.decode()
    except FileNotFoundError:
        raise UserError(f"{path}: there is no such split file; check the path.") from None
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(
            f"{path}: cannot be read as a split file ({type(error).__name__})."
        ) from error
    first, _, body = text.partition("\n")
    found = _FIRST.fullmatch(first.rstrip("\r"))
    if found is None:
        raise UserError(
            f"{path}, row 1: must be '# NAME sha256:HASH', the name of the split and the hash of"
            " the rows below; prepared sets hold such a file, split.csv."
        )
    if hashlib.sha256(body.encode()).hexdigest() != found[2]:
        raise UserError(
            f"{path}: its rows do not have the hash of its first line, so it is damaged or was"
            " edited; copy it again, or give it a new name and the hash of"
            " 'tail -n +2 FILE | sha256sum'."
        )
    studies: dict[str, str] = {}
    try:
        rows = list(csv.reader(io.StringIO(body, newline=""), strict=True))
    except csv.Error as error:
        raise UserError(f"{path}: is not readable CSV; write the split again.") from error
    if not rows or rows[0] != _HEADER:
        raise UserError(f"{path}, row 2: must be 'study_id,split'; write the split again.")
    for row, cells in enumerate(rows[1:], start=3):
        if len(cells) != 2 or not cells[0].strip():
            raise UserError(f"{path}, row {row}: must hold a study's id and its split.")
        if cells[0] in studies:
            raise UserError(f"{path}, row {row}: its study has a row above; keep one.")
        studies[cells[0]] = split_name(cells[1], f"{path}, row {row}")
    return NamedSplit(found[1], studies)
