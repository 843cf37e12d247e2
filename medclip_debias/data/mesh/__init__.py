"""Open-i's human indexing: headings with qualifiers, and what they say in label columns.

An entry is written ``Opacity/lung/base/left/mild``: a heading of MeSH or RadLex, then qualifiers
in no fixed order (Demner-Fushman et al. 2016, "Preparing a collection of radiology examinations
for distribution and retrieval"). ``mapping.yaml`` says which entries fill which label column.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import NamedTuple

from pydantic import Field

from medclip_debias.config import Settings, validate
from medclip_debias.settings_files import load_yaml

NO_FINDING = "No Finding"


class Location(NamedTuple):
    """Where an index says that something is: a weak label, of the study and not of an image.

    Attributes:
        heading: what is there.
        region: structure, as ``lung`` or ``ribs``; several are joined by commas, ``""`` unknown.
        side: ``left``, ``right``, ``bilateral`` or ``""``.
        zone: zone of the lung, as ``base`` or ``upper lobe``, or ``""``.
        severity: words as ``mild`` or ``small``, joined by commas.
    """

    heading: str
    region: str
    side: str
    zone: str
    severity: str


@dataclass(frozen=True, slots=True)
class Entry:
    """One entry of the index.

    Attributes:
        heading: as it is written, white space aside.
        qualifiers: in their order, in lower case.
    """

    heading: str
    qualifiers: tuple[str, ...]

    @property
    def key(self) -> str:
        """The heading in lower case: the collection writes ``Thoracic vertebrae``, too."""
        return self.heading.lower()


def entry(text: str) -> Entry:
    """Read one entry.

    >>> entry("Opacity/lung/base/left ")
    Entry(heading='Opacity', qualifiers=('lung', 'base', 'left'))
    """
    heading, *qualifiers = (" ".join(part.split()) for part in text.split("/"))
    return Entry(heading, tuple(word.lower() for word in qualifiers if word))


def entries(texts: Iterable[str]) -> list[Entry]:
    """Read the entries of a report; blank ones are none."""
    return [entry(text) for text in texts if text.split("/")[0].strip()]


class Column(Settings):
    """Which entries make a label column present, or leave it blank, and why."""

    present: tuple[str, ...] = Field(min_length=1)
    blank: tuple[str, ...] = ()
    why: str = ""


class Mapping(Settings):
    """The content of ``mapping.yaml``; its comments say what the keys mean."""

    name: str
    unindexed: tuple[str, ...]
    normal: tuple[str, ...]
    uncertain: tuple[str, ...]
    aside: tuple[str, ...]
    chexpert: dict[str, Column]
    chexpert_left_out: dict[str, str]
    openi: dict[str, Column]
    openi_left_out: dict[str, str]
    zones: dict[str, str]
    sides: tuple[str, ...]
    severities: tuple[str, ...]
    regions: tuple[str, ...]

    @property
    def columns(self) -> dict[str, Column]:
        """Every label column: CheXpert's, then Open-i's own."""
        return {**self.chexpert, **self.openi}

    @cached_property
    def _patterns(self) -> dict[str, tuple[list[Entry], list[Entry]]]:
        return {
            name: (entries(column.present), entries(column.blank))
            for name, column in self.columns.items()
        }

    def is_indexed(self, index: Sequence[Entry]) -> bool:
        """Tell whether people indexed the report: it has an entry, and not ``No Indexing``."""
        return bool(index) and not _any(index, self.unindexed)

    def labels(self, index: Sequence[Entry]) -> dict[str, float | None]:
        """Return 1 present, 0 absent, -1 uncertain or ``None`` (not known) for each column."""
        if not self.is_indexed(index):
            return dict.fromkeys(self._patterns)
        found = {name: self._value(name, index) for name in self._patterns}
        found[NO_FINDING] = self._no_finding(index)
        return found

    def _value(self, name: str, index: Sequence[Entry]) -> float | None:
        present, blank = self._patterns[name]
        fitting = [e for e in index if any(_fits(pattern, e) for pattern in present)]
        if any(not self._is_uncertain(e) for e in fitting):
            return 1.0
        if fitting:
            return -1.0
        return None if any(_fits(pattern, e) for pattern in blank for e in index) else 0.0

    def _no_finding(self, index: Sequence[Entry]) -> float | None:
        if _any(index, self.normal):
            # A report that is indexed as normal and as something else says neither.
            return 1.0 if all(_any([e], (*self.normal, *self.aside)) for e in index) else None
        findings = [e for e in index if not _any([e], self.aside)]
        if not findings:
            return None
        return -1.0 if all(map(self._is_uncertain, findings)) else 0.0

    def _is_uncertain(self, found: Entry) -> bool:
        return any(word in found.qualifiers for word in self.uncertain)

    def locations(self, index: Sequence[Entry]) -> Iterator[Location]:
        """Yield where the entries say that something is, one row for each zone they name.

        Entries without side and zone yield nothing.
        """
        for found in index:
            words = found.qualifiers
            sides = [word for word in words if word in self.sides]
            zones = [word for word in words if word in self.zones]
            regions = ", ".join(word for word in words if word in self.regions)
            severity = ", ".join(word for word in words if word in self.severities)
            if not sides and not zones:
                continue
            for side in sides or [""]:
                for zone in zones or [""]:
                    yield Location(found.heading, regions, side, zone, severity)


def _fits(pattern: Entry, found: Entry) -> bool:
    return pattern.key == found.key and set(pattern.qualifiers) <= set(found.qualifiers)


def _any(index: Sequence[Entry], headings: Iterable[str]) -> bool:
    known = {heading.lower() for heading in headings}
    return any(found.key in known for found in index)


@lru_cache(maxsize=1)
def openi_mapping() -> Mapping:
    path = Path(__file__).with_name("mapping.yaml")
    return validate(Mapping, load_yaml(path), f"{path.name} of the package")
