"""Write a run's report: one HTML file that needs nothing beside it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from medclip_debias.evaluation.catalogue import (
    PAPER_BASE,
    PAPER_BEST,
    PAPER_COLUMNS,
    PAPER_TABLE_1,
    of_protocol,
)
from medclip_debias.files import write_text
from medclip_debias.models.synthetic import WARNING
from medclip_debias.reporting import content, training
from medclip_debias.reporting.comparison import comparison_part
from medclip_debias.reporting.correction import correction_part
from medclip_debias.reporting.page import render
from medclip_debias.reporting.prepared_page import write_prepared_page
from medclip_debias.reporting.run_files import read_run
from medclip_debias.reporting.sections import result_sections
from medclip_debias.reporting.tables import write_run_tables

OPENING = 4
"""Pictures of either kind that the report opens with."""


def write_report(run: Path, prepared_set: Path | None = None) -> Path:
    """Write ``report.html`` (and its tables, ``results.md`` and ``results.tex``); its path.

    Whatever the run has is shown; for what it lacks, the page says what to run. Of a prepared set
    the page is that of `medclip_debias.reporting.prepared_page`.
    """
    run = Path(run)
    if (run / "meta.json").is_file() and (run / "images.bin").is_file():
        return write_prepared_page(run)
    parts = read_run(run)
    settings, results, heatmaps = parts["settings"], parts["results"], parts["heatmaps"]
    logged, validation = parts.pop("metrics"), parts.pop("validation")
    best_step = content.at(results, "model", "provenance", "best_step")
    prepared = settings.get("prepared", "PREPARED")
    pictures = opening_pictures(heatmaps.get("items") or [])
    cases: dict[str, list[Any]] = {}  # the best, median and worst phrases by title of the metric
    titles = {metric.name: metric.title for metric in of_protocol("grounding")}
    for case in heatmaps.get("cases") or ():
        cases.setdefault(titles.get(case["metric"], case["metric"]), []).append(case)
    page = render(
        "report.html.j2",
        **parts,
        name=run.resolve().name,
        data=results.get("data") or {},
        evaluate_command=f"medclip-debias evaluate {run}/model {prepared} --out {run}",
        synthetic=WARNING,
        tiles=content.tiles(results),
        pictures=pictures,
        shown=[item for _, shown in pictures for item in shown],
        cases=cases,
        few_patients=content.few_patients(content.patients_of(results)),
        metrics=content.metric_rows(results),
        paper=(PAPER_BASE, PAPER_BEST, PAPER_COLUMNS),
        paper_rows=[[name, *content.paper_cells(name).values()] for name in PAPER_TABLE_1],
        beside=comparison_part(run),
        sections=result_sections(run, results),
        training=training.how_trained(settings, logged, best_step),
        trained=bool(logged),
        curves=training.curves(logged),
        validated=training.validation_curves(validation, settings.get("train") or {}),
        correction=correction_part(run, settings, prepared_set),
    )
    path = run / "report.html"
    write_text(path, page)
    if results:
        write_run_tables(run, run.resolve().name, results)
    return path


def opening_pictures(
    items: Sequence[dict[str, Any]],
) -> list[tuple[str, list[dict[str, Any]]]]:
    """The first `OPENING` pictures with the peak in a true box, and the first with it outside."""
    groups = []
    for inside, title in ((True, "Right: the peak lies in a true box"), (False, "Wrong: outside")):
        fitting = [item for item in items if item["inside"] is inside]
        title = f"{title} ({len(fitting)} of {len(items)} pictures)"
        groups.append((title, fitting[:OPENING]))
    return groups if any(shown for _, shown in groups) else []
