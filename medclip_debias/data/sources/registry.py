"""Formats of sources: a format is known because its file lies in this folder.

A format is one class with the decorator `source`: how it is recognised, how it is opened, what it
needs, and the words that the help, the messages and docs/data.md have for it. `formats` imports
every module of this folder, so they import pandas and other large libraries inside functions.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import asdict, dataclass, field
from enum import IntEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from medclip_debias.data.records import Source
from medclip_debias.errors import UserError
from medclip_debias.registry import Registry

if TYPE_CHECKING:
    from medclip_debias.data.labels import Labeller


class Sure(IntEnum):
    """How sure a format is that a path holds it; the surest format reads it."""

    NO = 0
    FILES = 1
    """There are files of a type that the format has, as other formats may."""
    LAYOUT = 2
    """Names of files or folders have the form that the format gives them."""
    DECLARED = 3
    """A file was put there to say what the folder is, as a manifest does; beside a release it is
    asked which of them is meant."""
    RELEASE = 4
    """There are files or folders under the very names of a public release."""
    EXTENSION = 5
    """There are those of a release that comes with the images and tables of another one."""


@dataclass(frozen=True)
class Given:
    """What a user gives besides the path of a source.

    Attributes:
        phrases: boxes: a COCO file or MS-CXR's CSV; a format without one looks beside its data.
        reports: folder, zip or archive of the reports, for images that came without any.
        tables: folder of MIMIC-CXR's tables, when they do not lie beside the images.
        labeller: whose automatic labels to read from MIMIC-CXR-JPG.
        split_seed: split patients by a hash with this seed; ``None`` for the source's own split.
        text_only: the reports alone.
        language: which of its languages to read, as ``es``; ``None`` for the format's own choice.
            A format of one language need not look at it: it says how the reports are split.
    """

    phrases: Path | None = None
    reports: Path | None = None
    tables: Path | None = None
    labeller: Labeller = "chexpert"
    split_seed: int | None = None
    text_only: bool = False
    language: str | None = None


class _Readable(Source, Protocol):
    """A source that recognises its format and opens a path of it."""

    @classmethod
    def recognise(cls, path: Path) -> Sure:
        """Tell how sure it is that ``path`` (which exists) holds this format."""
        ...

    @classmethod
    def open(cls, path: Path, given: Given) -> Source: ...


@dataclass(frozen=True)
class Format:
    """A registered format.

    Attributes:
        kind: its name on the command line and in ``meta.json``.
        title: its name in sentences and in docs/data.md.
        looks: what a path must hold to be recognised, for the message on one that is not.
        give: what a user gives as SOURCE, for the help and docs/data.md.
        needs: what must be there, for the same.
        takes: names of the options of `Given` that it can use; the others are refused.
        reader: the class.
        instead: by option it cannot use: what to do instead.
    """

    kind: str
    title: str
    looks: str
    give: str
    needs: str
    takes: frozenset[str]
    reader: type[_Readable]
    instead: Mapping[str, str] = field(default_factory=dict)

    def open(self, path: Path, given: Given) -> Source:
        for option, default in asdict(Given()).items():
            value = getattr(given, option)
            if value == default or option in self.takes or option in ("labeller", "language"):
                continue
            flag = f"--{option.replace('_', '-')}"
            others = " or ".join(f.title for f in formats().values() if option in f.takes)
            if option in self.instead:
                what = value if isinstance(value, Path) else path
                raise UserError(f"{what}: {self.instead[option]}.")
            if option in ("tables", "reports"):
                raise UserError(
                    f"{value}: only {others} has {option} of its own; leave out {flag}."
                )
            raise UserError(
                f"{path}: a source of kind '{self.kind}' cannot use {flag} ({others} can); leave it"
                " out."
            )
        return self.reader.open(path, given)


_R = TypeVar("_R", bound=type[_Readable])

FORMATS: Registry[Format] = Registry("format of a source", __package__)


def source(*, takes: Collection[str] = (), **words: Any) -> Callable[[_R], _R]:
    """Register the decorated class as a format; its attribute ``kind`` names it."""

    def add(reader: _R) -> _R:
        known = Format(kind=reader.kind, reader=reader, takes=frozenset(takes), **words)
        FORMATS.add(reader.kind, known, of=reader)
        return reader

    return add


def formats() -> Mapping[str, Format]:
    """Return every format by its kind, in alphabetical order."""
    return FORMATS.all()
