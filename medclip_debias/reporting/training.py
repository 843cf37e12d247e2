"""What was trained on what, and how it went: rows, sentences and curves of a run's report."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from medclip_debias.evaluation.catalogue import VALIDATION
from medclip_debias.reporting.content import number, setting_words, texts
from medclip_debias.reporting.plots import curve
from medclip_debias.training.settings import TrainSettings

Columns = Mapping[str, list[float | None]]

# Settings that have a sentence of their own, and those that change no number of a run.
_IN_SENTENCES = {
    "steps", "batch_size", "sentences_per_study", "task", "lr", "warmup_steps", "seed",
    "validate_every", "validate_images", "best_metric", "patience", "keep", "workers", "device",
    "log_every", "checkpoint_every", "stall_minutes", "wandb", "wandb_project",
}  # fmt: skip


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
        f"The learning rate rises to {train.lr:g} in {train.warmup_steps:,} steps and falls"
        f" to 0 by a cosine; seed {train.seed}.",
    ]
    if last_step is not None and last_step < train.steps:
        lines.append(f"Not finished: the last step that was logged is {last_step:,.0f}.")
    others = train.model_dump(mode="json", exclude_defaults=True, exclude=_IN_SENTENCES)
    return lines + ([f"Not at their defaults: {setting_words(others)}."] if others else [])


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
    for column, (title, line) in texts()["curves"].items():
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
            title = f"{metric.title}: best {number(best, metric.digits)} at step {step:,.0f}"
            last = number(known[-1][0], metric.digits)
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
