"""A run's settings in words, for its report."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from medclip_debias.evaluation.catalogue import VALIDATION
from medclip_debias.training.settings import TrainSettings

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
