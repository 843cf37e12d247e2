"""MS-CXR-T: how findings changed between two images of a patient of MIMIC-CXR.

``MS_CXR_T_temporal_image_classification_v1.0.0.csv`` has a row for each pair of images
(``dicom_id``, ``previous_dicom_id``; a release writes the folders before them) and for each of
five findings ``<finding>_progression`` (improving, stable or worsening) and
``<finding>_label_quality``, blank where nobody judged it. It holds no image: it lies beside those
of MIMIC-CXR.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from medclip_debias.data.records import Annotations, ImageRecord, Step, file_stem
from medclip_debias.data.sources.ids import Ids, check_match, is_blank
from medclip_debias.data.sources.tables import read_table
from medclip_debias.errors import UserError

PREFIX = "MS_CXR_T_"
PATTERN = f"{PREFIX}temporal_image_classification_*.csv"
TABLE = "progression"
STATES = ("improving", "stable", "worsening")

_ENDS = ("_progression", "_label_quality")
_PAIR = ("previous_dicom_id", "dicom_id")
_COLUMNS = (
    *(("previous_image_id", "text"), ("image_id", "text"), ("finding", "text")),
    *(("progression", "text"), ("label_quality", "text")),
)


def find(folder: Path) -> Path | None:
    """Return the table of MS-CXR-T in ``folder``, if it is there."""
    found = [*folder.glob(PATTERN), *folder.glob(f"{PATTERN}.gz")]
    return next(iter(sorted(found)), None)


class Progression:
    """The table, read against the images of MIMIC-CXR."""

    def __init__(self, path: Path, images: Sequence[ImageRecord]) -> None:
        self.path = path
        self.steps: list[Step] = []
        owners = {image.image_id: image.patient_id for image in images}
        self._rows = self._read(owners)
        self.patients = frozenset(owners[row[1]] for row in self._rows)
        pairs = len({row[:2] for row in self._rows})
        self.said = [
            f"MS-CXR-T: {path}; {len(self._rows)} progressions of {pairs} pairs of images;"
            f" {len(self.patients)} patients are held out of training."
        ]

    def annotations(self) -> Annotations:
        """Return a row for each pair and finding that was judged."""
        pair = ("previous_image_id", "image_id")
        return Annotations(TABLE, "progressions", _COLUMNS, self._rows, images=pair)

    def _read(self, owners: Mapping[str, str]) -> list[tuple[str, str, str, str, str]]:
        table = read_table(self.path, required=_PAIR)
        findings = [n.removesuffix(_ENDS[0]) for n in table.columns if n.endswith(_ENDS[0])]
        if not findings:
            raise UserError(f"{self.path}: has no column '<finding>{_ENDS[0]}'; download it again.")
        blank = [""] * len(table)
        ids = Ids(owners)
        pairs = [(file_stem(a), file_stem(b)) for a, b in zip(*map(table.get, _PAIR), strict=True)]
        known = [(ids.find(a), ids.find(b)) for a, b in pairs]
        there = [all(pair) for pair in known]
        check_match(self.path, "dicom_id", [b for _, b in pairs], sum(there), ids, "images")
        same = [owners.get(a) == owners.get(b) for a, b in known]
        rows: dict[tuple[str, str, str], tuple[str, str]] = {}
        clash: set[tuple[str, str, str]] = set()
        judged = usable = repeats = 0
        for finding in findings:
            states = table[finding + _ENDS[0]].tolist()
            quality = table.get(finding + _ENDS[1], blank)
            cells = zip(table.index.tolist(), known, there, same, states, quality, strict=True)
            for row, pair, listed, alike, state, how in cells:
                if is_blank(state):
                    continue
                judged += 1
                if state.lower() not in STATES:
                    raise UserError(
                        f"{self.path}, row {row}, column '{finding}{_ENDS[0]}': must be"
                        f" {', '.join(STATES)} or blank."
                    )
                if not (listed and alike):
                    continue
                usable += 1
                value = (state.lower(), "" if is_blank(how) else how.lower())
                key = (*pair, finding.replace("_", " "))
                if key in rows:
                    repeats += 1
                    clash |= {key} if rows[key][0] != value[0] else set()
                rows.setdefault(key, value)
        listed_pairs, alike_pairs = sum(there), sum(map(all, zip(there, same, strict=True)))
        name = self.path.name
        self.steps += [
            (f"both images of a row of {name} are listed", "rows", listed_pairs, len(pairs)),
            (f"both are of one patient ({name})", "rows", alike_pairs, listed_pairs),
            (f"progression of {name} has such a pair", "label cells", usable, judged),
        ]
        if repeats:
            step = f"progression of {name} is no repeat"
            self.steps.append((step, "label cells", usable - repeats, usable))
        if clash:
            step = f"repeats of a progression of {name} agree (others: left aside)"
            self.steps.append((step, "label cells", len(rows) - len(clash), len(rows)))
        return [(*key, *value) for key, value in rows.items() if key not in clash]
