"""One prepared set from several machines: parts, and joining them to the same bytes."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from medclip_debias.config import json_hash
from medclip_debias.data.layout import FORMAT_VERSION
from medclip_debias.data.prepare.assemble import assemble
from medclip_debias.data.prepare.select import Plan
from medclip_debias.data.prepare.studies import Part
from medclip_debias.data.prepare.workspace import CHUNKS, PART, check_free, clear, making
from medclip_debias.data.secret import keep_secret, read_secret
from medclip_debias.data.store import PreparedSet
from medclip_debias.errors import UserError
from medclip_debias.files import read_json, read_json_or_none, write_json

# To and from JSON values.
_PLAN = TypeAdapter(Plan)
_PART = TypeAdapter(Part)


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


def finished(out: Path) -> dict[str, Any]:
    """Return what a finished set (or part of one) says of the command that wrote it."""
    for name in ("meta.json", PART):
        content = read_json_or_none(out / name)
        if isinstance(content, dict) and "source_stamp" in content:
            return content
    return {}


def check_unchanged(out: Path, stamp: str) -> None:
    """Stop when ``out`` was prepared from another source, or its source is another by now."""
    if finished(out).get("source_stamp") != stamp:
        raise UserError(
            f"{out}: is not empty, and was prepared from another source or from this one before it"
            " changed; give another folder or --overwrite (--update adds what is new)."
        )


def write_part(folder: Path, part: Part, shard: tuple[int, int], plan: Plan) -> dict[str, int]:
    """Write ``part.json`` beside the chunks of a finished part; return counts of what it holds."""
    chunks = part.chunks
    needed = {*part.reports, *part.images}
    for path in chunks.folder.iterdir():
        if path.stem not in needed:  # of a source that changed meanwhile
            path.unlink()
    content = _PLAN.dump_python(replace(plan, images=[], stamps=[]), mode="json")
    # Paths in the reasons differ between machines, as do times of change.
    local = ("rejected", "missing", "selected")
    keys = {image.key for study in part.studies for image in study.images}
    images = (item for name in part.images for item in chunks.values(name).items())
    readable = ["hash" in value for key, value in images if key in keys]
    values = {
        "format_version": FORMAT_VERSION,
        "shard": list(shard),
        "key": json_hash({name: content[name] for name in content if name not in local}),
        "counts": {
            "studies": len(part.studies),
            "images": sum(readable),
            "rejected": len(readable) - sum(readable),
        },
        "source_stamp": plan.source_stamp(part.heads),
        **plan.meta,
        "plan": content,
        "part": _PART.dump_python(
            part._replace(chunks=replace(chunks, folder=Path(CHUNKS))), mode="json"
        ),
    }
    write_json(folder / PART, values | {"hash": _hash(values)})
    return values["counts"]


def counts_of(folder: Path) -> dict[str, int]:
    """Return the counts of what a part holds, as `write_part` did."""
    counts: dict[str, int] = _read(folder)["counts"]
    return counts


def merge(parts: Sequence[Path], out: Path, *, overwrite: bool = False) -> PreparedSet:
    """Join all parts to one prepared set: the same bytes as one run of `prepare`.

    Args:
        parts: folders that `prepare_part` wrote, in any order.
        out: folder to make.
        overwrite: replace the prepared set at ``out``.

    Raises:
        UserError: a part is missing, is there twice, is damaged or belongs to another set.
    """
    out = Path(out)
    again = not overwrite and (out / "meta.json").is_file()
    if not again:
        check_free(out, overwrite)
    folders = [Path(folder) for folder in parts]
    plan, read = _checked(folders)
    if again:
        check_unchanged(out, plan.source_stamp(sum(part.heads for part in read)))
        clear(out)
        read_secret(out)
        return PreparedSet.open(out)
    with making(out) as work:
        check_free(out, overwrite)
        work.follow({"merge": [str(folder.resolve()) for folder in folders]})
        assemble(work.set, read, plan)
        keep_secret(work.set, out)
        work.move_to(out)
    return PreparedSet.open(out)


def _checked(folders: Sequence[Path]) -> tuple[Plan, list[Part]]:
    """Return what all parts share, and the parts.

    Of the pixels only the size is looked at: they are compared row by row when they are copied.
    """
    if not folders:
        raise UserError("merge needs the folders of all parts, then the folder to make.")
    contents = [_read(folder) for folder in folders]
    first, count = folders[0], contents[0]["shard"][1]
    known: dict[int, Path] = {}
    parts = []
    for folder, content in zip(folders, contents, strict=True):
        number, of = content["shard"]
        if content["key"] != contents[0]["key"] or of != count:
            raise UserError(
                f"{folder}: does not belong with {first}; the parts of a set have the same source,"
                " settings, version and number of parts."
            )
        other = known.setdefault(number, folder)
        if other is not folder:
            raise UserError(
                f"{folder}: is part {number}/{of}, as is {other}; give every part once."
            )
        parts.append(_part(folder, content))
    missing = [number for number in range(1, count + 1) if number not in known]
    if missing:
        raise UserError(
            f"part {missing[0]}/{count} is missing; make it with --shard {missing[0]}/{count} and"
            " give its folder too."
        )
    first_part = min(contents, key=lambda content: content["shard"])
    return _PLAN.validate_python(first_part["plan"]), parts


def _read(folder: Path) -> dict[str, Any]:
    path = folder / PART
    if not path.is_file():
        raise UserError(
            f"{folder}: is not part of a prepared set (it has no {PART}); give folders that"
            " 'prepare --shard i/n' wrote."
        )
    content = read_json(path, "copy or make this part again")
    if content.get("format_version", FORMAT_VERSION) != FORMAT_VERSION or "about" in content:
        raise UserError(f"{path}: was written by another version; make this part again.")
    if content.pop("hash", None) != _hash(content):
        raise UserError(f"{path}: is damaged; copy or make this part again.")
    return content


def _part(folder: Path, content: dict[str, Any]) -> Part:
    """Return a part whose files are what they were when it was finished."""
    part = _PART.validate_python(content["part"])
    chunks = replace(part.chunks, folder=folder / part.chunks.folder)
    for name in (*part.reports, *part.images):
        try:
            damaged = "" if chunks.has_all_rows(name, chunks.values(name)) else ".bin"
        except ValueError:
            damaged = ".json"
        if damaged:
            raise UserError(
                f"{chunks.path(name, damaged)}: is not what was prepared, so the part is damaged;"
                " copy or make it again."
            )
    return part._replace(chunks=chunks)


def _hash(values: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()
