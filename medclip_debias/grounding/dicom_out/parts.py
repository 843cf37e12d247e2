"""What all DICOM objects share: codes, series, the source as a data set; highdicom underneath."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from medclip_debias.errors import UserError
from medclip_debias.grounding.dicom_out.found import MANUFACTURER, RESEARCH, Algorithm

if TYPE_CHECKING:
    from highdicom.sr import CodedConcept

SCHEME = "99MEDCLIP"
"""Coding scheme of what no public one has a code for; 99 says that it is private (PS3.16, 8)."""
PROBABILITY = ("probability", "Probability that the image shows it")


def check_installed() -> None:
    """Make sure that highdicom is there.

    Raises:
        UserError: it is not.
    """
    try:
        import highdicom  # noqa: F401
    except ImportError:
        raise UserError(
            "DICOM results need the package highdicom: pip install 'medclip-debias[dicom]'; json"
            " and fhir need nothing."
        ) from None


@contextmanager
def quiet() -> Iterator[None]:
    """Without the warnings and log lines of pydicom and highdicom: some quote a patient's name."""
    for name in ("pydicom", "highdicom"):
        logging.getLogger(name).setLevel(logging.CRITICAL)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def own_code(value: str, meaning: str) -> CodedConcept:
    """A code of `SCHEME`."""
    from highdicom.sr import CodedConcept

    return CodedConcept(value, SCHEME, meaning)


@dataclass
class Series:
    """A new series of a source's study; its instances are numbered as they are made.

    Attributes:
        number: of the series; high, to lie behind the images of the study.
        algorithm: what makes the instances.
        description: what the series holds.
    """

    number: int
    algorithm: Algorithm
    description: str
    instances: int = 0
    uid: str = field(default_factory=lambda: _new_uid())

    def next_instance(self) -> dict[str, Any]:
        """Keywords that every highdicom object takes."""
        self.instances += 1
        return {
            "series_instance_uid": self.uid,
            "series_number": self.number,
            "sop_instance_uid": _new_uid(),
            "instance_number": self.instances,
            "series_description": f"{self.description} ({RESEARCH.lower()})",
            "manufacturer": MANUFACTURER,
        }

    @property
    def device(self) -> dict[str, Any]:
        """Keywords that objects other than reports take."""
        return {
            "manufacturer_model_name": f"model {self.algorithm.model}",
            "software_versions": self.algorithm.version,
            "device_serial_number": self.algorithm.model,
        }


def _new_uid() -> str:
    from highdicom import UID

    return str(UID())
