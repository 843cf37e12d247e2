"""A run's settings as sentences; what has no sentence of its own and is not as usual is listed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from medclip_debias.evaluation.catalogue import VALIDATION
from medclip_debias.losses.evidence import EVIDENCE
from medclip_debias.losses.objective import POLICIES, objectives
from medclip_debias.training.settings import TrainSettings

Settings = Mapping[str, Any]

_OBJECTIVES = {
    "debiased": "Debiased contrastive loss: from the sum over the negatives of a sentence, the "
    "share eta that is expected to agree with it is taken off.",
    "infonce": "InfoNCE: each sentence is told from the other images of the batch, all negatives.",
    "clip": "CLIP: InfoNCE both ways, sentences against images and images against sentences.",
    "siglip": "SigLIP: each pair of an image and a sentence is judged by itself, with a sigmoid.",
    "multi_positive": "Several positives: images whose report agrees with a sentence are pulled "
    "near it as its own image is.",
    "supcon": "Supervised contrastive loss: pairs of one class are positives.",
    "xclr": "X-CLR: soft targets from how alike the samples are.",
    "sogclr": "SogCLR: the sum over the negatives is a running mean over the whole set.",
    "biovil": "BioViL: InfoNCE both ways, and masked-language modelling.",
    "keyword": "Keyword supervision around another loss: sentences of another keyword class are "
    "pushed away further.",
}
_POLICIES = {
    "remove_by_text": "Negatives whose sentences are nearly the same are left out.",
    "reweight_by_text": "The more alike the sentences, the less a negative counts.",
    "resample_by_text": "The more alike the sentences, the more rarely a negative is drawn.",
    "remove_by_label": "Negatives with the same labels are left out.",
    "remove_known": "Negatives that a table knows to agree are left out.",
    "mask_same_study": "Images of the same study are no negatives.",
    "mask_identical_text": "Images with the same sentence are no negatives.",
    "weigh_by_evidence": "Negatives are weighed by what is known of the pair.",
    "fnc": "The negatives that the model finds most similar are left out.",
    "glofnd": "Negatives above a similarity that is learned for each sample are left out.",
}
_EVIDENCE = {
    "claims": "what both reports claim of each finding",
    "study": "the study alone",
    "text": "how alike the sentences are",
    "label": "the labels of the studies",
    "known": "a table",
}
_AGGREGATORS = {
    "lse_nl": "log-sum-exp over the regions, mixed with a non-local score around the best region",
    "lse": "log-sum-exp over the regions",
    "nl": "non-local score around the best region",
    "global": "cosine of the whole image and the sentence",
    "max": "cosine of the best region",
    "mean": "mean cosine over the regions",
    "attention": "attention of the sentence over the regions",
    "cross_attention": "cross-attention between sentence and regions",
    "local_words": "attention of each word over the regions",
}
_PRECISION = {"fp32": "32-bit floats", "bf16": "16-bit bfloat", "fp16": "16-bit floats"}


def loss_sentences(loss: Settings) -> list[str]:
    """What is learned by, in sentences.

    >>> loss_sentences({"kind": "debiased", "eta": {"kind": "constant", "value": 0.05}})[1]
    'eta is 0.05 for every sentence.'
    """
    kind = str(loss.get("kind", ""))
    known = objectives().get(kind)
    said = [_OBJECTIVES.get(kind) or f"The objective '{kind}'{_formula(known)}."]
    eta = loss.get("eta")
    if eta:
        said.append(_eta(eta))
    if loss.get("evidence"):
        said.append(_evidence(loss["evidence"]))
    for policy in loss.get("negatives") or ():
        said += _policy(policy)
    said += _others(loss, known, {"kind", "eta", "evidence", "negatives", "core"})
    if loss.get("core"):
        inner = loss_sentences(loss["core"])
        said += [f"Inside: {inner[0]}", *inner[1:]]
    return said


def _eta(eta: Settings) -> str:
    control = (
        " As a control it is dealt out anew over the sentences of each batch."
        if eta.get("control") == "shuffled"
        else ""
    )
    match eta.get("kind"):
        case "constant":
            return f"eta is {eta.get('value', 0.1):g} for every sentence."
        case "language_model":
            return (
                f"eta of a sentence is {eta.get('a', 0.2):g} times p to the power of "
                f"{eta.get('k', 0.35):g}, p its probability by the language model.{control}"
            )
        case "table":
            factor = eta.get("factor", 1.0)
            times = "" if factor == 1 else f", times {factor:g}"
            return f"eta of a sentence is read from the table {eta.get('path')}{times}.{control}"
    return f"eta: {_words(eta)}."


def _evidence(evidence: Settings) -> str:
    kind = str(evidence.get("kind", ""))
    text = f"What agrees is known from {_EVIDENCE.get(kind, f'the evidence {kind}')}."
    known = EVIDENCE.all().get(kind)
    return " ".join([text, *_others(evidence, known, {"kind"})])


def _policy(policy: Settings) -> list[str]:
    kind = str(policy.get("kind", ""))
    known = POLICIES.all().get(kind)
    said = [_POLICIES.get(kind) or f"The policy '{kind}'{_formula(known)}."]
    if policy.get("evidence"):
        said.append(_evidence(policy["evidence"]))
    return said + _others(policy, known, {"kind", "evidence"})


def _formula(known: Any) -> str:
    return f": {known.formula}" if known is not None else ""


def _others(given: Settings, known: Any, said: set[str]) -> list[str]:
    """A sentence on what is not as usual and has none of its own."""
    usual = known.settings_class().model_dump(mode="json") if known is not None else {}
    left = {k: v for k, v in given.items() if k not in said and v != usual.get(k, ...)}
    return [f"Set otherwise than usual: {_words(left)}."] if left else []


def _words(value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{key.replace('_', ' ')} {_words(each)}" for key, each in value.items())
    if isinstance(value, list | tuple):
        return ", ".join(_words(each) for each in value) or "none"
    if isinstance(value, bool):
        return "on" if value else "off"
    return "none" if value is None else f"{value:g}" if isinstance(value, float) else str(value)


def similarity_sentence(parts: Settings | str | None) -> str:
    """How an image and a sentence are compared."""
    if not parts:
        return ""
    if isinstance(parts, str):
        return "The starting model's own score."
    kind = str(parts.get("aggregator", ""))
    text = (_AGGREGATORS.get(kind) or kind.replace("_", " ")).strip()
    further = {
        "lse_nl": f"k {parts.get('k', 10):g}, non-local temperature "
        f"{parts.get('temperature', 10):g}, weight of the log-sum-exp "
        f"{parts.get('local_weight', 0.5):g}",
        "lse": f"k {parts.get('k', 10):g}",
    }.get(kind)
    start = (
        f"; the learned scale starts at {parts['initial_scale']:g}"
        if "initial_scale" in parts
        else ""
    )
    return f"{text[:1].upper()}{text[1:]}{f' ({further})' if further else ''}{start}."


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
    per_study = get["sentences_per_study"]
    said = [
        f"{get['steps']:,} steps of AdamW with batches of {get['batch_size']:,} studies"
        + (
            ", two augmentations of each image and no text."
            if get["task"] == "two_view"
            else f", {per_study} sentence{'s' * (per_study != 1)} of each."
        ),
        f"The learning rate rises to {get['lr']:g} in {get['warmup_steps']:,} steps and falls to 0 "
        f"by a cosine; weight decay {get['weight_decay']:g}"
        + (f", gradients cut at length {get['clip_norm']:g}." if get["clip_norm"] else "."),
        f"Encoders compute in {_PRECISION.get(get['precision'], get['precision'])}; seed "
        f"{get['seed']}.",
        _augmentation(get["augment"]),
    ]
    if last_step is not None and last_step < get["steps"]:
        said.append(f"Not finished: the last step that was logged is {last_step:,.0f}.")
    spoken = {
        *("steps", "batch_size", "sentences_per_study", "task", "lr", "warmup_steps"),
        *("weight_decay", "clip_norm", "precision", "seed", "augment"),
        *("validate_every", "validate_images", "best_metric", "patience", "keep"),
        # These change no number of the run.
        *("workers", "device", "log_every", "checkpoint_every", "stall_minutes", "wandb"),
        "wandb_project",
    }
    left = {}
    for key, value in train.items():
        if key in spoken or value == usual.get(key, ...):
            continue
        known = usual.get(key)
        if isinstance(value, Mapping) and isinstance(known, Mapping):
            value = {k: v for k, v in value.items() if v != known.get(k, ...)}
        left[key] = value
    return said + ([f"Set otherwise than usual: {_words(left)}."] if left else [])


def _augmentation(augment: Settings) -> str:
    parts = ["a random crop"] if augment.get("crop") else []
    parts += [
        f"{name} changed by up to {augment[name]:.0%}"
        for name in ("brightness", "contrast")
        if augment.get(name)
    ]
    return f"Each image is augmented: {', '.join(parts)}." if parts else "Images are not augmented."


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
        f"Every {every:,} steps, on at most {train.get('validate_images', 512):,} images of the "
        f"validate split; '{title}' says which weights are best.{stop} The model folder holds the "
        f"{kept} weights{step}."
    )
