"""MS-CXR-T: how findings changed between two images of a patient of MIMIC-CXR.

``MS_CXR_T_temporal_image_classification_v1.0.0.csv`` has a row for each pair of images
(``dicom_id``, ``previous_dicom_id``; a release writes the folders before them) and for each of
five findings ``<finding>_progression`` (improving, stable or worsening) and
``<finding>_label_quality``, blank where nobody judged it. It holds no image: it lies beside those
of MIMIC-CXR.
"""

from __future__ import annotations

from pathlib import Path

from medclip_debias.data.records import Annotations, file_stem
from medclip_debias.data.sources.archive import ArchiveSource
from medclip_debias.data.sources.ids import Ids, check_match, is_blank
from medclip_debias.data.sources.ms_cxr import TEMPORAL_PREFIX
from medclip_debias.data.sources.tables import read_table, refuse_rows
from medclip_debias.errors import UserError

PATTERN = f"{TEMPORAL_PREFIX}temporal_image_classification_*.csv*"
TABLE = "progression"
STATES = ("improving", "stable", "worsening")

_ENDS = ("_progression", "_label_quality")
_PAIR = ("previous_dicom_id", "dicom_id")
_COLUMNS = (
    *(("previous_image_id", "text"), ("image_id", "text"), ("finding", "text")),
    *(("progression", "text"), ("label_quality", "text")),
)


def read_progression(source: ArchiveSource, path: Path) -> tuple[Annotations, frozenset[str]]:
    """Read the table against the images of MIMIC-CXR; return it and the patients it is about."""
    import pandas as pd

    owners = {image.image_id: image.patient_id for image in source.image_records}
    table, name = read_table(path, _PAIR), path.name
    findings = [n.removesuffix(_ENDS[0]) for n in table.columns if n.endswith(_ENDS[0])]
    if not findings:
        raise UserError(f"{path}: has no column '<finding>{_ENDS[0]}'; download it again.")
    ids, stems = Ids(owners), table["dicom_id"].map(file_stem)
    first, second = (table[column].map(file_stem).map(ids.find) for column in _PAIR)
    listed = (first != "") & (second != "")
    check_match(path, "dicom_id", stems.tolist(), int(listed.sum()), ids, "images")
    alike = listed & (first.map(owners.get) == second.map(owners.get))
    tables = []
    for finding in findings:
        columns = [table.get(finding + end, pd.Series("", table.index)) for end in _ENDS]
        state, quality = (c.mask(c.map(is_blank), "").str.lower() for c in columns)
        problem = f"column '{finding}{_ENDS[0]}' must be {', '.join(STATES)} or blank."
        refuse_rows(path, table, ~state.isin(("", *STATES)), problem)
        about = {"first": first, "second": second, "finding": finding.replace("_", " ")}
        rows = pd.DataFrame({**about, "state": state, "quality": quality, "alike": alike})
        tables.append(rows[rows["state"] != ""])
    judged = pd.concat(tables, ignore_index=True)
    key = ["first", "second", "finding"]
    usable = judged[judged["alike"]].drop(columns="alike")
    once = usable.drop_duplicates(key)
    states = usable.groupby(key)["state"].transform("nunique")
    agreed = once[states[once.index] == 1]
    source.counted += [
        (f"both images of a row of {name} are listed", "rows", int(listed.sum()), len(table)),
        (f"both are of one patient ({name})", "rows", int(alike.sum()), int(listed.sum())),
        (f"progression of {name} has such a pair", "label cells", len(usable), len(judged)),
    ]
    step = f"progression of {name} is not a repeat"
    source.count(step, "label cells", len(once), len(usable))
    step = f"repeats of a progression of {name} agree (others: skipped)"
    source.count(step, "label cells", len(agreed), len(once))
    patients = frozenset(map(owners.__getitem__, agreed["second"]))
    pairs = len(agreed[["first", "second"]].drop_duplicates())
    source.said.append(
        f"MS-CXR-T: {path}; {len(agreed)} progressions of {pairs} pairs of images;"
        f" {len(patients)} patients are held out of training."
    )
    changes = list(agreed.itertuples(index=False, name=None))
    pair = ("previous_image_id", "image_id")
    return Annotations(TABLE, "progressions", _COLUMNS, changes, images=pair), patients
