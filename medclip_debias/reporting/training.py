"""What was trained on what, and how it went: rows, sentences and curves of a run's report."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from medclip_debias.evaluation.catalogue import VALIDATION
from medclip_debias.reporting.content import Rows, at, number, texts, words
from medclip_debias.reporting.plots import curve
from medclip_debias.training.settings import TrainSettings

Columns = Mapping[str, list[float | None]]

# Settings that have a sentence of their own, and those that change no number of a run.
_IN_SENTENCES = {
    "steps", "batch_size", "sentences_per_study", "task", "lr", "warmup_steps", "seed",
    "validate_every", "validate_images", "best_metric", "patience", "keep", "workers", "device",
    "log_every", "checkpoint_every", "stall_minutes", "wandb", "wandb_project",
}  # fmt: skip


def training_rows(
    settings: Mapping[str, Any], results: Mapping[str, Any], metrics: Columns
) -> Rows:
    """What was trained on what, as rows of a name and sentences."""
    data, model = results.get("data") or {}, results.get("model") or {}
    architecture = settings.get("model") or model.get("architecture") or {}
    how = settings.get("preprocessing") or model.get("preprocessing") or {}
    counts = {words(k): n for k, n in (data.get("counts") or {}).items() if type(n) is int and n}
    side, size = how.get("input_size"), at(how, "prepare", "size")
    folder, most = at(architecture, "text", "folder"), at(architecture, "text", "max_tokens")
    encoder, grid = at(architecture, "image", "arch"), model.get("grid")
    parts = [
        encoder,
        grid and f"{grid[0]} x {grid[1]} regions",
        (n := model.get("parameters")) and f"{number(n)} parameters with the text encoder",
        (n := at(architecture, "dim")) and f"shared vectors of {n} numbers",
    ]
    start = at(architecture, "image", "weights") or "random weights (no pretraining)"
    reads = f"; reads up to {most} tokens of a sentence" if most else ""
    starts = f"; starts from {start}" if encoder else ""
    training = validation = ""
    if settings.get("train"):
        try:  # anybody's settings
            train = TrainSettings.model_validate(settings["train"])
            steps = [step for step in metrics.get("step", []) if step is not None]
            training = " ".join(train_sentences(train, steps[-1] if steps else None))
            best_step = at(model, "provenance", "best_step")
            validation = validation_sentence(train, best_step)
        except ValidationError:
            training = "settings.yaml holds other values than 'train' writes; see the file below."
    prepared = settings.get("prepared")
    if isinstance(prepared, list):
        prepared = ", ".join(f"{each['path']} (weight {each['weight']:g})" for each in prepared)
    rows: dict[str, Any] = {
        **_archives(results),
        "Prepared set": prepared,
        "Counts": _listed(counts),
        "Images by split": _listed(dict(sorted((data.get("splits") or {}).items()))),
        "Starts from": at(architecture, "start_from"),
        "Image encoder": ", ".join(filter(None, parts)) + starts,
        "Text encoder": folder and f"from {folder}{reads}",
        "Similarity": setting_words(architecture.get("similarity") or ""),
        "Input": side and size and f"{side} x {side} pixels out of {size} x {size}",
        "Loss": setting_words(settings.get("loss") or ""),
        "Training": training,
        "Validation": validation,
    }
    return [[name, str(value)] for name, value in rows.items() if value]


def _listed(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{number(count)} {name}" for name, count in counts.items())


def _archives(results: Mapping[str, Any]) -> dict[str, Any]:
    """The source of the data; two rows where the model was trained on another set."""
    source, trained = at(results, "data", "source"), at(results, "archives", "model") or {}
    if source and at(results, "data", "synthetic"):
        source = f"{source}, synthetic: generated images and reports, no patient"
    relation = at(results, "archives", "relation")
    if relation in (None, "same set") or not trained.get("kind"):
        return {"Data source": source}
    if relation == "unknown":
        relation = "whether it is the same archive is not known"
    return {
        "Model trained on": trained["kind"] + ", synthetic" * bool(trained.get("synthetic")),
        "Evaluated on": f"{source} ({relation})",
    }


def setting_words(value: Any) -> str:
    """Settings as words: the kind of a thing, then its own settings in brackets.

    >>> setting_words({"kind": "debiased", "eta": {"kind": "constant", "value": 0.05}})
    'debiased (eta: constant (value 0.05))'
    """
    if isinstance(value, Mapping):
        listed = ", ".join(
            f"{words(key)}{':' * isinstance(each, Mapping)} {setting_words(each)}"
            for key, each in value.items()
            if key != "kind"
        )
        if "kind" not in value:
            return listed
        return f"{value['kind']} ({listed})" if listed else str(value["kind"])
    if isinstance(value, list | tuple):
        return "; ".join(map(setting_words, value)) or "none"
    if isinstance(value, bool):
        return "on" if value else "off"
    return "none" if value is None else f"{value:g}" if isinstance(value, float) else str(value)


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
    return lines + ([f"Not as by default: {setting_words(others)}."] if others else [])


def validation_sentence(train: TrainSettings, best_step: int | None) -> str:
    """How it was validated, and which weights the model folder holds."""
    if not train.validate_every:
        return "Not validated on the way; the model folder holds the weights of the last step."
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
        values = metrics.get(column, [])
        known = [value for value in values if value is not None]
        if not known:
            continue
        second = metrics.get("negative_similarity") if column == "positive_similarity" else None
        label = f"{title} over training steps, last value {known[-1]:.3g}"
        plot = curve(_steps(metrics), values, label, second=second)
        shown.append((plot, f"{title}: {known[-1]:.3g} at the end", line))
    return shown


def validation_curves(validation: Columns, train: Mapping[str, Any]) -> list[tuple[Any, str, str]]:
    """The same of the validations; a dotted line at the best step of each."""
    steps, shown = _steps(validation), []
    for metric in VALIDATION:
        values = validation.get(metric.name, [])
        known = [(v, step) for v, step in zip(values, steps, strict=False) if v is not None]
        if not known:
            continue
        pick = min if metric.lower_is_better else max
        best, step = pick(known, key=lambda pair: pair[0])
        title = f"{metric.title}: best {number(best, metric.digits)} at step {step:,.0f}"
        label = f"{title}; over training steps, last value {number(known[-1][0], metric.digits)}"
        decides = metric.name == train.get("best_metric")
        line = metric.definition + " It decides which weights are best." * decides
        shown.append((curve(steps, values, label, mark=step), title, line))
    return shown


def _steps(columns: Columns) -> list[float]:
    count = len(next(iter(columns.values()), []))
    steps = columns.get("step") or [None] * count
    return [float(place) if step is None else step for place, step in enumerate(steps)]
