"""One prepared set from several machines: parts, and joining them to the same bytes."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from medclip_debias.config import json_hash
from medclip_debias.data.layout import FORMAT_VERSION
from medclip_debias.data.prepare.assemble import About, assemble
from medclip_debias.data.prepare.finished import check_unchanged
from medclip_debias.data.prepare.journal import (
    Journal,
    Workspace,
    check_free,
    clear,
    journals,
    making,
)
from medclip_debias.data.prepare.outcome import Heads, Part
from medclip_debias.data.secret import keep_secret, read_secret
from medclip_debias.data.store import PreparedSet
from medclip_debias.errors import UserError
from medclip_debias.files import read_json, write_json

PART, ROWS = "part.json", "images.bin"


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


def write_part(
    work: Workspace, shard: tuple[int, int], about: About, listing: str
) -> dict[str, Any]:
    """Write ``part.json`` beside the journals of a finished part.

    Args:
        work: where the part was prepared.
        shard: its number, and of how many.
        about: what all parts share.
        listing: hash of what was selected; parts of one set have the same.

    Returns:
        Counts of what the part holds.
    """
    content = about.as_json()
    counts = _counts(Part.of(work.set))
    # Paths in the reasons differ between machines, as do times of change.
    own = ("rejected", "missing", "selected")
    shared = {name: value for name, value in content.items() if name not in own}
    values = {
        "format_version": FORMAT_VERSION,
        "shard": list(shard),
        "key": json_hash([shared, listing]),
        "counts": counts,
        "source_stamp": about.source_stamp(_heads([work.reports])),
        "about": content,
    }
    for path in (work.reports.path, work.images.path, work.rows):
        path.touch()  # a part of few studies may have had nothing to do
    values["files"] = _file_hashes(work.set)
    write_json(work.set / PART, values | {"hash": _hash(values)})
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
    folders = [Path(folder) for folder in parts]
    again = not overwrite and (out / "meta.json").is_file()
    if not again:
        check_free(out, overwrite)
    about = _checked(folders)
    if again:
        check_unchanged(out, about.source_stamp(_heads([journals(f)[0] for f in folders])))
        clear(out)
        read_secret(out)
        return PreparedSet.open(out)
    with making(out) as work:
        check_free(out, overwrite)
        work.follow({"merge": [str(folder.resolve()) for folder in folders]})
        assemble(work.set, [Part.of(folder) for folder in folders], about)
        keep_secret(work.set, out)
        work.move_to(out)
    return PreparedSet.open(out)


def _checked(folders: Sequence[Path]) -> About:
    if not folders:
        raise UserError("merge needs the folders of all parts, then the folder to make.")
    contents = [_read(folder) for folder in folders]
    first, count = folders[0], contents[0]["shard"][1]
    found: dict[int, Path] = {}
    for folder, content in zip(folders, contents, strict=True):
        number, of = content["shard"]
        if content["key"] != contents[0]["key"] or of != count:
            raise UserError(
                f"{folder}: does not belong with {first}; the parts of a set have the same source,"
                " settings, version and number of parts."
            )
        other = found.setdefault(number, folder)
        if other is not folder:
            raise UserError(
                f"{folder}: is part {number}/{of}, as is {other}; give every part once."
            )
        _check_whole(folder, content)
    missing = [number for number in range(1, count + 1) if number not in found]
    if missing:
        raise UserError(
            f"part {missing[0]}/{count} is missing; make it with --shard {missing[0]}/{count} and"
            " give its folder too."
        )
    first_part = min(contents, key=lambda content: content["shard"])
    return About.from_json(first_part["about"])


def _read(folder: Path) -> dict[str, Any]:
    path = folder / PART
    if not path.is_file():
        raise UserError(
            f"{folder}: is no part of a prepared set (it has no {PART}); give folders that"
            " 'prepare --shard i/n' wrote."
        )
    content = read_json(path, "copy or make this part again")
    try:
        if content["format_version"] != FORMAT_VERSION or (
            "about" in content and "hash" not in content
        ):
            raise UserError(f"{path}: was written by another version; make this part again.")
        if content.pop("hash") != _hash(content):
            raise ValueError
        number, count = content["shard"]
        content["shard"] = int(number), int(count)
        content["key"], content["counts"], content["about"], content["files"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(f"{path}: is damaged; copy or make this part again.") from error
    return content


def counts_of(folder: Path) -> dict[str, int]:
    """Return the counts of what a part holds, as `write_part` did."""
    counts: dict[str, int] = _read(folder)["counts"]
    return counts


def _check_whole(folder: Path, content: dict[str, Any]) -> None:
    """Stop when a file of a part is not what it was when the part was finished.

    The pixels are compared row by row while they are copied, with hashes of the journal that is
    compared here; of their file, only the size is looked at.
    """
    named = next((n for n, value in content["files"].items() if _named(folder, n) != value), "")
    if named or _counts(Part.of(folder)) != content["counts"]:
        raise UserError(
            f"{folder / named}: is not what was prepared, so the part is damaged; copy or make it"
            " again."
        )


def _file_hashes(folder: Path) -> dict[str, str]:
    """Name every file of a part but its description, which holds these names."""
    files = sorted(path.name for path in folder.iterdir() if path.name != PART)
    return {name: _named(folder, name) for name in files}


def _named(folder: Path, name: str) -> str:
    """Return the hash of a file's bytes; of the pixels, their number."""
    path = folder / name
    if not path.is_file():
        return ""
    if name == ROWS:
        return str(path.stat().st_size)
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def _hash(values: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()


def _heads(reports: Sequence[Journal]) -> Heads:
    heads = Heads()
    for journal in reports:
        for _, _, entry in journal.entries():
            heads.add(entry["head"])
    return heads


def _counts(part: Part) -> dict[str, int]:
    images = [entry for _, _, entry in part.images.entries()]
    return {
        "studies": sum(1 for _ in part.reports.entries()),
        "images": sum("hash" in entry for entry in images),
        "rejected": sum("reason" in entry for entry in images),
    }
