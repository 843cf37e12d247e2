"""Run an experiment: measure what is not measured yet, then write results, plot and page.

The page says what was done and found, and how to repeat it; it is written in Markdown, and the HTML
page is that Markdown with the plot in it.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from markupsafe import Markup

from medclip_debias import __version__
from medclip_debias.data.executor import cpus, map_pieces
from medclip_debias.errors import UserError, counted
from medclip_debias.experiments.experiment import Cell, Experiment, Row, Summary
from medclip_debias.files import atomic_file, check_out, read_json, write_json, write_text
from medclip_debias.markdown import markdown_table
from medclip_debias.reporting import plots
from medclip_debias.reporting.tables import Table

Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class Plan:
    """What a run would do."""

    cells: list[dict[str, Any]]
    missing: list[int]
    inputs: list[Cell]
    seconds: float
    workers: int


def plan(experiment: Experiment, out: Path, workers: int | None = None) -> Plan:
    """Look at what ``out`` holds already, and predict how long the rest takes.

    Processes are by default as many as are worth it.
    """
    cells = experiment.cells()
    # A method that undoes what a setting changes is one cell under all of them.
    first = {_path(experiment, out, cells[n]): n for n in reversed(range(len(cells)))}
    missing = sorted(n for path, n in first.items() if not path.is_file())
    each = [experiment.seconds(cells[n]) for n in missing]
    total = sum(each)
    lacking: dict[Path, tuple[Cell, float]] = {}  # a cell for each thing that is not there
    for n in missing:
        shared = experiment.shared(cells[n])
        if experiment.inputs is None or shared is None:
            continue
        if not (folder := shared.folder(experiment.inputs)).is_dir():
            lacking.setdefault(folder, (cells[n], shared.seconds))
    before = [seconds for _, seconds in lacking.values()]
    # A process costs its imports; short experiments are faster in this one.
    chosen = workers or (min(cpus(), len(missing)) if total + sum(before) > 60 else 1)
    chosen = max(1, chosen)
    seconds = max([sum(before) / chosen, *before]) + max([total / chosen, *each])
    return Plan(cells, missing, [cell for cell, _ in lacking.values()], seconds, chosen)


def prediction(experiment: Experiment, ahead: Plan) -> str:
    """One line: the cells, and how long the missing ones take."""
    every = len({experiment.key(cell) for cell in ahead.cells})
    done = every - len(ahead.missing)
    first = f"{counted(len(ahead.inputs), 'input')} to make first, " if ahead.inputs else ""
    return (
        f"{experiment.label()}: {counted(every, 'cell')}, {done} measured already,"
        f" {first}about {_duration(ahead.seconds)} for the rest with"
        f" {counted(ahead.workers, 'worker')}"
    )


def run_experiment(
    experiment: Experiment,
    out: Path,
    *,
    workers: int | None = None,
    progress: Progress | None = None,
    say: Callable[[str], None] | None = None,
    ahead: Plan | None = None,
    cluster: str | None = None,
) -> dict[str, Any]:
    """Run an experiment in the folder ``out``; a run that was stopped resumes there.

    Args:
        experiment: with its settings.
        out: folder; gets ``cells/``, ``results.json``, ``settings.yaml``, ``figure.png``,
            ``figure.svg``, ``page.md`` and ``page.html``.
        workers: processes; default as many cores as are worth it.
        progress: called with what is done and what there is to do, of inputs and cells.
        say: called with one line: the predicted time.
        ahead: what `plan` found; by default it is asked.
        cluster: where cells are measured; see `medclip_debias.data.executor.map_pieces`.

    Returns:
        The content of ``results.json``.
    """
    check_out(out)
    ahead = ahead or plan(experiment, out, workers)
    if say:
        say(prediction(experiment, ahead))
    rows, seconds = _measured(experiment, out, ahead, progress, cluster)
    measured = {
        "version": type(experiment).version,
        "medclip_debias": __version__,
        "seconds": seconds,
        "rows": rows,
    }
    return _write(experiment, measured, out)


def rewrite(experiment: Experiment, results: Mapping[str, Any], out: Path) -> dict[str, Any]:
    """Write plot, page and results anew from what a run measured; nothing is measured.

    ``results`` is the content of the run's ``results.json``; the new one, which is returned, has
    its cells and the versions that measured them. ``out`` gets all but ``cells/``, so that a run
    there measures from the start.
    """
    check_out(out)
    try:
        return _write(experiment, results, out)
    except (KeyError, TypeError, ValueError, IndexError) as error:  # cells come from a file
        raise UserError(
            f"the cells do not hold what {experiment.label()} reads ({type(error).__name__}: "
            f"{error}); run it again."
        ) from error


def _write(experiment: Experiment, measured: Mapping[str, Any], out: Path) -> dict[str, Any]:
    """All files of a run but its cells; the content of ``results.json``."""
    rows = list(measured["rows"])
    summary = experiment.summary(rows)
    results = {
        experiment.kind: experiment.label(),
        "version": measured["version"],
        "medclip_debias": measured["medclip_debias"],
        "settings": experiment.settings.model_dump(mode="json"),
        "findings": summary.findings,
        "figures": summary.figures,
        "cells": len(rows),
        "seconds": measured["seconds"],
        "rows": rows,
    }
    figure = experiment.figure(rows)
    for kind in ("svg", "png"):
        with atomic_file(out / f"figure.{kind}") as temporary:
            temporary.write_bytes(plots.drawn_as(kind, figure, dpi=160))
    text = page(experiment, summary, results)
    write_text(out / "page.md", text)
    write_text(out / "page.html", html_page(text, (out / "figure.svg").read_bytes()))
    write_text(out / "settings.yaml", yaml.safe_dump(results["settings"], sort_keys=False))
    write_json(out / "results.json", results)
    return results


def _measured(
    experiment: Experiment, out: Path, ahead: Plan, progress: Progress | None, cluster: str | None
) -> tuple[list[Row], float]:
    """Measure what is missing of a plan; every cell joined with its values, and all seconds."""
    missing = [ahead.cells[n] for n in ahead.missing]
    sharing = [(experiment, cell) for cell in ahead.inputs]
    jobs = [(experiment, cell, str(_path(experiment, out, cell))) for cell in missing]
    total = len(sharing) + len(jobs)
    done = 0
    processes = min(ahead.workers, max(1, len(sharing)))
    for _ in map_pieces(_make_shared, sharing, processes, cluster=cluster if sharing else None):
        done += 1
        if progress:
            progress(done, total)
    workers = 1 if cluster else max(1, min(ahead.workers, len(jobs)))
    failed: list[str] = []
    measuring = map_pieces(
        _measure,
        jobs,
        workers,
        cluster=cluster if jobs else None,
        start=experiment.begin,
        start_args=(workers,),
    )
    for number, failure in enumerate(measuring, start=1):
        if failure is not None:
            failed.append(failure)
            if len(failed) == number:  # what fails from the start will fail everywhere
                break
        if progress:
            progress(done + number, total)
    if failed and len(jobs) == 1:
        raise UserError(failed[0])
    if failed:
        raise UserError(
            f"{failed[0]} ({len(failed)} of {len(jobs)} cells failed; what was measured is kept:"
            " fix that, then run the same command again.)"
        )
    keys = ("cell", "values", "seconds")
    paths = [_path(experiment, out, cell) for cell in ahead.cells]
    found = {path: read_json(path, "remove it to measure it again", keys=keys) for path in paths}
    seconds = sum(one["seconds"] for one in found.values() if "taken_from" not in one)
    rows = [
        joined_row(cell, found[path]["values"])
        for cell, path in zip(ahead.cells, paths, strict=True)
    ]
    return rows, seconds


def joined_row(cell: Cell, values: Row) -> Row:
    """What a cell is and what it gave; a value that has the name of a setting makes room."""
    named = {f"measured {name}" if name in cell else name: v for name, v in values.items()}
    return dict(cell) | named


def _make_shared(job: tuple[Experiment, Cell]) -> None:
    experiment, cell = job
    experiment.shared_folder(cell)


def _measure(job: tuple[Experiment, Cell, str]) -> str | None:
    """Measure a cell; return the sentence of what a user can mend: the others are measured."""
    experiment, cell, path = job
    began = time.perf_counter()
    try:
        values = experiment.measure(cell)
    except UserError as error:
        return str(error)
    seconds = time.perf_counter() - began
    write_json(Path(path), {"cell": dict(cell), "values": values, "seconds": seconds})
    return None


def _path(experiment: Experiment, out: Path, cell: Cell) -> Path:
    return out / "cells" / f"{experiment.key(cell)}.json"


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def page(experiment: Experiment, summary: Summary, results: Mapping[str, Any]) -> str:
    """Write the page; the files that it points to lie beside it."""
    lines = [f"# {experiment.title}", ""]
    if experiment.source:
        lines += [f"Source: {experiment.source}.", ""]
    settings = experiment.shown(results["settings"])
    lines += [
        experiment.about.strip(),
        "",
        "## Findings",
        "",
        *(f"- {sentence}" for sentence in summary.findings),
        "",
        f"![{experiment.title}]({experiment.plot})",
        "",
        *tables(summary.tables),
        "## Repeat it",
        "",
        "```",
        experiment.command(),
        "```",
        f"{results['cells']} cells, {results['seconds']:.0f} s of measuring in all (what another "
        f"{experiment.kind} had measured before is not counted). Settings:",
        "",
        *(f"- {key.replace('_', ' ')}: {_words(value)}" for key, value in settings.items()),
        "",
        "Every cell: [results.json](results.json) (`results.json` of the run); settings "
        f"for {experiment.reader}: [settings.yaml](settings.yaml).",
        "",
    ]
    return "\n".join(lines)


def html_page(text: str, svg: bytes) -> str:
    """A page in Markdown as one HTML page that needs no other file, with the plot ``svg`` in it."""
    from markdown_it import MarkdownIt

    from medclip_debias.reporting.content import render
    from medclip_debias.reporting.plots import inline

    markdown = MarkdownIt("commonmark", {"html": False}).enable("table")
    tokens = markdown.parse(text)
    title = tokens[1].content
    names = iter(range(1, len(tokens)))
    for place, token in enumerate(tokens):
        if token.type == "th_open":
            token.attrSet("scope", "col")
        elif token.type == "tr_open" and tokens[place + 1].type == "td_open":
            head, _, end = tokens[place + 1 : place + 4]  # the first cell names the row
            head.tag = end.tag = "th"
            head.attrSet("scope", "row")
    plot = inline(svg, f"Plot of {title}; its numbers are in the tables")
    markdown.add_render_rule("image", lambda *_: str(plot))
    markdown.add_render_rule(
        "table_open",
        lambda *_: (
            f'<div class="scroll" tabindex="0" role="region" aria-label="Table {next(names)}">'
            "<table>"
        ),
    )
    markdown.add_render_rule("table_close", lambda *_: "</table></div>")
    body = markdown.renderer.render(tokens[3:], markdown.options, {})
    first, *rest = map(Markup, re.split(r"<h2>(.*?)</h2>\n", body))
    sections = list(zip(rest[::2], rest[1::2], strict=True))
    return render("experiment.html.j2", heading=title, introduction=first, sections=sections)


def _words(value: Any) -> str:
    if isinstance(value, list | tuple):
        return ", ".join(map(_words, value)) or "none"
    if isinstance(value, Mapping):
        return "; ".join(f"{key.replace('_', ' ')}: {_words(each)}" for key, each in value.items())
    return "none" if value is None else str(value)


def tables(given: Sequence[Table]) -> list[str]:
    """The lines of several tables, each under its title."""
    return [
        line
        for one in given
        for line in (f"### {one.title}", "", *markdown_table(one.head, one.rows), "")
    ]
