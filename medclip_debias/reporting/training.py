"""What was trained on what, and how it went: rows, sentences and curves of a run's report."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from medclip_debias.evaluation.catalogue import VALIDATION
from medclip_debias.reporting.content import Rows, at, number, words
from medclip_debias.reporting.plots import curve
from medclip_debias.training.settings import TrainSettings

Columns = Mapping[str, list[float | None]]

# Curves of metrics.csv: column, title, one line.
CURVES = (
    ("loss", "Loss", "Contrastive loss of the batch, mean over its anchors."),
    ("scale", "Logit scale", "Learned factor g2 between cosine and logit, clamped to 1..100."),
    (
        "clamped",
        "Clamped share",
        "Share of anchors whose debiased sum of negatives was raised to its lower bound.",
    ),
    ("mean_eta", "Mean eta", "Mean probability that an unpaired image agrees with a sentence."),
    ("positives", "Positives", "Mean number of positives of an anchor, its own among them."),
    ("removed", "Removed negatives", "Share of the negatives that the policies took away."),
    (
        "positive_similarity",
        "Similarity",
        "Mean similarity of the pairs, and of everything else in the batch (dashed).",
    ),
    ("lr", "Learning rate", "Warm-up, then cosine decay."),
)
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
    data = results.get("data") or {}
    architecture = settings.get("model") or at(results, "model", "architecture") or {}
    how = settings.get("preprocessing") or at(results, "model", "preprocessing") or {}
    train = settings.get("train") or {}
    counts = (data.get("counts") or {}).items()
    splits = sorted((data.get("splits") or {}).items())
    side, size = how.get("input_size"), at(how, "prepare", "size")
    folder, most = at(architecture, "text", "folder"), at(architecture, "text", "max_tokens")
    steps = [step for step in metrics.get("step", []) if step is not None]
    best = at(results, "model", "provenance", "best_step")

    def from_settings(sentence: Callable[[], str]) -> str:
        """A sentence on settings, which may be anybody's."""
        try:
            return sentence()
        except (AttributeError, KeyError, TypeError, ValueError):
            return "settings.yaml holds other values than 'train' writes; see the file below."

    rows: list[list[Any]] = [
        *_archives(results),
        ["Prepared set", _sets(settings.get("prepared"))],
        [
            "Counts",
            ", ".join(
                f"{number(n)} {words(name)}" for name, n in counts if isinstance(n, int) and n > 0
            ),
        ],
        ["Images by split", ", ".join(f"{number(n)} {name}" for name, n in splits)],
        ["Starts from", at(architecture, "start_from")],
        ["Image encoder", _image_encoder(architecture, results.get("model") or {})],
        [
            "Text encoder",
            folder
            and f"from {folder}" + (f"; reads up to {most} tokens of a sentence" if most else ""),
        ],
        ["Similarity", setting_words(architecture.get("similarity") or "")],
        [
            "Input",
            side and size and f"{side} x {side} pixels out of {size} x {size}",
        ],
        ["Loss", setting_words(settings.get("loss") or "")],
        [
            "Training",
            from_settings(lambda: " ".join(train_sentences(train, steps[-1] if steps else None))),
        ],
        ["Validation", from_settings(lambda: validation_sentence(train, best))],
    ]
    return [[name, str(value)] for name, value in rows if value]


def _archives(results: Mapping[str, Any]) -> Rows:
    """The source of the data; two rows where the model was trained on another set."""
    source, trained = at(results, "data", "source"), at(results, "archives", "model") or {}
    if source and at(results, "data", "synthetic"):
        source = f"{source}, synthetic: generated images and reports, no patient"
    relation = at(results, "archives", "relation")
    if relation in (None, "same set") or not trained.get("kind"):
        return [["Data source", source]]
    if relation == "unknown":
        relation = "whether it is the same archive is not known"
    return [
        ["Model trained on", trained["kind"] + ", synthetic" * bool(trained.get("synthetic"))],
        ["Evaluated on", f"{source} ({relation})"],
    ]


def _image_encoder(architecture: Mapping[str, Any], model: Mapping[str, Any]) -> str:
    arch, grid, parameters = (
        at(architecture, "image", "arch"),
        *map(model.get, ("grid", "parameters")),
    )
    start = at(architecture, "image", "weights") or "random weights (no pretraining)"
    dim = at(architecture, "dim")
    parts = [
        arch,
        grid and f"{grid[0]} x {grid[1]} regions",
        parameters and f"{number(parameters)} parameters with the text encoder",
        dim and f"shared vectors of {dim} numbers",
    ]
    return ", ".join(filter(None, parts)) + (f"; starts from {start}" if arch else "")


def _sets(prepared: Any) -> Any:
    """A prepared set, or several with their weights."""
    if not isinstance(prepared, list):
        return prepared
    return ", ".join(f"{each['path']} (weight {each['weight']:g})" for each in prepared)


# ---------------------------------------------------------------------- settings in words


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


def train_sentences(train: Mapping[str, Any], last_step: float | None = None) -> list[str]:
    """How it was trained, in sentences; ``last_step`` is the last one that was logged."""
    if not train:
        return []
    usual = TrainSettings().model_dump(mode="json")
    known = {**usual, **train}
    batch = f"sentences of each study: {known['sentences_per_study']}"
    if known["task"] == "two_view":
        batch = "two augmentations of each image and no text"
    lines = [
        f"{known['steps']:,} steps of AdamW with batches of {known['batch_size']:,} studies;"
        f" {batch}.",
        f"The learning rate rises to {known['lr']:g} in {known['warmup_steps']:,} steps and falls"
        f" to 0 by a cosine; seed {known['seed']}.",
    ]
    if last_step is not None and last_step < known["steps"]:
        lines.append(f"Not finished: the last step that was logged is {last_step:,.0f}.")
    others = {}
    for key, value in train.items():
        if key in _IN_SENTENCES or value == usual.get(key):
            continue
        if isinstance(value, Mapping) and isinstance(usual.get(key), Mapping):
            value = {k: v for k, v in value.items() if v != usual[key].get(k, ...)}
        others[key] = value
    return lines + ([f"Not as by default: {setting_words(others)}."] if others else [])


def validation_sentence(train: Mapping[str, Any], best_step: int | None) -> str:
    """How it was validated, and which weights the model folder holds."""
    if not train:
        return ""
    every = train.get("validate_every")
    if not every:
        return "Not validated on the way; the model folder holds the weights of the last step."
    name = train.get("best_metric", "recall_at_10")
    title = next((metric.title for metric in VALIDATION if metric.name == name), name)
    kept = "best" if train.get("keep") == "best" else "last"
    step = f" (step {best_step:,})" if kept == "best" and best_step is not None else ""
    patience = train.get("patience")
    stop = f" It ends after {patience} validations without a better value." if patience else ""
    return (
        f"Every {every:,} steps, on at most {train.get('validate_images', 512):,} images of the"
        f" validate split; '{title}' says which weights are best.{stop} The model folder holds the"
        f" {kept} weights{step}."
    )


# -------------------------------------------------------------------------------- curves


def curves(metrics: Columns) -> list[tuple[Any, str, str]]:
    """Plot, title and caption of each training curve whose column holds numbers."""
    shown = []
    for column, title, line in CURVES:
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
