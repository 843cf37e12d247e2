"""Write a run's report: one HTML file that needs nothing beside it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from medclip_debias.evaluation.catalogue import (
    PAPER_BASE,
    PAPER_BEST,
    PAPER_COLUMNS,
    PAPER_TABLE_1,
    VALIDATION,
    of_protocol,
)
from medclip_debias.files import write_text
from medclip_debias.models.synthetic import WARNING
from medclip_debias.reporting import content
from medclip_debias.reporting.comparison import comparison_part
from medclip_debias.reporting.content import render
from medclip_debias.reporting.correction import correction_part
from medclip_debias.reporting.plots import curve
from medclip_debias.reporting.prepared_page import write_prepared_page
from medclip_debias.reporting.run_files import read_run
from medclip_debias.reporting.sections import result_sections
from medclip_debias.reporting.tables import latex, markdown, results_table
from medclip_debias.training.settings import TrainSettings

Columns = Mapping[str, list[float | None]]

OPENING = 4
"""Pictures of either kind that the report opens with."""
# Settings that have a sentence of their own, and those that change no number of a run.
_IN_SENTENCES = {
    "steps", "batch_size", "sentences_per_study", "task", "lr", "warmup_steps", "schedule", "seed",
    "validate_every", "validate_images", "best_metric", "patience", "keep", "workers", "device",
    "log_every", "checkpoint_every", "stall_minutes", "wandb", "wandb_project",
}  # fmt: skip


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
        training=how_trained(settings, logged, best_step),
        trained=bool(logged),
        curves=curves(logged),
        validated=validation_curves(validation, settings.get("train") or {}),
        correction=correction_part(run, settings, prepared_set),
    )
    path = run / "report.html"
    write_text(path, page)
    if results:
        table = results_table({run.resolve().name: results})
        write_text(run / "results.md", markdown(table))
        write_text(run / "results.tex", latex(table))
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


# -------------------------------------------------------------------------------- training


def how_trained(
    settings: Mapping[str, Any], metrics: Columns, best_step: int | None
) -> tuple[str, str]:
    """How it was trained and validated; the settings may be anybody's."""
    if not settings.get("train"):
        return "", ""
    try:
        train = TrainSettings.model_validate(settings["train"])
    except ValidationError:
        return "settings.yaml holds other values than 'train' writes; see the file below.", ""
    steps = [step for step in metrics.get("step", []) if step is not None]
    training = " ".join(train_sentences(train, steps[-1] if steps else None))
    return training, validation_sentence(train, best_step)


def train_sentences(train: TrainSettings, last_step: float | None = None) -> list[str]:
    """How it was trained, in sentences; ``last_step`` is the last one that was logged."""
    batch = f"sentences of each study: {train.sentences_per_study}"
    if train.task == "two_view":
        batch = "two augmentations of each image and no text"
    lines = [
        f"{train.steps:,} steps of AdamW with batches of {train.batch_size:,} studies; {batch}.",
        f"The learning rate {train.rate_in_words()}; seed {train.seed}.",
    ]
    if last_step is not None and last_step < train.steps:
        lines.append(f"Not finished: the last step that was logged is {last_step:,.0f}.")
    others = train.model_dump(mode="json", exclude_defaults=True, exclude=_IN_SENTENCES)
    return lines + ([f"Not at their defaults: {content.setting_words(others)}."] if others else [])


def validation_sentence(train: TrainSettings, best_step: int | None) -> str:
    """How it was validated, and which weights the model folder holds."""
    if not train.validate_every:
        return "Not validated during training; the model folder holds the weights of the last step."
    name = train.best_metric
    title = next((metric.title for metric in VALIDATION if metric.name == name), name)
    step = f" (step {best_step:,})" if train.keep == "best" and best_step is not None else ""
    stop = f" It ends after {train.patience} validations without a better value."
    return (
        f"Every {train.validate_every:,} steps, on at most {train.validate_images:,} images of the"
        f" validate split; '{title}' says which weights are best.{stop if train.patience else ''}"
        f" The model folder holds the {train.keep} weights{step}."
    )


# -------------------------------------------------------------------------------- curves


def curves(metrics: Columns) -> list[tuple[Any, str, str]]:
    """Plot, title and caption of each training curve whose column holds numbers."""
    shown = []
    for column, (title, line) in content.texts()["curves"].items():
        if known := [value for value, _ in _known(metrics, column)]:
            second = metrics.get("negative_similarity") if column == "positive_similarity" else None
            label = f"{title} over training steps, last value {known[-1]:.3g}"
            plot = curve(_steps(metrics), metrics[column], label, second=second)
            shown.append((plot, f"{title}: {known[-1]:.3g} at the end", line))
    return shown


def validation_curves(validation: Columns, train: Mapping[str, Any]) -> list[tuple[Any, str, str]]:
    """The same of the validations; a dotted line at the best step of each."""
    shown = []
    for metric in VALIDATION:
        if known := _known(validation, metric.name):
            pick = min if metric.lower_is_better else max
            best, step = pick(known, key=lambda pair: pair[0])
            title = (
                f"{metric.title}: best {content.number(best, metric.digits)} at step {step:,.0f}"
            )
            last = content.number(known[-1][0], metric.digits)
            label = f"{title}; over training steps, last value {last}"
            decides = metric.name == train.get("best_metric")
            line = metric.definition + " It decides which weights are best." * decides
            plot = curve(_steps(validation), validation[metric.name], label, mark=step)
            shown.append((plot, title, line))
    return shown


def _known(columns: Columns, name: str) -> list[tuple[float, float]]:
    """The values of a column that are there, and their steps."""
    pairs = zip(columns.get(name, []), _steps(columns), strict=False)
    return [(value, step) for value, step in pairs if value is not None]


def _steps(columns: Columns) -> list[float]:
    count = len(next(iter(columns.values()), []))
    steps = columns.get("step") or [None] * count
    return [float(place) if step is None else step for place, step in enumerate(steps)]
