"""Studies by name: run with settings from words or a file, publish, write anew from cells."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image

from medclip_debias.errors import UserError
from medclip_debias.experiments.experiment import Row
from medclip_debias.experiments.runner import rewrite, run_experiment, tables
from medclip_debias.files import atomic_file, read_json, write_text
from medclip_debias.named_settings import config_file
from medclip_debias.reporting.tables import Table
from medclip_debias.settings_files import apply_overrides, load_yaml, merge
from studies.study import STUDIES, Study, check, find_study

KEPT = ("study", "version", "medclip_debias", "seconds", "settings")
HINT = "give the results.json of a run of the study, or docs/studies/NAME.parquet"
MARKED = re.compile(r"<!-- tables ([\d ]*)-->(.*?)<!-- /tables -->", re.DOTALL)
"""The tables of a page: its marker names those that it shows (``1 3``), or none for all."""


def titles() -> dict[str, str]:
    return {name: kind.title for name, kind in STUDIES.all().items()}


def run_named(
    name: str,
    out: Path,
    *,
    words: Sequence[str] = (),
    quick: bool = False,
    config: Path | None = None,
    **how: Any,
) -> dict[str, Any]:
    """Run the study ``name`` in the folder ``out``; a run that was stopped resumes there.

    ``words`` are ``key=value`` over the settings of ``config``, over the full or the quick ones;
    what studies share is kept beside ``out``, in ``inputs``; ``how`` is `run_experiment`'s. Returns
    the content of ``results.json``.
    """
    kind = find_study(name)
    given = kind.small if quick else kind.usual
    if config is not None:
        given = merge(given, load_yaml(config_file(config)))
    given = apply_overrides(given, words)
    check(given, kind.usual, f"{name}.")
    return run_experiment(kind(given, out.parent / "inputs"), out, **how)


def rewrite_named(name: str, cells: Path, out: Path) -> dict[str, Any]:
    """Write plot and page of a study anew in ``out`` from the cells that a run published.

    ``cells`` is the ``results.json`` of the run, or the table of cells that was published. Returns
    the content of the new ``results.json``.
    """
    find_study(name)
    study, found = study_of(cells)
    if study.name != name:
        raise UserError(f"{cells}: holds the study '{study.name}', not '{name}'.")
    needed = [cell.keys() for cell in study.cells()]
    for number, row in enumerate(found["rows"], start=1):
        if not any(keys <= row.keys() for keys in needed):
            raise UserError(f"{cells}: cell {number} lacks what names a cell of '{name}'; {HINT}.")
    return rewrite(study, found, out)


def study_of(cells: Path) -> tuple[Study, dict[str, Any]]:
    """The study whose cells these are, with its settings then, and `read_cells`.

    Settings that it has got since are as usual; those that it has no more are of no effect.
    """
    found = read_cells(cells)
    kind = find_study(found["study"])
    return kind(merge(kind.usual, found["settings"])), found


def write_cells(results: Mapping[str, Any], path: Path) -> None:
    """Write the cells of a run as one table, a row each; see `read_cells`."""
    rows = results["rows"]
    names = dict.fromkeys(name for row in rows for name in row)
    table = pa.table({name: [row.get(name) for row in rows] for name in names})
    about = json.dumps({key: results[key] for key in KEPT})
    with atomic_file(path) as temporary:
        kept = table.replace_schema_metadata({"study": about})
        pq.write_table(kept, temporary, compression="zstd", compression_level=19)


def read_cells(path: Path) -> dict[str, Any]:
    """The cells of a run, and what ran: ``rows`` and the keys of `KEPT`."""
    if path.suffix == ".json":
        content = read_json(path, HINT, keys=("rows", *KEPT))
    else:
        try:
            table = pq.read_table(path)
            about = json.loads((table.schema.metadata or {})[b"study"])
            content = {key: about[key] for key in KEPT} | {"rows": _known(table.to_pylist())}
        except (OSError, pa.ArrowInvalid, KeyError, TypeError, ValueError) as error:
            raise UserError(f"{path}: is no table of a study's cells; {HINT}.") from error
    rows, version, seconds = content["rows"], content["version"], content["seconds"]
    if not (isinstance(rows, list) and rows and all(isinstance(row, dict) for row in rows)):
        raise UserError(f"{path}: 'rows' must be a list of cells; {HINT}.")
    if type(version) is not int or not isinstance(seconds, int | float):
        raise UserError(f"{path}: 'version' and 'seconds' must be numbers; {HINT}.")
    return content


def _known(value: Any) -> Any:
    """Without what a row lacks: its column is empty there."""
    if isinstance(value, dict):
        return {key: _known(part) for key, part in value.items() if part is not None}
    return [_known(part) for part in value] if isinstance(value, list) else value


def publish(name: str, out: Path, docs: Path) -> None:
    """Put cells and plot of what ran in ``out`` into ``docs``, and its tables into its page there.

    The lines of ``docs/NAME.md`` between its markers are replaced.
    """
    study, results = study_of(out / "results.json")
    page = docs / f"{name}.md"
    write_text(page, renewed(page, partial(page_lines, study, results["rows"])))
    write_cells(results, docs / f"{name}.parquet")
    with atomic_file(docs / f"{name}.png") as temporary, Image.open(out / "figure.png") as picture:
        # In 32 colours a plot has a third of its size.
        picture.convert("RGB").quantize(32).save(temporary, format="PNG", optimize=True)


def renewed(page: Path, lines: Callable[[Sequence[int]], list[str]]) -> str:
    """The text of ``page`` with ``lines`` (of the numbers that its marker names) as its tables."""
    text = page.read_text(encoding="utf-8") if page.is_file() else ""
    marked = MARKED.findall(text)
    if len(marked) != 1:
        raise UserError(
            f"{page}: must hold '<!-- tables -->' and '<!-- /tables -->' once, for the tables."
        )
    numbers = marked[0][0]
    body = "\n".join(["", "", *lines([int(number) for number in numbers.split()])])
    return MARKED.sub(lambda _: f"<!-- tables {numbers}-->{body}<!-- /tables -->", text)


def page_lines(study: Study, rows: Sequence[Row], numbers: Sequence[int] = ()) -> list[str]:
    """The lines of a study's page between its markers: the tables with these numbers, or all.

    Columns of a table that are `Study.minor` and have no star are left out.
    """
    every, found, minor = study.tables(rows), [], set[str]()
    for table in shown(every, numbers):
        columns = list(zip(table.head, *table.rows, strict=True))
        kept = [
            column
            for column in columns
            if column[0] not in study.minor or any(cell.endswith(" *") for cell in column[1:])
        ]
        minor |= {name for name, *_ in columns} - {name for name, *_ in kept}
        head, *body = map(list, zip(*kept, strict=True))
        found.append(Table(table.title, head, body))
    more = len(every) - len(found)
    left_out = [f"{more} more table{'s' * (more > 1)}"] if more else []
    if minor:
        names = ", ".join(name for name in study.minor if name in minor)
        left_out.append(f"columns without a star ({names})")
    lines = tables(found)
    if left_out:
        cells = f"docs/studies/{study.name}.parquet"
        command = f"medclip-debias study {study.name} --from {cells} --out FOLDER"
        lines += [f"`{command}` also writes {' and '.join(left_out)}.", ""]
    return lines


def shown(found: Sequence[Table], numbers: Sequence[int]) -> list[Table]:
    """The tables with these numbers, from 1, or all."""
    return [found[number - 1] for number in numbers] if numbers else list(found)
