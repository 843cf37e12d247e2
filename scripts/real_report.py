"""The page of `make real`: what one model reaches on each archive, from the files of its run."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from commands import run_script
from medclip_debias.data.layout import STATED, TEMPLATE
from medclip_debias.data.store import PreparedSet
from medclip_debias.errors import UserError
from medclip_debias.evaluation.catalogue import CHANCE, METRICS, Metric
from medclip_debias.evaluation.table import FLOORS, Results, read_results
from medclip_debias.files import read_json, write_text
from medclip_debias.reporting.content import interval, number, render
from medclip_debias.reporting.tables import Table

LEAD = (
    "One model, trained on reports and on sentences from labels of several archives, judged on the"
    " test part of each. For research only, not for diagnosis."
)
MAPS = ("pointing_game", "cnr_signed", "miou")
BOXES = (
    "Boxes on test images: the archive's own under its name, those of another group under"
    " ARCHIVE-GROUP; the same boxes by Grad-CAM and by occlusion of the same model under"
    " ARCHIVE-gradcam and ARCHIVE-occlusion. Chance is the boxes' share of the image. Other"
    " images' boxes: the same maps on the boxes of other images. Place prior: the mean of the"
    " class's boxes as a map, which has seen boxes. A map that says where a"
    " finding is beats all three."
)


def write_report(out: Path, archives: list[str]) -> Path:
    """Write ``report.html``, and ``results.json`` with the rows of all archives, to ``out``.

    Args:
        out: folder of the run.
        archives: names of its archives, in order.
    """
    folders = {path.name: path for path in sorted((out / "archives").iterdir()) if path.is_dir()}
    results = {name: read_results(path / "results.json") for name, path in folders.items()}
    own = {name: results[name] for name in archives if name in results}
    calibration = read_json(out / "calibration.json", "run 'make real' again")
    maps = {metric.name: metric for metric in METRICS if metric.protocol == "grounding"}
    sections = [
        ("Zero-shot classification", [_zero_shot(own), _classes(own)]),
        ("Grounding", [_grounding(results, maps[name]) for name in MAPS]),
        ("Left and right", [_laterality(results)]),
        ("Retrieval", [_retrieval({n: own[n] for n in own if has_reports(out / "prepared" / n)})]),
        ("Calibration across archives", [_calibration(calibration)]),
    ]
    rows = [{"archive": name} | row for name, found in results.items() for row in found["metrics"]]
    counts = {name: found.get("counts") for name, found in results.items()}
    Results(archives=counts, calibration=calibration, metrics=rows).write(out / "results.json")
    page = out / "report.html"
    shown = {"title": "Real radiographs", "lead": LEAD, "sections": sections}
    write_text(page, render("tables.html.j2", **shown))
    return page


def has_reports(prepared: Path) -> bool:
    """Whether a set has sentences that are no labels' own."""
    sections = PreparedSet.open(prepared).sentences["section"]
    return not sections.isin((TEMPLATE, STATED)).all()


def _zero_shot(results: Mapping[str, Results]) -> Table:
    sides = ("mean_auc_positive", "mean_auc_negative", "mean_auc")
    rows = []
    for name, found in results.items():
        details = found.details("zero_shot")
        counts = (number(details.get("images")), number(len(details.get("classes") or {})))
        values = [number(found.value("zero_shot", side)) for side in sides]
        rows.append((name, *counts, *values, interval(found.interval("zero_shot", "mean_auc"))))
    head = ("archive", "images", "classes", "POS", "NEG", "both", "95% interval")
    caption = (
        "Mean AUC of the archive's label columns: by the prompt for the finding alone, by the one"
        " against it alone, by their difference; chance is 0.5. Intervals over patients."
    )
    return Table("Archives", head, tuple(rows), caption)


def _classes(results: Mapping[str, Results]) -> Table:
    rows = []
    for name, found in results.items():
        for label, counts in (found.details("zero_shot").get("classes") or {}).items():
            sides = ("auc_positive", "auc_negative", "auc")
            values = [number(found.value("zero_shot", side, label)) for side in sides]
            judged = f"{counts['positive']} / {counts['negative']}"
            bounds = interval(found.interval("zero_shot", "auc", label))
            rows.append((name, label, judged, *values, bounds))
    head = ("archive", "class", "present / absent", "POS", "NEG", "both", "95% interval")
    return Table("Classes", head, tuple(rows), "AUC of every judged class.", words=2)


def _grounding(results: Mapping[str, Results], metric: Metric) -> Table:
    rows = []
    for name, found in results.items():
        row = found.row("grounding", metric.name)
        if row is None:
            continue
        floors = found.floors(metric)
        beside = [number(floors.get(floor)) for floor in FLOORS]
        bounds = interval(found.interval("grounding", metric.name))
        phrases = number(found.details("grounding").get("phrases"))
        rows.append((name, phrases, number(row["value"]), bounds, *beside))
    head = ("boxes", "phrases", metric.title, "95% interval", *FLOORS)
    caption = metric.definition + (f" {BOXES}" if metric.name == MAPS[0] else "")
    return Table(metric.title, head, tuple(rows), caption)


def _laterality(results: Mapping[str, Results]) -> Table:
    rows = []
    for name, found in results.items():
        value, details = found.value("laterality", "right_side"), found.details("laterality")
        if value is not None and not name.endswith(("-gradcam", "-occlusion")):  # the same scores
            bounds = interval(found.interval("laterality", "right_side"))
            rows.append(
                (
                    name,
                    details.get("asked", ""),
                    number(details["sentences"]),
                    number(value),
                    bounds,
                )
            )
    head = ("archive", "asked", "sentences", "right side", "95% interval")
    caption = (
        "Sentences that name one side, from reports, or of findings whose boxes lie on one: the"
        " share that scores higher with its image than with left and right exchanged. Chance is .5."
    )
    return Table("Left and right", head, tuple(rows), caption)


def _retrieval(results: Mapping[str, Results]) -> Table:
    rows = []
    for name, found in results.items():
        value, chance = (found.value("study_retrieval", "recall", None, g) for g in (None, CHANCE))
        if value is None:
            continue
        details = found.details("study_retrieval")
        counts = [number(details.get(key)) for key in ("studies", "distinct_reports")]
        bounds = interval(found.interval("study_retrieval", "recall"))
        lenient = number(found.value("study_retrieval", "recall", None, "lenient"))
        rows.append((name, *counts, number(value), bounds, lenient, number(chance)))
    head = ("archive", "studies", "distinct reports", "recall", "95% interval", "lenient", CHANCE)
    caption = (
        "Mean of the recalls at 10, 50 and 100 of test studies' whole reports, both ways. Lenient:"
        " any report of the same sentences counts. Archives of labels alone have no reports."
    )
    return Table("Retrieval", head, tuple(rows), caption)


def _calibration(content: Mapping[str, Any]) -> Table:
    rows = tuple(
        (
            row["fitted"],
            row["judged"],
            number(row["classes"]),
            number(row["ece"]),
            number(row["intercept"]),
        )
        for row in content["rows"]
    )
    caption = (
        "Platt's line of each class, fitted to the validate images of one archive and judged on"
        " the test images of another: mean expected calibration error (0 best) and mean intercept"
        " (above 0: the finding is commoner than said) over the classes that both allow."
    )
    head = ("fitted on", "judged on", "classes", "ECE", "intercept")
    return Table("Calibration", head, rows, caption, words=2)


def main(run: Annotated[Path, typer.Argument(help="folder of make real: runs/real")]) -> None:
    """Write the page of a finished run again."""
    prepared = run / "prepared"
    if not prepared.is_dir():
        raise UserError(f"{run}: is no folder of 'make real'; give one, such as runs/real.")
    print(write_report(run, [path.name for path in sorted(prepared.iterdir()) if path.is_dir()]))


if __name__ == "__main__":
    sys.exit(run_script(main))
