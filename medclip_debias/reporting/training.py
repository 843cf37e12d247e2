"""What was trained on what, and how it went: rows, sentences and curves of a run's report."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from markupsafe import Markup

from medclip_debias.evaluation.catalogue import VALIDATION
from medclip_debias.reporting.content import Rows, at, number
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


def training_rows(
    settings: Mapping[str, Any], results: Mapping[str, Any], metrics: Columns
) -> Rows:
    """What was trained on what, as rows of a name and sentences."""
    counts = at(results, "data", "counts") or {}
    splits = at(results, "data", "splits") or {}
    architecture = settings.get("model") or at(results, "model", "architecture") or {}
    preprocessing = settings.get("preprocessing") or at(results, "model", "preprocessing") or {}
    train = settings.get("train") or {}
    done = [step for step in metrics.get("step", []) if step is not None]
    best = at(results, "model", "provenance", "best_step")

    def said(words: Callable[[], str]) -> str:
        """Sentences on settings, which may be anybody's."""
        try:
            return words()
        except (AttributeError, KeyError, TypeError, ValueError):
            return "settings.yaml holds other values than 'train' writes; see the file below."

    rows: list[list[Any]] = [
        *_archives(results),
        ["Prepared set", _sets(settings.get("prepared"))],
        ["Counts", ", ".join(f"{number(v)} {_words(k)}" for k, v in counts.items() if _plain(v))],
        ["Images by split", ", ".join(f"{number(v)} {k}" for k, v in sorted(splits.items()))],
        ["Starts from", at(architecture, "start_from")],
        ["Image encoder", _image_encoder(architecture, results)],
        ["Text encoder", _text_encoder(architecture)],
        ["Similarity", setting_words(architecture.get("similarity") or "")],
        ["Input", _input(preprocessing)],
        ["Loss", setting_words(settings.get("loss") or "")],
        ["Training", said(lambda: " ".join(train_sentences(train, done[-1] if done else None)))],
        ["Validation", said(lambda: validation_sentence(train, best))],
    ]
    return [[name, str(value)] for name, value in rows if value]


def _plain(value: Any) -> bool:
    return isinstance(value, int) and value > 0


def _words(key: str) -> str:
    return key.replace("_", " ")


def _archives(results: Mapping[str, Any]) -> Rows:
    """The source of the data; two rows where the model was trained on another set."""
    trained = at(results, "archives", "model") or {}
    if at(results, "archives", "relation") in (None, "same set") or not trained.get("kind"):
        return [["Data source", _source(results)]]
    synthetic = ", synthetic" if trained.get("synthetic") else ""
    relation = str(at(results, "archives", "relation"))
    how = {"unknown": "whether it is the same archive is not known"}.get(relation, relation)
    return [
        ["Model trained on", f"{trained['kind']}{synthetic}"],
        ["Evaluated on", f"{_source(results)} ({how})"],
    ]


def _source(results: Mapping[str, Any]) -> Any:
    kind = at(results, "data", "source")
    if kind and at(results, "data", "synthetic"):
        return f"{kind}, synthetic: generated images and reports, no patient"
    return kind


def _image_encoder(architecture: Mapping[str, Any], results: Mapping[str, Any]) -> str:
    words = [str(at(architecture, "image", "arch") or "")]
    grid = at(results, "model", "grid")
    if grid:
        words.append(f"{grid[0]} x {grid[1]} regions")
    if at(results, "model", "parameters"):
        words.append(
            f"{number(at(results, 'model', 'parameters'))} parameters with the text encoder"
        )
    if at(architecture, "dim"):
        words.append(f"shared vectors of {architecture['dim']} numbers")
    if not words[0]:
        return ", ".join(word for word in words if word)
    start = at(architecture, "image", "weights") or "random weights (no pretraining)"
    return ", ".join(words) + f"; starts from {start}"


def _text_encoder(architecture: Mapping[str, Any]) -> str:
    folder, most = at(architecture, "text", "folder"), at(architecture, "text", "max_tokens")
    reads = f"; reads up to {most} tokens of a sentence" if most else ""
    return f"from {folder}{reads}" if folder else ""


def _input(preprocessing: Mapping[str, Any]) -> str:
    side, size = preprocessing.get("input_size"), at(preprocessing, "prepare", "size")
    return f"{side} x {side} pixels out of {size} x {size}" if side and size else ""


# ---------------------------------------------------------------------- settings in words

Settings = Mapping[str, Any]

# Settings that have a sentence of their own, and those that change no number of a run.
_SAID = (
    *("steps", "batch_size", "sentences_per_study", "task", "lr", "warmup_steps", "seed"),
    *("validate_every", "validate_images", "best_metric", "patience", "keep"),
    *("workers", "device", "log_every", "checkpoint_every", "stall_minutes"),
    *("wandb", "wandb_project"),
)


def setting_words(value: Any) -> str:
    """Settings as words: the kind of a thing, then its own settings in brackets.

    >>> setting_words({"kind": "debiased", "eta": {"kind": "constant", "value": 0.05}})
    'debiased (eta: constant (value 0.05))'
    """
    if isinstance(value, Mapping):
        inner = {key: each for key, each in value.items() if key != "kind"}
        parts = [
            f"{key.replace('_', ' ')}{':' * isinstance(each, Mapping)} {setting_words(each)}"
            for key, each in inner.items()
        ]
        listed = ", ".join(parts)
        if "kind" not in value:
            return listed
        return f"{value['kind']} ({listed})" if listed else str(value["kind"])
    if isinstance(value, list | tuple):
        return "; ".join(map(setting_words, value)) or "none"
    if isinstance(value, bool):
        return "on" if value else "off"
    return "none" if value is None else f"{value:g}" if isinstance(value, float) else str(value)


def train_sentences(train: Settings, last_step: float | None = None) -> list[str]:
    """How it was trained, in sentences.

    Args:
        train: the settings.
        last_step: the last one that was logged; None for none.
    """
    if not train:
        return []
    usual = TrainSettings().model_dump(mode="json")
    get = {**usual, **train}
    batch = (
        "two augmentations of each image and no text"
        if get["task"] == "two_view"
        else f"sentences of each study: {get['sentences_per_study']}"
    )
    lines = [
        f"{get['steps']:,} steps of AdamW with batches of {get['batch_size']:,} studies; {batch}.",
        f"The learning rate rises to {get['lr']:g} in {get['warmup_steps']:,} steps and falls to 0"
        f" by a cosine; seed {get['seed']}.",
    ]
    if last_step is not None and last_step < get["steps"]:
        lines.append(f"Not finished: the last step that was logged is {last_step:,.0f}.")
    others = {}
    for key, value in train.items():
        known = usual.get(key)
        if key in _SAID or value == known:
            continue
        if isinstance(value, Mapping) and isinstance(known, Mapping):
            value = {k: v for k, v in value.items() if v != known.get(k, ...)}
        others[key] = value
    return lines + ([f"Not as by default: {setting_words(others)}."] if others else [])


def validation_sentence(train: Settings, best_step: int | None) -> str:
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


def _steps(columns: Columns) -> list[float]:
    count = len(next(iter(columns.values()), []))
    return [
        float(index) if value is None else value
        for index, value in enumerate(columns.get("step", [None] * count))
    ]


def curves(metrics: Columns, draw: Callable[..., Markup] = curve) -> list[dict[str, Any]]:
    """Training curves of the columns that are there and hold numbers, by ``draw``."""
    steps, shown = _steps(metrics), []
    for column, title, line in CURVES:
        values = metrics.get(column, [])
        if all(value is None for value in values):
            continue
        second = metrics.get("negative_similarity") if column == "positive_similarity" else None
        last = next(value for value in reversed(values) if value is not None)
        label = f"{title} over training steps, last value {last:.3g}"
        plot = draw(steps, values, label, second=second)
        shown.append({"title": f"{title}: {last:.3g} at the end", "line": line, "plot": plot})
    return shown


def validation_curves(
    validation: Columns, train: Mapping[str, Any], draw: Callable[..., Markup] = curve
) -> list[dict[str, Any]]:
    """Curves of the validations; a dotted line at the best step of each."""
    steps, shown = _steps(validation), []
    for metric in VALIDATION:
        values = validation.get(metric.name, [])
        known = (
            [(value, step) for value, step in zip(values, steps, strict=True) if value is not None]
            if values
            else []
        )
        if not known:
            continue
        pick = min if metric.lower_is_better else max
        best = pick(value for value, _ in known)
        step = next(step for value, step in known if value == best)
        decides = metric.name == train.get("best_metric")
        title = f"{metric.title}: best {number(best, metric.digits)} at step {step:,.0f}"
        label = f"{title}; over training steps, last value {number(known[-1][0], metric.digits)}"
        line = metric.definition + (" It decides which weights are best." if decides else "")
        plot = draw(steps, values, label, mark=step)
        shown.append({"title": title, "line": line, "plot": plot})
    return shown


def _sets(prepared: Any) -> Any:
    """A prepared set, or several with their weights."""
    if not isinstance(prepared, list):
        return prepared
    return ", ".join(f"{each['path']} (weight {each['weight']:g})" for each in prepared)
