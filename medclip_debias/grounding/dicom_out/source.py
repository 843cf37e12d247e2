"""The header of the image that results belong to, cut down to what must go back with them.

Results find their way to patient and study by identifiers alone. Everything else of the header
(age, weight, comments, device, institution) stays where it is.
"""

from __future__ import annotations

import re
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from medclip_debias.data.images.headers import read_header
from medclip_debias.errors import UserError

if TYPE_CHECKING:
    from pydicom.dataset import Dataset

UTF8 = "ISO_IR 192"
_UID = re.compile(r"[0-9.]{1,64}")
_DATE = re.compile(r"\d{8}|")
_TIME = re.compile(r"\d{2}(\d{2}(\d{2}(\.\d{1,6})?)?)?|")
_NAME = re.compile(r"[^\\]{0,194}")
_TEXT = re.compile(r"[^\\]{0,64}")
_SEX = re.compile("[MFO]?")
# What goes back, and what a value of its kind is (PS3.5, 6.2); of the first four none may lack.
_IDS = ("StudyInstanceUID", "SeriesInstanceUID", "SOPInstanceUID", "SOPClassUID")
_NAMES = ("PatientName", "ReferringPhysicianName")
_VALUES = {
    **dict.fromkeys(_IDS, _UID),
    **dict.fromkeys(("PatientID", "IssuerOfPatientID", "AccessionNumber", "StudyID"), _TEXT),
    **dict.fromkeys(_NAMES, _NAME),
    **dict.fromkeys(("PatientBirthDate", "StudyDate"), _DATE),
    **{"StudyTime": _TIME, "PatientSex": _SEX, "Modality": _TEXT},
}
_SIZE = ("Rows", "Columns")
_ORIENTATION = "PatientOrientation"


@dataclass(frozen=True, eq=False)
class Source:
    """An image that results refer to."""

    header: Dataset
    left_blank: tuple[str, ...] = ()
    orientation: tuple[str, ...] = ()

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns."""
        return int(self.header.Rows), int(self.header.Columns)


def read_source(path: Path) -> Source:
    """Read what results on a DICOM image need to know of it."""
    header = read_header(path, ["SpecificCharacterSet", *_VALUES, *_SIZE, _ORIENTATION])
    if header is None:
        raise UserError(
            f"{path}: the image is not a DICOM file, so no DICOM result can be attached to it."
        )
    from pydicom.dataset import Dataset
    from pydicom.valuerep import PersonName

    with warnings.catch_warnings():  # pydicom's warnings quote values
        warnings.simplefilter("ignore")
        small, blank = Dataset(), []
        small.SpecificCharacterSet = UTF8
        for name, form in _VALUES.items():
            value = _value(header, name)
            if not form.fullmatch(value) or not value.isprintable():
                if name in _IDS:
                    raise UserError(
                        f"{path}: its header lacks a valid {name}, so no DICOM result can be"
                        " attached to it; export it again."
                    )
                blank.append(name)
                value = ""
            setattr(small, name, PersonName(value) if name in _NAMES else value)
        if not small.IssuerOfPatientID:
            del small.IssuerOfPatientID
        for name in _SIZE:
            if header.get(name) not in (None, ""):
                setattr(small, name, header[name].value)
        value = header.get(_ORIENTATION)
        letters = tuple(map(str, value)) if value and not isinstance(value, str) else ()
        known = len(letters) == 2 and all(re.fullmatch("[ALPRHF]{1,3}", each) for each in letters)
        return Source(small, tuple(blank), letters if known else ())


def _value(header: Any, name: str) -> str:
    """An element as text; an element that cannot be decoded counts as blank."""
    from pydicom.multival import MultiValue

    try:
        value = header.get(name)
    except Exception:  # a value surfaces as wrong when it is looked at
        return ""
    if isinstance(value, MultiValue):  # of which no form here takes the backslash
        return "\\".join(map(str, value))
    return "" if value is None else str(value).strip().strip("\0")
