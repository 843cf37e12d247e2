"""A model card: README.md of the model folder, written from what the folder and results say.

Metadata as the hub reads it (https://huggingface.co/docs/hub/model-cards): ``model-index`` holds
the metrics, each with its interval among its arguments; ``.eval_results/`` holds those of a
benchmark that has a data set on the hub.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
import yaml

from medclip_debias import __version__
from medclip_debias.bench.record import named_models
from medclip_debias.errors import UserError
from medclip_debias.evaluation.archives import archive_name, trained_on
from medclip_debias.evaluation.schema import read_results
from medclip_debias.files import write_text
from medclip_debias.front.results import results as metrics_table
from medclip_debias.hub.public import CARD, EVAL_RESULTS, pathless, public_config
from medclip_debias.markdown import markdown_table, one_line, plain_words
from medclip_debias.models.dual_encoder import DualEncoder
from medclip_debias.models.synthetic import WARNING, trained_on_synthetic

TAGS = ("medclip-debias", "chest-x-ray", "radiology", "image-text", "grounding", "medical")
TASKS = {
    "zero_shot": "zero-shot-image-classification",
    "grounding": "object-detection",
    "segmentation": "image-segmentation",
}
"""The hub's name of a protocol's task; any other is ``image-text-retrieval``."""
NOT_SAID = "unknown"
_LICENCE = re.compile(r"[a-z0-9][a-z0-9.-]{0,60}")
_DATASET = re.compile(r"[A-Za-z0-9][\w.-]{0,95}/[A-Za-z0-9][\w.-]{0,95}")


@dataclass(frozen=True)
class ModelCard:
    """What is written of one model.

    Attributes:
        text: of README.md, metadata first.
        eval_results: of ``.eval_results/medclip-debias.yaml``, or None.
        says: sentences on what is missing.
    """

    text: str
    eval_results: str | None
    says: tuple[str, ...]


def write_card(model: Path, **options: Any) -> ModelCard:
    """Write the card of `make_card` into the folder; what is there is replaced."""
    card = make_card(model, **options)
    path = Path(model) / EVAL_RESULTS / "medclip-debias.yaml"
    if card.eval_results is not None:
        write_text(path, card.eval_results)
    else:
        path.unlink(missing_ok=True)  # of an earlier card
    write_text(Path(model) / CARD, card.text)
    return card


def make_card(
    model: Path,
    *,
    results: Path | None = None,
    licence: str | None = None,
    name: str | None = None,
    dataset: str | None = None,
) -> ModelCard:
    """Make the card of a model.

    Args:
        model: a folder that ``train`` wrote.
        results: ``results.json`` of ``evaluate`` for this very model, or its folder.
        licence: of the weights, by the hub's name (``apache-2.0``); by default what the
            provenance says, else ``unknown``.
        name: by default the run's.
        dataset: of the hub, ``group/name``, on which ``results`` were measured; for
            ``.eval_results``.

    Raises:
        UserError: it is no such folder, the results are another model's, or a name cannot be one.
    """
    model = Path(model)
    config = public_config(model)
    provenance = config["provenance"]
    hash_ = DualEncoder.load(model, check=False).content_hash
    if name is None:
        name = next(iter(named_models([str(model)])))
    if licence is None:
        said = provenance.get("licence", provenance.get("license"))
        licence = said if isinstance(said, str) else NOT_SAID
    if not _LICENCE.fullmatch(licence):
        raise UserError(
            f"--licence {one_line(licence)}: is no name that the hub has; write as apache-2.0,"
            " cc-by-nc-4.0 or other."
        )
    if dataset is not None and not _DATASET.fullmatch(dataset):
        raise UserError(f"--dataset {one_line(dataset)}: write GROUP/NAME of a set on the hub.")
    if dataset is not None and results is None:
        raise UserError("--dataset says on what results were measured; give --results, too.")
    measured = None if results is None else _results(Path(results), hash_)
    table = None if results is None else _whole(metrics_table(Path(results)))
    synthetic = trained_on_synthetic(provenance)
    head = _metadata(name, licence, measured, table)
    body = [
        f"# {plain_words(one_line(name))}",
        "",
        *([f"**{WARNING}**", ""] if synthetic is True else []),
        *_about(config, hash_, synthetic),
        *_use(synthetic),
        *_data(provenance, measured),
        *_metrics(measured, table),
        *_limits(synthetic),
        *_licence(licence),
        *_citation(),
    ]
    front = yaml.safe_dump(head, sort_keys=False, allow_unicode=True)
    says = []
    if measured is None:
        says.append("no --results were given, so the card holds no metric.")
    if licence == NOT_SAID:
        says.append("no --licence was given, so the card says that none is stated.")
    entries = None
    if dataset is not None and measured is not None and table is not None:
        entries = _eval_results(dataset, measured, table)
    text = f"---\n{front}---\n\n" + "\n".join(body).rstrip() + "\n"
    return ModelCard(text, entries, tuple(says))


def _results(path: Path, hash_: str | None) -> Mapping[str, Any]:
    place = path / "results.json" if path.is_dir() else path
    content = read_results(place)
    if content.get("model_hash") != hash_:
        raise UserError(
            f"{place}: was measured with another model ({content.get('model_hash')}, not {hash_});"
            " evaluate this one."
        )
    return content


def _whole(table: pd.DataFrame) -> pd.DataFrame:
    """Metrics of the whole set, without those of single classes."""
    return table[table["class"].isna()]


# --------------------------------------------------------------------------------- metadata


def _metadata(
    name: str, licence: str, measured: Mapping[str, Any] | None, table: pd.DataFrame | None
) -> dict[str, Any]:
    head: dict[str, Any] = {
        "license": licence,
        "language": "en",
        "library_name": "medclip-debias",
        "pipeline_tag": "zero-shot-image-classification",
        "tags": list(TAGS),
    }
    if measured is None or table is None or table.empty:
        return head
    archive = (measured.get("archives") or {}).get("data") or measured.get("data") or {}
    kind = str(archive.get("kind") or archive.get("source") or NOT_SAID)
    shown = archive_name({"kind": kind, "synthetic": archive.get("synthetic")})
    found = []
    for protocol, rows in table.groupby("protocol", sort=False):
        task = TASKS.get(str(protocol), "image-text-retrieval")
        found.append(
            {
                "task": {"type": task, "name": str(protocol)},
                "dataset": {"type": kind, "name": shown, "split": str(measured.get("split"))},
                "metrics": [_metric(row) for row in rows.to_dict("records")],
            }
        )
    return head | {"model-index": [{"name": name, "results": found}]}


def _metric(row: Mapping[Any, Any]) -> dict[str, Any]:
    found = {
        "type": str(row["metric"]),
        "name": str(row["title"]),
        "value": round(float(row["value"]), 6),
    }
    if row["low"] == row["low"]:
        bounds = {"low": round(float(row["low"]), 6), "high": round(float(row["high"]), 6)}
        found["args"] = {"interval": bounds | {"level": 0.95, "unit": "patient"}}
    return found


def _eval_results(dataset: str, measured: Mapping[str, Any], table: pd.DataFrame) -> str:
    """The hub's format of benchmark results: one entry a metric, its interval in the notes."""
    entries = []
    for row in table.to_dict("records"):
        entry: dict[str, Any] = {
            "dataset": {"id": dataset, "task_id": f"{row['protocol']}.{row['metric']}"},
            "value": round(float(row["value"]), 6),
        }
        notes = [f"split {measured.get('split')}"]
        if row["low"] == row["low"]:
            notes.append(f"95% interval over patients {row['low']:.4f} to {row['high']:.4f}")
        entry["notes"] = ", ".join(notes)
        entries.append(entry)
    return yaml.safe_dump(entries, sort_keys=False)


# -------------------------------------------------------------------------------- sections


def _about(config: Mapping[str, Any], hash_: str | None, synthetic: object) -> list[str]:
    architecture, images = config["architecture"], config["preprocessing"]
    similarity = architecture.get("similarity", {})
    rows = [
        ["Image encoder", f"`{architecture.get('image', {}).get('arch')}`"],
        ["Text encoder", f"`{config.get('text_config', {}).get('model_type')}`"],
        ["Shared space", f"{architecture.get('dim')} dimensions"],
        ["Score", f"`{similarity.get('aggregator')}` over regions and a sentence"],
        ["Input", f"{images.get('input_size')} x {images.get('input_size')} pixels, grey"],
        ["Longest sentence", f"{architecture.get('text', {}).get('max_tokens')} tokens"],
        ["Name of its content", f"`{hash_}`"],
    ]
    kind = "generated chest radiographs" if synthetic is True else "chest radiographs"
    return [
        f"An image-text model of {kind} and sentences of reports. It scores how well a sentence"
        " fits an image, and shows where.",
        "",
        *markdown_table(("", ""), rows),
        "",
        "```python",
        "import medclip_debias as md",
        "",
        'model = md.load("FOLDER OF THESE FILES")',
        'model.zero_shot(["image.dcm"], {"Effusion": ("Effusion.", "No effusion.")})',
        "```",
        "",
        f"Needs the package `medclip-debias` ({__version__} or later); no code is loaded from here."
        " With transformers, `import medclip_debias.hub` first, then `AutoModel` and"
        " `AutoProcessor`.",
        "",
    ]


def _use(synthetic: object) -> list[str]:
    real = (
        "- To try the software and to compare methods. It knows no patient."
        if synthetic is True
        else "- Research on zero-shot classification, grounding and retrieval of chest radiographs."
    )
    return [
        "## Intended use",
        "",
        real,
        "- Not a medical device. Not for diagnosis, triage or any decision about a patient.",
        "- Not for other parts of the body, other kinds of imaging, or photographs of screens.",
        "",
    ]


def _data(provenance: Mapping[str, Any], measured: Mapping[str, Any] | None) -> list[str]:
    trained = trained_on(provenance)
    lines = ["## Training", ""]
    known = trained["kind"] is not None
    set_ = f"`{archive_name(trained)}`" if known else "a set that the folder does not name"
    studies = provenance.get("studies")
    count = f", {studies:,} studies" if isinstance(studies, int) else ""
    lines.append(f"- Trained on {set_}{count}.")
    loss = provenance.get("loss")
    if isinstance(loss, Mapping) and loss.get("kind"):
        lines.append(f"- Loss: `{loss['kind']}`.")
    train = provenance.get("train")
    if isinstance(train, Mapping):
        told = [f"{key.replace('_', ' ')} {train[key]}" for key in _TOLD if key in train]
        lines += [f"- Settings: {', '.join(told)}."] if told else []
    if provenance.get("weights"):
        lines.append(f"- Weights: {_said(provenance['weights'])}.")
    if provenance.get("best_step") is not None:
        lines.append(f"- Best of the steps that were measured: {provenance['best_step']}.")
    lines.append("")
    data = (measured or {}).get("data") or {}
    funnel = data.get("funnel") or []
    if funnel:
        same = trained["data_hash"] is not None and trained["data_hash"] == data.get("content_hash")
        whose = "trained and measured on" if same else "measured on, which is not the training set"
        lines += [f"How the set came about that the model is {whose}:", ""]
        rows = [
            [_said(r["step"]), f"{r['kept']:,}", f"{r['dropped']:,}", str(r["unit"])]
            for r in funnel
        ]
        lines += [*markdown_table(("step", "kept", "dropped", "unit"), rows), ""]
    return lines


def _said(text: object) -> str:
    """A text of a file as one line that Markdown shows as it is, without paths."""
    return plain_words(one_line(pathless(str(text))))


_TOLD = ("seed", "steps", "batch_size", "lr", "precision")


def _metrics(measured: Mapping[str, Any] | None, table: pd.DataFrame | None) -> list[str]:
    if measured is None or table is None or table.empty:
        return ["## Metrics", "", "None were given with this card.", ""]
    archives = measured.get("archives") or {}
    on = archive_name(archives["data"]) if archives.get("data") else "a set that is not named"
    relation = archives.get("relation")
    known = f"; beside the training set: {relation}" if relation else ""
    sentence = f"Measured on the split `{measured.get('split')}` of `{on}`{known}."
    rows = []
    for row in table.to_dict("records"):
        interval = "" if row["low"] != row["low"] else f"{row['low']:.3f} to {row['high']:.3f}"
        better = "lower" if row["lower_is_better"] else "higher"
        rows.append([row["protocol"], row["title"], f"{row['value']:.3f}", interval, better])
    head = ("protocol", "metric", "value", "95% interval over patients", "better")
    notes = [f"- {_said(note)}" for note in measured.get("notes") or ()]
    skipped = [
        f"- Not measured, {plain_words(part)}: {_said(reason)}"
        for part, reason in (measured.get("skipped") or {}).items()
    ]
    between = [""] if notes or skipped else []
    return [
        *("## Metrics", "", sentence, ""),
        *markdown_table(head, rows, words=2),
        *(*between, *notes, *skipped, ""),
    ]


def _limits(synthetic: object) -> list[str]:
    first: Sequence[str] = ()
    if synthetic is True:
        first = (f"- {WARNING}",)
    elif synthetic != False:  # noqa: E712  "unknown" is neither
        first = ("- Whether its training images were patients' or generated is not known.",)
    return [
        "## Limits",
        "",
        *first,
        "- Metrics hold for the set they were measured on. Other hospitals, machines and groups of"
        " patients may differ; groups are not shown here.",
        "- A score is no probability until it is calibrated on labelled images of that place.",
        "- Every sentence has a brightest place on an image, also one that is not true of it.",
        "- Sentences unlike those of the training reports may be scored badly.",
        "",
    ]


def _licence(licence: str) -> list[str]:
    said = (
        "No licence of these weights is stated; ask whoever published them before any use."
        if licence == NOT_SAID
        else f"Weights: `{licence}`."
    )
    return [
        "## Licence",
        "",
        f"{said} The package is under Apache-2.0. Terms of the archive that a model was trained on"
        " may bind its weights, too.",
        "",
    ]


def _citation() -> list[str]:
    return [
        "## Citation",
        "",
        "The correction for false negatives follows Wang et al., IPMI 2023. Cite the package by its"
        f" name and version, medclip-debias {__version__}.",
        "",
    ]
