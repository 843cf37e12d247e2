"""Evaluate a model folder on a prepared set: the three protocols, one results file."""

from __future__ import annotations

import math
import platform
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from pydantic import Field

from medclip_debias import __version__
from medclip_debias.config import Settings
from medclip_debias.data.geometry import SquareGeometry
from medclip_debias.data.prompts import PromptSet, load_prompts
from medclip_debias.errors import UserError
from medclip_debias.evaluation.encoding import Encoded, Phrase, Progress, encode
from medclip_debias.evaluation.metrics import MIDDLE_THRESHOLDS, THRESHOLDS
from medclip_debias.evaluation.phrase_grounding import summarise_phrases
from medclip_debias.evaluation.pictures import write_heatmaps
from medclip_debias.evaluation.retrieval import RECALLS, pair_scores, retrieval
from medclip_debias.evaluation.zero_shot import LabelPolicy, prompt_differences, zero_shot
from medclip_debias.files import write_json

if TYPE_CHECKING:
    from medclip_debias.data.store import PreparedSet
    from medclip_debias.models.interface import ImageTextModel

FORMAT = 1
HELD_OUT = "held_out"


HEADLINE = {
    "zero_shot": ("mean_auc", "accuracy", "balanced_accuracy"),
    "grounding": ("cnr", "miou", "pointing_game"),
    "retrieval": ("recall", "median_rank"),
}


def headline(results: Mapping[str, Any]) -> dict[str, Any]:
    """The few figures of ``results`` that a terminal should show, and what was skipped."""
    shown = {
        f"{part}.{name}": results[part][name]
        for part, names in HEADLINE.items()
        if part in results
        for name in names
    }
    return shown | {f"skipped.{part}": reason for part, reason in results["skipped"].items()}


class EvaluationOptions(Settings):
    """Every choice that changes a figure; stored with the results.

    Attributes:
        labels: what uncertain and blank labels stand for.
        smoothing: sigma of the Gaussian over heatmaps, in grid cells; 0 for none.
    """

    labels: LabelPolicy = LabelPolicy()
    smoothing: float = Field(0.0, ge=0)


def evaluate(
    model_folder: Path,
    prepared: Path,
    out: Path,
    *,
    split: str = "test",
    seed: int = 0,
    bootstrap: int = 1000,
    batch_size: int = 64,
    heatmaps: int = 16,
    device: str = "cpu",
    progress: Progress | None = None,
    prompts: Path | str | None = None,
    options: EvaluationOptions | None = None,
) -> dict[str, Any]:
    """Run the protocols that the set allows; write ``results.json`` and ``heatmaps/``.

    Zero-shot classification uses the images of ``split``; phrase grounding and retrieval use
    those and the ``held_out`` ones (phrase images kept out of training).

    Args:
        model_folder: a trained model.
        prepared: a prepared set, prepared as the model was trained.
        out: folder for the results, often the run's own.
        split: ``test`` or ``validate``.
        seed: of the bootstrap.
        bootstrap: resamples; 0 for no intervals.
        batch_size: images encoded at a time.
        heatmaps: pictures to write; 0 for none.
        device: where the model runs; ``auto`` takes a GPU when there is one.
        progress: called with images done and images in total.
        prompts: prompt set, by packaged name or YAML file; by default the model's own
            ``chex5``, else the packaged one.
        options: every other choice.

    Returns:
        The content of ``results.json``.

    Raises:
        UserError: the set was prepared otherwise than the model expects, or there is nothing
            in it to evaluate.
    """
    from medclip_debias.data.store import PreparedSet
    from medclip_debias.models.load import load_model

    started = time.perf_counter()
    options = options or EvaluationOptions()
    data = PreparedSet.open(Path(prepared))
    model = load_model(Path(model_folder), device=_device(device))
    _check_preprocessing(model, data)
    prompt_set = load_prompts(prompts) if prompts is not None else _model_prompts(model)
    skipped: dict[str, str] = {}

    prompt_rows = _labelled_rows(data, split, prompt_set, skipped)
    phrases, sentences, phrase_counts = _phrases(data, split, model.preprocessing.input_size)
    if not phrases:
        reason = _why_no_phrases(phrase_counts, split)
        skipped |= {"grounding": reason, "retrieval": reason}
    if not prompt_rows and not phrases:
        raise UserError(
            f"{prepared}: nothing to evaluate. {skipped['zero_shot']} {skipped['grounding']} "
            f"The set's images are {_split_words(data)}."
        )
    encoding = time.perf_counter()
    encoded = encode(
        model,
        data,
        prompt_rows,
        prompt_set.texts,
        phrases,
        sentences,
        batch_size=batch_size,
        smoothing=options.smoothing,
        progress=progress,
    )
    measuring = time.perf_counter()
    results: dict[str, Any] = {"format": FORMAT, "split": split}
    draw = {"resamples": bootstrap, "seed": seed}
    if prompt_rows:
        try:
            results["zero_shot"] = _zero_shot(
                data, prompt_rows, encoded, prompt_set, options.labels, draw
            )
        except UserError as error:
            skipped["zero_shot"] = str(error)
    if phrases:
        results["grounding"] = {
            **summarise_phrases(
                [encoded.metrics[number] for number in range(len(phrases))],
                [phrase.category for phrase in phrases],
                [phrase.patient for phrase in phrases],
                **draw,
            ),
            **phrase_counts,
        }
        _retrieval(results, skipped, encoded, phrases, draw)
    if "zero_shot" not in results and not phrases:
        raise UserError(f"{prepared}: nothing to evaluate. {skipped['zero_shot']}")
    drawing = time.perf_counter()
    out = Path(out)
    if phrases and heatmaps:
        write_heatmaps(
            out / "heatmaps",
            data,
            phrases,
            encoded.grids,
            encoded.metrics,
            heatmaps,
            model.grid,
            smoothing=options.smoothing,
        )
    images = len(set(prompt_rows) | {phrase.row for phrase in phrases})
    results |= {
        "skipped": skipped,
        "counts": {"images": images, "labelled_images": len(prompt_rows), "phrases": len(phrases)},
        "data_hash": data.content_hash,
        "model_hash": model.content_hash,
        "seed": seed,
        "prompts": prompt_set.model_dump(mode="json"),
        "options": {
            **options.model_dump(mode="json"),
            "bootstrap": {"resamples": bootstrap, "unit": "patient", "level": 0.95},
            "miou_thresholds": THRESHOLDS.tolist(),
            "miou_middle_thresholds": MIDDLE_THRESHOLDS.tolist(),
            "recall_at": list(RECALLS),
            "retrieval_ties": "mean rank",
            "decision": "positive when its score is larger; a tie is negative",
        },
        "model": _describe_model(model),
        "data": {
            "source": data.meta.get("kind", data.meta.get("source")),
            "synthetic": bool(data.meta.get("synthetic", False)),
            "counts": data.meta["counts"],
            "splits": _splits(data),
            "funnel": data.funnel,
            "content_hash": data.content_hash,
            "prepare": data.settings.model_dump(mode="json"),
        },
        "versions": _versions(),
        "timing": {
            "evaluate": time.perf_counter() - started,
            "evaluate_encode": measuring - encoding,
            "evaluate_intervals": drawing - measuring,
            "evaluate_heatmaps": time.perf_counter() - drawing,
        },
    }
    results = plain(results)
    write_json(out / "results.json", results)
    return results


def plain(value: Any) -> Any:
    """The same value as JSON can hold it: NaN and infinities become None, arrays lists."""
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple | np.ndarray):
        return [plain(item) for item in value]
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


# -------------------------------------------------------------------------------- checks


def _device(name: str) -> str:
    import torch

    if name == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    return name


def _check_preprocessing(model: ImageTextModel, data: PreparedSet) -> None:
    wanted, found = model.preprocessing.prepare, data.settings
    if wanted == found:
        return
    differ = [
        f"{name} {getattr(found, name)} instead of {getattr(wanted, name)}"
        for name in type(wanted).model_fields
        if getattr(wanted, name) != getattr(found, name)
    ]
    raise UserError(
        f"{data.folder}: was prepared otherwise than the model expects ({', '.join(differ)}); "
        "prepare it again with the model's settings: medclip-debias prepare SOURCE OUT "
        f"{wanted.command_line()}."
    )


def _model_prompts(model: ImageTextModel) -> PromptSet:
    """The model's own chex5 set, or else the packaged one."""
    content = model.prompts.get("chex5")
    return load_prompts(content) if isinstance(content, Mapping) else load_prompts("chex5")


# ------------------------------------------------------------------------------ selection


def _labelled_rows(
    data: PreparedSet, split: str, prompts: PromptSet, skipped: dict[str, str]
) -> list[int]:
    """Rows of ``split``, or none with a reason in ``skipped``."""
    rows = [row for row, name in enumerate(data.images["split"]) if name == split]
    known = [name for name in prompts.classes if name in data.studies.columns]
    if not rows:
        skipped["zero_shot"] = f"The set has no image in the split '{split}'."
    elif not known or not data.studies[known].notna().to_numpy().any():
        names = ", ".join(prompts.classes)
        skipped["zero_shot"] = f"The set has no labels for {names}."
    else:
        return rows
    return []


def _phrases(
    data: PreparedSet, split: str, input_size: int
) -> tuple[list[Phrase], list[str], dict[str, int]]:
    """Phrases on images of ``split`` or held out; their distinct sentences; what was left out."""
    images = data.images
    row_of = {name: row for row, name in enumerate(images["image_id"])}
    counts = {"other_splits": 0, "without_image": 0, "without_box": 0}
    phrases: list[Phrase] = []
    sentence_of: dict[str, int] = {}
    columns = ["phrase_id", "image_id", "category", "text", "boxes"]
    for phrase_id, image_id, category, text, boxes in zip(
        *(data.phrases[column] for column in columns), strict=True
    ):
        row = row_of.get(image_id)
        if row is None:
            counts["without_image"] += 1
        elif images["split"].iloc[row] not in (split, HELD_OUT):
            counts["other_splits"] += 1
        elif not any(w > 0 and h > 0 for _, _, w, h in boxes):
            counts["without_box"] += 1
        else:
            phrases.append(
                Phrase(
                    phrase_id=str(phrase_id),
                    row=row,
                    category=str(category),
                    text=str(text),
                    sentence=sentence_of.setdefault(str(text), len(sentence_of)),
                    boxes=[[float(v) for v in box] for box in boxes],
                    geometry=SquareGeometry(
                        height=int(images["height"].iloc[row]),
                        width=int(images["width"].iloc[row]),
                        size=data.settings.size,
                        input_size=input_size,
                        fit=data.settings.fit,
                    ),
                    patient=str(images["patient_id"].iloc[row]),
                )
            )
    return phrases, list(sentence_of), counts


def _why_no_phrases(counts: Mapping[str, int], split: str) -> str:
    if not any(counts.values()):
        return "The set has no phrases with boxes."
    return (
        f"None of the set's phrases can be used: {counts['other_splits']} lie on images of other "
        f"splits than '{split}' and '{HELD_OUT}', {counts['without_image']} on images that are "
        f"not in the set, {counts['without_box']} have no box with an area."
    )


def _splits(data: PreparedSet) -> dict[str, int]:
    return {str(name): int(n) for name, n in data.images["split"].value_counts().items()}


def _split_words(data: PreparedSet) -> str:
    return ", ".join(f"{count} in '{name}'" for name, count in sorted(_splits(data).items()))


# ------------------------------------------------------------------------------ protocols


def _zero_shot(
    data: PreparedSet,
    rows: list[int],
    encoded: Encoded,
    prompts: PromptSet,
    policy: LabelPolicy,
    draw: dict[str, int],
) -> dict[str, Any]:
    scores = np.stack([encoded.prompt_scores[row] for row in rows]).astype(np.float64)
    images = data.images.iloc[rows]
    studies = data.studies.drop_duplicates("study_id").set_index("study_id")
    of_image = studies.reindex(images["study_id"])
    labels = {
        name: of_image[name].to_numpy(dtype=np.float64)
        for name in prompts.classes
        if name in of_image.columns
    }
    patients = [str(name) for name in images["patient_id"]]
    result = zero_shot(prompt_differences(scores, prompts), labels, patients, policy=policy, **draw)
    return result | {"images": len(rows), "patients": len(set(patients))}


def _retrieval(
    results: dict[str, Any],
    skipped: dict[str, str],
    encoded: Encoded,
    phrases: list[Phrase],
    draw: dict[str, int],
) -> None:
    found = {n: feature for n, feature in encoded.features.items() if feature is not None}
    usable = sorted(found)
    results["grounding"]["unseen_boxes"] = len(phrases) - len(usable)
    if len(usable) < 2:
        skipped["retrieval"] = (
            "Retrieval needs at least two phrases with boxes in the model's view."
        )
        return
    scores = pair_scores(
        np.stack([found[number] for number in usable]),
        encoded.sentences,
        np.array([phrases[number].sentence for number in usable]),
    )
    results["retrieval"] = {
        **retrieval(
            scores,
            [phrases[number].text for number in usable],
            [phrases[number].patient for number in usable],
            **draw,
        ),
        "unseen_boxes": len(phrases) - len(usable),
    }


# ----------------------------------------------------------------------------- provenance


def _describe_model(model: ImageTextModel) -> dict[str, Any]:
    return {
        "hash": model.content_hash,
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "grid": list(model.grid.shape),
        "architecture": model.settings.model_dump(mode="json"),
        "preprocessing": model.preprocessing.model_dump(mode="json"),
        "provenance": model.provenance,
    }


def _versions() -> dict[str, str]:
    import torch

    return {
        "medclip_debias": __version__,
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        "numpy": np.__version__,
    }
