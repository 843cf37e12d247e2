"""Evaluate a model folder on a prepared set: all protocols, one results file."""

from __future__ import annotations

import shutil
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

from medclip_debias.data.label_maps import LabelMap, load_label_map
from medclip_debias.data.prompts import load_prompts
from medclip_debias.data.records import SPLITS
from medclip_debias.data.secret import read_secret
from medclip_debias.errors import UserError, one_of
from medclip_debias.evaluation import prompt_checks
from medclip_debias.evaluation.archives import archive_notes, describe_archives
from medclip_debias.evaluation.bootstrap import FEWEST
from medclip_debias.evaluation.catalogue import METRICS
from medclip_debias.evaluation.encoding import Network, Progress, Vectors, encode
from medclip_debias.evaluation.item_tables import FOLDER, ItemNames, write_items
from medclip_debias.evaluation.options import EvaluationOptions
from medclip_debias.evaluation.presets import OURS, Part, chosen_presets
from medclip_debias.evaluation.protocol import (
    HELD_OUT,
    Draw,
    Measured,
    NotAsked,
    Protocol,
    Request,
    Skipped,
    registered,
)
from medclip_debias.evaluation.provenance import describe, describe_maps, plain, splits
from medclip_debias.evaluation.table import (
    EXAMPLES,
    FORMAT,
    TABLE,
    Results,
    Row,
    of_protocol,
    rows,
    without_rows,
)
from medclip_debias.files import atomic_file, check_out, remove_leftovers
from medclip_debias.grounding.preparation import check_preparation
from medclip_debias.grounding.saliency import with_maps
from medclip_debias.models.finite import NotFiniteError
from medclip_debias.models.interface import need_vectors
from medclip_debias.models.synthetic import synthetic_warning

if TYPE_CHECKING:
    from medclip_debias.data.store import PreparedSet
    from medclip_debias.models.interface import ImageTextModel

_DIVISIONS = ("classes", "categories", "iou")
ON_TRAINING = (
    "Measured on training images: these metrics say how well the model remembers, not how well it "
    "does on new patients."
)


def headline(results: Results) -> dict[str, Any]:
    """The few metrics of ``results`` that a terminal should show, and what was skipped."""
    lines: dict[str, Any] = {}
    for metric in METRICS:
        if metric.terminal and metric.protocol in results.protocols:
            value = results.value(metric.protocol, metric.name)
            beside = ", ".join(f"{name} {v:.3g}" for name, v in results.floors(metric).items())
            text = f"{value:.4g} ({beside})" if value is not None and beside else value
            lines[f"{metric.protocol}.{metric.name}"] = text
    zero = results.details("zero_shot")
    several, decided = zero.get("multiclass") or {}, zero.get("decisions") or {}
    if "list" in several.get("source", {}):  # asked for by name
        accuracy = results.value("zero_shot", "multiclass_accuracy")
        lines["zero_shot.multiclass.accuracy"] = several.get("reason", accuracy)
    if "reason" in decided:
        lines["zero_shot.decisions.reason"] = decided["reason"]
    elif "method" in decided:
        for name in ("ece", "coverage", "abstention"):
            value = results.value("zero_shot", f"decisions_{name}")
            lines[f"zero_shot.decisions.{name}"] = value
    for name, why in decided.get("skipped", {}).items():
        lines[f"zero_shot.decisions.skipped.{name}"] = why["reason"]
    triplets = results.details("triplets")
    if triplets.get("source"):
        lines["triplets.judged"] = f"{triplets['images']} of {triplets['source']['rows']}"
    lines |= {f"presets.{name}.{part}": line for name, part, line in results.preset_lines()}
    sentence = (results.get("maps") or {}).get("sentence")
    if sentence and "grounding" in results.protocols:
        lines["maps"] = sentence
    lines |= {f"note.{number}": note for number, note in enumerate(results.get("notes", ()), 1)}
    return lines | {f"skipped.{part}": reason for part, reason in results["skipped"].items()}


def evaluate(
    model_folder: Path,
    prepared: Path,
    out: Path,
    *,
    split: str = "test",
    allow_train: bool = False,
    seed: int = 0,
    bootstrap: int = 1000,
    batch_size: int = 64,
    heatmaps: int = 16,
    device: str = "cpu",
    progress: Progress | None = None,
    prompts: Path | str | None = None,
    classes: Sequence[str] | None = None,
    labels: Path | None = None,
    label_map: LabelMap | Path | str | None = None,
    class_images: Path | None = None,
    phrases: Path | None = None,
    triplets: Path | None = None,
    options: EvaluationOptions | None = None,
) -> Results:
    """Run the protocols that the set allows; write ``results.json``, ``items/``, ``heatmaps/``.

    ``metrics.parquet`` holds the metrics too (`medclip_debias.evaluation.table`).
    Zero-shot classification and whole-study retrieval use the images of ``split``; phrase
    grounding and box retrieval use those and the ``held_out`` ones (phrase images kept out of
    training).

    Args:
        model_folder: a trained model.
        prepared: a prepared set, prepared as the model was trained.
        out: folder for the results, often the run's own.
        split: ``test`` or ``validate``; phrases that have a split of their own must have this one.
        allow_train: allow ``split="train"``; ``notes`` of the results then say so.
        seed: of the bootstrap.
        bootstrap: number of resamples; 0 for no intervals.
        batch_size: images encoded at a time.
        heatmaps: pictures to write; 0 for none.
        device: where the model runs; ``auto``: a GPU if there is one.
        progress: called with images done and images in total.
        prompts: prompt set, by packaged name or YAML file; by default the model's own
            ``chex5``, else the packaged one.
        classes: classes of the prompt set to judge; all by default.
        labels: table of labels instead of the set's own.
        label_map: how label columns of other names map to the classes: a packaged map's name or
            a YAML file (`medclip_debias.data.label_maps`).
        class_images: list of images for multi-class accuracy, as CheXpert 5x200's.
        phrases: box file instead of the set's own phrases.
        triplets: reports with a finding negated and omitted, as CXR-Align's.
        options: all other options.

    Returns:
        The content of ``results.json``.

    Raises:
        UserError: the set was prepared otherwise than the model expects, an input cannot be
            used, there is nothing in it to evaluate, the training split is asked for without
            ``allow_train``, or the model gives NaN.
    """
    from medclip_debias.data.store import PreparedSet
    from medclip_debias.data.verify import check_sample
    from medclip_debias.models.load import load_model

    one_of(split, SPLITS, "split")
    if split == "train" and not allow_train:
        raise UserError(
            "The split 'train' is what the model learned from, so its metrics say nothing about new"
            " patients; evaluate 'test' or 'validate', or give --allow-train to measure it anyway."
        )
    started = time.perf_counter()
    options = options or EvaluationOptions()
    chosen_presets(options.preset)  # refused before any work
    out = Path(out)
    check_out(out)
    check_out(out / FOLDER, "*.parquet", "tables of an evaluation")
    for name in ("heatmaps", EXAMPLES) if heatmaps else ():
        check_out(out / name, "index.json", "pictures of an evaluation")
    remove_leftovers(out)
    data = PreparedSet.open(Path(prepared))
    check_sample(data)
    secret = read_secret(data.folder)
    model = load_model(Path(model_folder), device)
    if model.outputs.text_form == "none":
        need_vectors(model, "evaluate")
    model = with_maps(model, options.method)
    if options.preset != OURS:
        need_vectors(model, "evaluate --preset", several=True)
    check_preparation(model.preprocessing, data)
    # The model's own set, or else the packaged one.
    prompt_set = load_prompts(prompts or model.prompts.get("chex5") or "chex5").only(classes)
    if label_map is not None and not isinstance(label_map, LabelMap):
        label_map = load_label_map(label_map)

    files = (labels, class_images, phrases)
    request = Request(
        data, split, model, prompt_set, options, *files, Path(model_folder), label_map, triplets
    )
    results = measure(
        plan(request),
        out,
        Draw(bootstrap, seed),
        ItemNames(data.content_hash, secret),
        batch_size=batch_size,
        heatmaps=heatmaps,
        progress=progress,
        started=started,
    )
    with atomic_file(out / TABLE) as temporary:
        results.table().to_parquet(temporary, index=False)
    return results


@dataclass(frozen=True)
class Planned:
    """What of a request can be measured, and why other protocols are skipped, by name."""

    request: Request
    protocols: list[Protocol]
    skipped: dict[str, str]

    @property
    def rows(self) -> set[int]:
        """Rows of the set's images that are looked at."""
        return set().union(*(protocol.rows for protocol in self.protocols))

    @property
    def texts(self) -> list[str]:
        """The distinct sentences that are needed as vectors."""
        return list(dict.fromkeys(text for p in self.protocols for text in p.texts))


def plan(request: Request, only: Collection[str] | None = None) -> Planned:
    """Plan every protocol, or those named ``only``.

    Raises:
        UserError: none can be measured.
    """
    planned = Planned(request, [], {})
    for kind in registered():
        if only is not None and kind.name not in only:
            continue
        try:
            planned.protocols.append(kind(request))
        except NotAsked:
            continue
        except Skipped as reason:
            planned.skipped[kind.name] = str(reason)
    if not planned.protocols:
        raise UserError(_nothing(request.data, planned.skipped))
    return planned


def measure(
    planned: Planned,
    out: Path,
    draw: Draw,
    names: ItemNames,
    *,
    vectors: Vectors | None = None,
    batch_size: int = 32,
    heatmaps: int = 0,
    progress: Progress | None = None,
    started: float | None = None,
) -> Results:
    """Look at the images, measure, and write ``results.json`` and ``items/`` to ``out``.

    The protocols of ``planned`` are used up. ``names`` are of items and patients in ``items/``;
    without ``vectors`` of images and sentences the model computes them; ``started`` is when the
    work began (`time.perf_counter`).

    Raises:
        UserError: nothing could be measured, or the model gives NaN.
    """
    started = time.perf_counter() if started is None else started
    request, protocols, skipped = planned.request, planned.protocols, planned.skipped
    model, data, options = request.model, request.data, request.options
    encoding, source = time.perf_counter(), vectors or Network(model, data)
    try:
        encoded = encode(model, source, protocols, batch_size=batch_size, progress=progress)
    except NotFiniteError as error:
        raise UserError(f"{request.model_folder}: {error}") from error
    measuring = time.perf_counter()
    measured: dict[Protocol, Measured] = {}
    for protocol in protocols:
        try:
            measured[protocol] = protocol.measure(draw)
        except Skipped as reason:
            skipped[protocol.name] = str(reason)
    if not measured:
        raise UserError(_nothing(data, skipped))
    drawing = time.perf_counter()
    for stale in ("results.json", TABLE):  # what follows is no longer theirs, even if this stops
        (out / stale).unlink(missing_ok=True)
    for pictures in (out / "heatmaps", out / EXAMPLES):
        if (pictures / "index.json").is_file() and not pictures.is_symlink():
            shutil.rmtree(pictures)
    for protocol in protocols if heatmaps else ():
        protocol.write_pictures(out, data, heatmaps)
    tables = {p.file: m.items for p, m in measured.items() if m.items is not None}
    write_items(out, tables, names)
    archives = describe_archives(model, data)
    table: list[dict[str, Any]] = []
    details: dict[str, dict[str, Any]] = {}
    for protocol, part in measured.items():
        details[protocol.name] = part.details
        table += of_protocol(protocol.name, part.rows)
        if protocol.name == "zero_shot":
            details[protocol.name] |= _prompt_checks(request, part.rows)
    presets = {}
    for preset in chosen_presets(options.preset):
        presets[preset.name] = preset.model_dump(mode="json", exclude={"name", *get_args(Part)})
        for protocol in measured:
            counted = protocol.under(preset)
            if counted is not None:
                table += of_protocol(protocol.name, _preset_rows(f"preset {preset.name}", counted))
                presets[preset.name][protocol.name] = without_rows(counted, *_DIVISIONS)
    counts = {kind.counted: 0 for kind in registered() if kind.counted}
    counts |= {protocol.counted: protocol.count for protocol in protocols if protocol.counted}
    results = {
        "format": FORMAT,
        "split": request.split,
        "details": details,
        **({"presets": presets} if presets else {}),
        "skipped": skipped,
        "notes": [
            *_notes(model, data, request.split, options),
            *archive_notes(archives, data),
            *details.get("zero_shot", {}).get("warnings", ()),
        ],
        "counts": {"images": encoded["images"]} | counts | encoded,
        **describe(request, draw, archives),
        "timing": {
            "evaluate": time.perf_counter() - started,
            "evaluate_encode": measuring - encoding,
            "evaluate_intervals": drawing - measuring,
            "evaluate_heatmaps": time.perf_counter() - drawing,
        },
        "metrics": table,
    }
    content = Results(plain(results))
    content["maps"] = describe_maps(content, synthetic=bool(data.meta.get("synthetic", False)))
    unknown = [
        m.key
        for m in METRICS
        if m.unit != "error" and (row := content.row(m.protocol, m.name)) and row["low"] is None
    ]
    if unknown and draw.resamples:
        content["notes"].append(
            "Undefined without one of the patients, as an AUC without its only positive, and so"
            f" without an interval: {', '.join(unknown)}."
        )
    zero = content.details("zero_shot")
    decided = zero.get("decisions") or {}
    if (decided.get("data_hash"), decided.get("split")) == (data.content_hash, request.split):
        content["notes"].append(
            f"The calibration was made on images of the split '{request.split}' of this set, which"
            " is judged: where they are the same images, what is said of decisions is too good."
        )
    few = zero.get("few_patients")
    if few and draw.resamples:
        content["notes"].append(
            f"Fewer than {FEWEST} patients with the finding, or without it: {', '.join(few)}. Its"
            " AUC has no interval, and that of a mean over the classes may be too narrow."
        )
    content.write(out / "results.json")
    return content


def _preset_rows(group: str, counted: Mapping[str, Any]) -> list[Row]:
    """What a protocol counted under a preset as rows."""
    parts = [(group, None, counted)]
    parts += [(group, name, part) for name, part in (counted.get("classes") or {}).items()]
    for name, part in (counted.get("categories") or {}).items():
        parts.append((f"{group}, category: {name}", None, part))
    measured = []
    for place, of_class, part in parts:
        measured += rows(part, n=part.get("phrases"), of_class=of_class, group=place)
        for threshold, overlap in (part.get("iou") or {}).items():
            measured += rows({"iou": overlap}, group=f"{place}, threshold {threshold}")
    return measured


def _prompt_checks(request: Request, measured: Sequence[Row]) -> dict[str, Any]:
    """What of the prompts training text does not say, and every warning on them."""
    prompts = request.prompts.texts
    absent = prompt_checks.unsaid_prompts(request.model.provenance, prompts, request.data)
    bounds = {
        row.of_class: (row.value, row.low, row.high)
        for row in measured
        if row.metric == "auc" and row.of_class and row.low is not None and row.high is not None
    }
    warnings = prompt_checks.inverted_warnings(bounds)
    warnings += prompt_checks.unsaid_warning(absent, len(prompts))
    return {"unsaid_prompts": absent, "warnings": warnings}


def _notes(
    model: ImageTextModel, data: PreparedSet, split: str, options: EvaluationOptions
) -> list[str]:
    """What a reader must know, in sentences."""
    warning = synthetic_warning(model.provenance, bool(data.meta.get("synthetic", False)))
    notes = [warning] if warning else []
    notes += [ON_TRAINING] if split == "train" else []
    judged = data.images["split"].isin({split, HELD_OUT}).to_numpy()
    aside = int((judged & ~data.frontal).sum())
    if aside and options.views == "frontal":
        notes.append(
            f"{aside} of {int(judged.sum())} images are not frontal and were skipped (the"
            " option views: all judges them)."
        )
    return notes


def _nothing(data: PreparedSet, skipped: Mapping[str, str]) -> str:
    reasons = " ".join(dict.fromkeys(skipped.values()))
    shares = ", ".join(f"{count} in '{name}'" for name, count in sorted(splits(data).items()))
    return f"{data.folder}: nothing to evaluate. {reasons} The set's images are {shares}."
