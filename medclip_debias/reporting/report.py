"""Write a run's report: one HTML file that needs nothing beside it."""

from __future__ import annotations

from collections.abc import Mapping
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
from medclip_debias.reporting import content, protocols, training
from medclip_debias.reporting.ceilings import HEAD, ceiling_rows
from medclip_debias.reporting.idea import idea
from medclip_debias.reporting.page import render
from medclip_debias.reporting.prepared_page import write_prepared_page
from medclip_debias.reporting.run_files import read_run
from medclip_debias.reporting.tables import write_run_tables

_TITLES = {metric.name: metric.title for metric in of_protocol("grounding")}


def write_report(run: Path, prepared_set: Path | None = None) -> Path:
    """Write ``report.html`` (and its tables, ``results.md`` and ``results.tex``); its path.

    Whatever the run has is shown; for what it lacks, the page says what to run. Of a prepared set
    the page is that of `medclip_debias.reporting.prepared_page`.

    Args:
        run: its folder.
        prepared_set: the set that it learned from, to quote sentences of; not needed for a
            synthetic one (`medclip_debias.reporting.learned_from`).

    Raises:
        UserError: the folder is no run, one of its files is damaged, or ``prepared_set`` is not
            the run's.
    """
    run = Path(run)
    if (run / "meta.json").is_file() and (run / "images.bin").is_file():
        return write_prepared_page(run)
    parts = read_run(run)
    settings, metrics, results = parts["settings"], parts["metrics"], parts["results"]
    prepared = settings.get("prepared", "PREPARED")
    rows = training.training_rows(settings, results, metrics)
    page = render(
        "report.html.j2",
        name=run.resolve().name,
        evaluated=bool(results),
        trained=bool(metrics),
        evaluate_command=f"medclip-debias evaluate {run}/model {prepared} --out {run}",
        tiles=content.tiles(results),
        training=rows,
        idea=idea(run, settings, prepared_set),
        metrics=content.metric_rows(results),
        paper_base=PAPER_BASE,
        paper_best=PAPER_BEST,
        paper_columns=PAPER_COLUMNS,
        paper={
            name: [content.paper_value(row, column) for column in range(len(row))]
            for name, row in PAPER_TABLE_1.items()
        },
        curves=training.curves(metrics),
        validated=training.validation_curves(parts["validation"], settings.get("train") or {}),
        validation=dict(rows).get("Validation", ""),
        classes=content.class_rows(results),
        refused=content.refused_lines(results),
        label_map=content.dig(results, "zero_shot.label_map.name"),
        mapped=protocols.label_map_rows(results),
        ceilings=ceiling_rows(run, results),
        ceiling_head=HEAD,
        presets=protocols.preset_rows(results),
        rankings=protocols.ranking_rows(results),
        negations=protocols.negation_rows(results),
        contradiction_chance=content.dig(results, "zero_shot.contradiction_chance"),
        reliability=protocols.reliability_plots(results),
        decisions=protocols.decision_rows(results),
        decided=content.dig(results, "zero_shot.decisions") or {},
        decision_lines=protocols.decision_lines(results),
        multiclass=content.dig(results, "zero_shot.multiclass") or {},
        multiclass_rows=protocols.multiclass_rows(results),
        categories=content.category_rows(results),
        areas=protocols.group_rows(results, "areas"),
        frequencies=protocols.group_rows(results, "sentence_frequency"),
        denied=content.dig(results, "grounding.not_groundable.phrases") or 0,
        studies=protocols.study_rows(results),
        precision=protocols.precision_rows(results),
        warning=WARNING if WARNING in (results.get("notes") or ()) else None,
        notes=[note for note in results.get("notes") or () if note != WARNING],
        self_test=content.dig(results, "self_test.sentence"),
        retrieval=content.retrieval_rows(results),
        retrieval_part=results.get("retrieval", {}),
        synthetic=bool(content.dig(results, "data.synthetic")),
        split=results.get("split", "test"),
        skipped=results.get("skipped", {}),
        heatmaps=parts["heatmaps"] or {"items": [], "cases": []},
        maps_warning=content.dig(results, "maps.sentence"),
        cases=cases(parts["heatmaps"]),
        retrieval_examples=parts["retrieval"],
        funnel=content.funnel_rows(results),
        timing=content.timing_rows(results),
        provenance=content.provenance_rows(results),
        settings_text=parts["settings_text"],
        resamples=content.dig(results, "options.bootstrap.resamples"),
        interval_kind=content.dig(results, "options.bootstrap.interval") or "percentile",
        few_patients=content.few_patients(content.patients_of(results)),
    )
    path = run / "report.html"
    write_text(path, page)
    if results:
        write_run_tables(run, run.resolve().name, results)
    return path


def cases(heatmaps: Mapping[str, Any]) -> list[tuple[str, list[dict[str, str]]]]:
    """The best, median and worst phrases under the title of each metric."""
    found: dict[str, list[dict[str, str]]] = {}
    for case in heatmaps.get("cases") or ():
        found.setdefault(_TITLES.get(case["metric"], case["metric"]), []).append(case)
    return list(found.items())
