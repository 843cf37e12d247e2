"""Find out what a path holds, and open it."""

from __future__ import annotations

from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any, get_args
from zipfile import is_zipfile

from medclip_debias.data.labels import Labeller
from medclip_debias.data.records import Source
from medclip_debias.data.sources.ms_cxr import named_boxes
from medclip_debias.data.sources.registry import Format, Given, Sure, formats
from medclip_debias.errors import UserError, did_you_mean

_LOOKED_AT = 2_000  # files and folders; a hint is not worth a walk over a whole disk


def detect(path: Path, kind: str = "auto", **options: Any) -> Source:
    """Return the source that ``path`` holds, read and checked."""
    given = Given(**options)
    path, known = Path(path), formats()
    kinds = ("auto", *known)
    if kind not in kinds:
        hint = did_you_mean(kind, kinds)
        raise UserError(f"'{kind}' is not a kind of source{hint}; known: {', '.join(kinds)}.")
    if given.labeller not in get_args(Labeller):
        raise UserError(
            f"'{given.labeller}' is not a labeller; known: {', '.join(get_args(Labeller))}."
        )
    if not path.exists():
        raise UserError(f"{path}: there is no such folder or file; check the path.")
    if given.reports is not None and not given.reports.exists():
        raise UserError(
            f"{given.reports}: there is no such folder or file of reports; check the path."
        )
    if given.tables is not None and not given.tables.is_dir():
        raise UserError(f"{given.tables}: there is no such folder of tables; check the path.")
    if given.phrases is not None:
        given = replace(given, phrases=named_boxes(given.phrases))
    return (_surest(path) if kind == "auto" else known[kind]).open(path, given)


def _surest(path: Path) -> Format:
    known = formats().values()
    sure = {format_.kind: format_.reader.recognise(path) for format_ in known}
    most = max(sure.values())
    # A release beside a table of one's own: which of them is meant, only its owner knows.
    first, *others = [f for f in known if sure[f.kind] in (most, Sure.DECLARED)]
    if most <= Sure.FILES and path.is_file() and is_zipfile(path):
        raise UserError(f"{path}: is packed; unpack it, and give the folder that it makes.")
    if most == Sure.NO:
        *some, last = [format_.looks for format_ in known]
        raise UserError(
            f"{path}: is not a known layout; expected {', '.join(some)}, or {last}{_inside(path)}."
        )
    if others:
        names = " or ".join(format_.kind for format_ in (first, *others))
        raise UserError(f"{path}: may be {names}; say which with --kind.")
    return first


def _inside(path: Path) -> str:
    """Point to the folder that was meant: downloads nest (``physionet.org/files/...``)."""
    folders = (p for pattern in ("*", "*/*", "*/*/*", "*/*/*/*") for p in path.glob(pattern))
    for folder in sorted(islice(folders, _LOOKED_AT)):
        if folder.is_dir() and any(f.reader.recognise(folder) for f in formats().values()):
            return f"; did you mean {folder}?"
    return ""
