"""Labels of several readers an image: what most of them see, and what each of them said."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from medclip_debias.data.labels import Labels, label_name
from medclip_debias.data.records import Annotations, Box
from medclip_debias.data.sources.archive import LabelCells
from medclip_debias.data.sources.findings import Count, Marks
from medclip_debias.data.sources.ids import is_blank
from medclip_debias.data.sources.label_groups import label_groups
from medclip_debias.errors import UserError

if TYPE_CHECKING:
    import pandas as pd

CONSENSUS = "consensus"


class Votes:
    """What readers say of images, and the majority's labels and boxes.

    A finding is 1 where most of an image's readers see it, -1 where half of them do, else 0. A
    phrase is a finding that most see, its boxes those of every reader.
    """

    def __init__(self, how: Mapping[str, Any], count: Count) -> None:
        self._how, self._count = how, count
        self._names: set[str] = set()
        self._seen: dict[str, dict[str, set[str]]] = {}
        self._majority: dict[str, set[str]] = {}
        self._boxes: dict[tuple[str, str], dict[str, list[Box]]] = {}

    def read(self, part: str, path: Path, table: pd.DataFrame, image: str) -> None:
        """Read a table with a row for each image and reader, and a column for each finding."""
        reader = self._how["votes"]
        if reader not in table and part != self._how["consensus"]:
            raise UserError(f"{path}: column '{reader}' is missing; download the table again.")
        readers = [CONSENSUS] * len(table)
        if reader in table:
            readers = table[reader].replace("", "unnamed").tolist()
        rows = list(zip(table[image], readers, strict=True))
        for name, one in rows:
            self._seen.setdefault(name, {})[one] = set()
        cells = LabelCells(path, {"1": 1.0, "0": 0.0})
        findings = table.drop(columns=[image, reader], errors="ignore")
        for column in findings:
            finding = self._finding(str(column))
            self._names.add(finding)
            for (name, one), cell in zip(rows, findings[column], strict=True):
                if cells.read(cell):
                    self._seen[name][one].add(finding)
        self._count(cells.step, "label cells", cells.good, cells.all)
        step = f"label cell of {path.name} is filled in (blank counts as 0)"
        blank = int(findings.map(is_blank).sum().sum())
        self._count(step, "label cells", findings.size - blank, findings.size)

    def labels(self) -> dict[str, Labels]:
        """Return the labels of each image."""
        of_table = {n: m for n, m in label_groups("vindr_cxr").items() if m & self._names}
        own = sorted(name for name in self._names if label_name(name) is None)
        columns = of_table | {name: frozenset([name]) for name in own}
        labels: dict[str, Labels] = {}
        marked = agreed = ties = 0
        for image, readers in self._seen.items():
            half = len(readers) / 2
            votes = Counter(finding for findings in readers.values() for finding in findings)
            self._majority[image] = {name for name, count in votes.items() if count > half}
            marked += len(votes)
            agreed += sum(count == len(readers) for count in votes.values())
            ties += sum(count == half for count in votes.values())
            labels[image] = {}
            for column, members in columns.items():  # who see two fractures may mean two bones
                count = sum(not members.isdisjoint(findings) for findings in readers.values())
                labels[image][column] = float(count > half) - float(count == half)
        step = "every reader of the image sees a finding that one sees"
        self._count(step, "label rows", agreed, marked)
        step = "readers are not equally many for and against (others: uncertain)"
        self._count(step, "label rows", marked - ties, marked)
        return labels

    def add_box(self, image: str, finding: str, reader: str, box: Box) -> bool:
        """Add a reader's box; tell whether most readers see its finding."""
        name = self._finding(finding)
        readers = self._boxes.setdefault((image, name), {})
        readers.setdefault(reader or CONSENSUS, []).append(box)
        return name in self._majority[image]

    def add_phrases(self, marks: Marks) -> None:
        """Add the findings that most readers see with the boxes of all of them."""
        for (image, finding), readers in self._boxes.items():
            if finding in self._majority[image]:
                boxes = (box for drawn in readers.values() for box in drawn)
                marks.add(image, label_name(finding) or finding, boxes, f"{finding}.")

    def annotations(self) -> list[Annotations]:
        """Return what each reader said: findings, and boxes in pixels of the archive's image."""
        labels = [
            (image, reader, finding)
            for image, readers in self._seen.items()
            for reader, findings in readers.items()
            for finding in sorted(findings)
        ]
        boxes = [
            (image, reader, finding, [list(box) for box in drawn])
            for (image, finding), readers in self._boxes.items()
            for reader, drawn in readers.items()
        ]
        who = (("image_id", "text"), ("reader", "text"), ("finding", "text"))
        image = ("image_id",)
        return [
            Annotations("reader_labels", "label rows", who, labels, image),
            Annotations("reader_boxes", "boxes", (*who, ("boxes", "boxes")), boxes, image),
        ]

    def _finding(self, name: str) -> str:
        plain = " ".join(name.split())
        spelled: str = self._how.get("spelled", {}).get(plain, plain)
        return spelled
