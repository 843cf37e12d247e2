"""Parts of a prepared set that several machines make: `part.json` beside the chunks of each."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from medclip_debias.data.layout import FORMAT_VERSION
from medclip_debias.data.prepare.select import Plan
from medclip_debias.data.prepare.studies import Part
from medclip_debias.data.prepare.workspace import CHUNKS, PART
from medclip_debias.errors import UserError
from medclip_debias.files import read_json, write_json

# To and from JSON values.
_PLAN = TypeAdapter(Plan)
_PART = TypeAdapter(Part)

_LOCAL = ("rejected", "missing", "selected")
"""Fields of a plan that differ between machines: paths in the reasons, and times of change."""


def parse(text: str) -> tuple[int, int]:
    """Read ``i/n``.

    >>> parse("2/8")
    (2, 8)
    """
    match = re.fullmatch(r"(\d{1,6})/(\d{1,6})", text.strip())
    number, count = (int(match[1]), int(match[2])) if match else (0, 0)
    if not 1 <= number <= count:
        raise UserError(f"--shard is '{text}'; give i/n with 1 <= i <= n, as in 1/8.")
    return number, count


def write_part(folder: Path, part: Part, plan: Plan, shard: tuple[int, int]) -> None:
    """Write ``part.json`` beside the chunks of a finished part."""
    chunks, needed = part.chunks, {*part.reports, *part.images}
    for path in chunks.folder.iterdir():
        if path.stem not in needed:  # of a source that changed meanwhile
            path.unlink()
    keys = {image.key for study in part.studies for image in study.images}
    images = (item for name in part.images for item in chunks.values(name).items())
    readable = ["hash" in value for key, value in images if key in keys]
    moved = part._replace(chunks=replace(chunks, folder=Path(CHUNKS)))
    content = {
        "format_version": FORMAT_VERSION,
        "shard": list(shard),
        "counts": {
            "studies": len(part.studies),
            "images": sum(readable),
            "rejected": len(readable) - sum(readable),
        },
        "source_stamp": plan.source_stamp(part.heads),
        **plan.meta,
        "plan": _PLAN.dump_python(plan, mode="json"),
        "part": _PART.dump_python(moved, mode="json"),
    }
    write_json(folder / PART, content | {"hash": _hash(content)})


def read_part(folder: Path) -> dict[str, Any]:
    """Return the content of ``part.json``."""
    path = folder / PART
    if not path.is_file():
        raise UserError(
            f"{folder}: is not part of a prepared set (it has no {PART}); give folders that"
            " 'prepare --shard i/n' wrote."
        )
    content = read_json(path, "copy or make this part again")
    if content.get("format_version", FORMAT_VERSION) != FORMAT_VERSION:
        raise UserError(f"{path}: was written by another version; make this part again.")
    if content.pop("hash", None) != _hash(content):
        raise UserError(f"{path}: is damaged; copy or make this part again.")
    return content


def read_parts(folders: Sequence[Path]) -> tuple[Plan, list[Part]]:
    """Return what all parts of a set share, and the parts.

    Of the pixels only the size is looked at: they are compared row by row when they are copied.
    """
    if not folders:
        raise UserError("merge needs the folders of all parts, then the folder to make.")
    contents = [read_part(folder) for folder in folders]
    shared = [
        {name: value for name, value in content["plan"].items() if name not in _LOCAL}
        for content in contents
    ]
    first, count = folders[0], contents[0]["shard"][1]
    known: dict[int, Path] = {}
    for folder, content, plan in zip(folders, contents, shared, strict=True):
        number, of = content["shard"]
        if plan != shared[0] or of != count:
            raise UserError(
                f"{folder}: does not belong with {first}; the parts of a set have the same source,"
                " settings, version and number of parts."
            )
        other = known.setdefault(number, folder)
        if other is not folder:
            raise UserError(
                f"{folder}: is part {number}/{of}, as is {other}; give every part once."
            )
    missing = [number for number in range(1, count + 1) if number not in known]
    if missing:
        raise UserError(
            f"part {missing[0]}/{count} is missing; make it with --shard {missing[0]}/{count} and"
            " give its folder too."
        )
    first_part = min(contents, key=lambda content: content["shard"])
    parts = [_part(*pair) for pair in zip(folders, contents, strict=True)]
    return _PLAN.validate_python(first_part["plan"]), parts


def _part(folder: Path, content: dict[str, Any]) -> Part:
    """Return a part whose files are what they were when it was finished."""
    part = _PART.validate_python(content["part"])
    chunks = replace(part.chunks, folder=folder / part.chunks.folder)
    for name in (*part.reports, *part.images):
        try:
            chunks.values(name)
        except ValueError as error:
            raise UserError(
                f"{error}: is not what was prepared, so the part is damaged; copy or make it again."
            ) from None
    return part._replace(chunks=chunks)


def _hash(values: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()
