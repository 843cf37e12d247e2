"""A model card: README.md of the model folder, written from what the folder and results say.

The text is ``card.md.j2``, the metadata are huggingface_hub's: ``model-index`` holds the metrics,
each with its interval among its arguments; ``.eval_results/`` holds those of a benchmark that has a
data set on the hub. Whatever a folder from outside says is shown as plain words (`_words`): the
hub renders the page, and a provenance may hold HTML, links or tables of its own.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from medclip_debias import __version__
from medclip_debias.bench.record import named_models
from medclip_debias.errors import UserError
from medclip_debias.evaluation.archives import archive_name, trained_on
from medclip_debias.evaluation.table import read_results
from medclip_debias.files import write_text
from medclip_debias.front.results import results as metrics_table
from medclip_debias.hub.push import CARD, EVAL_RESULTS, check_repo, pathless, public_config
from medclip_debias.markdown import markdown_table, one_line, plain_words
from medclip_debias.models.dual_encoder import DualEncoder
from medclip_debias.models.synthetic import WARNING, trained_on_synthetic

if TYPE_CHECKING:
    import pandas as pd
    from huggingface_hub import EvalResult

TAGS = ["medclip-debias", "chest-x-ray", "radiology", "image-text", "grounding", "medical"]
TASKS = {
    "zero_shot": "zero-shot-image-classification",
    "grounding": "object-detection",
    "segmentation": "image-segmentation",
}
"""The hub's name of a protocol's task; any other is ``image-text-retrieval``."""
UNKNOWN = "unknown"
_LICENCE = re.compile(r"[a-z0-9][a-z0-9.-]{0,60}")
_LONGEST = 500


@dataclass(frozen=True)
class ModelCard:
    """README.md with its metadata, ``.eval_results`` or None, and sentences on what is missing."""

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
    """
    import huggingface_hub

    model = Path(model)
    config = public_config(model)
    provenance = config["provenance"]
    model_hash = DualEncoder.load(model, check=False).content_hash
    name = name or next(iter(named_models([str(model)])))
    if licence is None:
        stated = provenance.get("licence", provenance.get("license"))
        licence = stated if isinstance(stated, str) else UNKNOWN
    if not _LICENCE.fullmatch(licence):
        raise UserError(
            f"--licence {one_line(licence)}: is not a licence name of the hub; write it as"
            " apache-2.0, cc-by-nc-4.0 or other."
        )
    if dataset is not None:
        check_repo(dataset)
    if dataset is not None and results is None:
        raise UserError("--dataset says on what results were measured; give --results, too.")
    measured, table = _measured(results, model_hash)
    data = huggingface_hub.ModelCardData(
        license=licence,
        language="en",
        library_name="medclip-debias",
        pipeline_tag="zero-shot-image-classification",
        tags=TAGS,
        model_name=one_line(name) if table is not None else None,
        eval_results=None if table is None else list(_eval_results(measured, table)),
    )
    trained, set_ = trained_on(provenance), measured.get("data") or {}
    on = (measured.get("archives") or {}).get("data")
    card = huggingface_hub.ModelCard.from_template(
        data,
        template_str=Path(__file__).with_name("card.md.j2").read_text(encoding="utf-8"),
        words=_words,
        table=lambda head, rows, words=None: "\n".join(markdown_table(head, rows, words)),
        title=plain_words(one_line(name)),
        synthetic=trained_on_synthetic(provenance),
        warning=WARNING,
        version=__version__,
        licence=licence,
        config=config,
        model_hash=model_hash,
        provenance=provenance,
        trained_set=_words(archive_name(trained)) if trained["kind"] is not None else None,
        measured=measured,
        measured_set=_words(archive_name(on)) if on else "a set without a name",
        same_set=trained["data_hash"] == set_.get("content_hash", ""),
        metrics=[] if table is None else table.to_dict("records"),
    )
    says = []
    if results is None:
        says.append("no --results were given, so the card holds no metric.")
    if licence == UNKNOWN:
        says.append("no --licence was given, so the card says that none is stated.")
    entries = None
    if dataset is not None and table is not None:
        entries = yaml.safe_dump(_entries(dataset, measured, table), sort_keys=False)
    return ModelCard(str(card).rstrip() + "\n", entries, tuple(says))


def _words(value: object) -> str:
    """What a file says as one line that Markdown shows as it is, without paths."""
    return plain_words(one_line(pathless(str(value)))[:_LONGEST])


def _measured(
    path: Path | None, model_hash: str | None
) -> tuple[Mapping[str, Any], pd.DataFrame | None]:
    """Results of this model and their table of metrics, without those of single classes."""
    if path is None:
        return {}, None
    place = Path(path) / "results.json" if Path(path).is_dir() else Path(path)
    content = read_results(place)
    if content.get("model_hash") != model_hash:
        raise UserError(
            f"{place}: was measured with another model ({content.get('model_hash')}, not"
            f" {model_hash}); evaluate this one."
        )
    table = metrics_table(place)
    table = table[table["class"].isna()]
    return content, None if table.empty else table


# ------------------------------------------------------------------- metrics for the hub


def _eval_results(measured: Mapping[str, Any], table: pd.DataFrame) -> Iterator[EvalResult]:
    from huggingface_hub import EvalResult

    archive = (measured.get("archives") or {}).get("data") or measured.get("data") or {}
    kind = one_line(str(archive.get("kind") or archive.get("source") or UNKNOWN))
    shown = one_line(archive_name({"kind": kind, "synthetic": archive.get("synthetic")}))
    for row in table.to_dict("records"):
        bounds = {"low": round(float(row["low"]), 6), "high": round(float(row["high"]), 6)}
        interval = {"interval": bounds | {"level": 0.95, "unit": "patient"}}
        yield EvalResult(
            task_type=TASKS.get(str(row["protocol"]), "image-text-retrieval"),
            task_name=str(row["protocol"]),
            dataset_type=kind,
            dataset_name=shown,
            dataset_split=one_line(str(measured.get("split"))),
            metric_type=str(row["metric"]),
            metric_name=str(row["title"]),
            metric_value=round(float(row["value"]), 6),
            metric_args=interval if row["low"] == row["low"] else None,
        )


def _entries(
    dataset: str, measured: Mapping[str, Any], table: pd.DataFrame
) -> list[dict[str, Any]]:
    """The hub's format of benchmark results: one entry a metric, its interval in the notes."""
    entries = []
    for row in table.to_dict("records"):
        notes = f"split {measured.get('split')}"
        if row["low"] == row["low"]:
            notes += f", 95% interval over patients {row['low']:.4f} to {row['high']:.4f}"
        entries.append(
            {
                "dataset": {"id": dataset, "task_id": f"{row['protocol']}.{row['metric']}"},
                "value": round(float(row["value"]), 6),
                "notes": notes,
            }
        )
    return entries
