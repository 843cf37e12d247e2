"""From a run's files to the words and tables of its report: no HTML here."""

from __future__ import annotations

import csv
import math
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from medclip_debias.config import load_yaml
from medclip_debias.errors import ReportedWarning, UserError
from medclip_debias.evaluation.catalogue import (
    METRICS,
    PAPER_BASE,
    PAPER_BEST,
    PAPER_COLUMNS,
    PAPER_TABLE_1,
    Metric,
)
from medclip_debias.evaluation.catalogue import value_at as dig
from medclip_debias.evaluation.schema import read_results
from medclip_debias.files import read_json
from medclip_debias.reporting.definitions import CURVES
from medclip_debias.reporting.plots import curve, data_address

NOTHING = "\N{EN DASH}"
Rows = list[list[str]]


# -------------------------------------------------------------------------------- reading


_PNG = b"\x89PNG\r\n\x1a\n"


def read_run(run: Path) -> dict[str, Any]:
    """Read what is there of ``settings.yaml``, ``metrics.csv``, ``results.json``, ``heatmaps/``.

    Raises:
        UserError: the folder is missing or no run, or one of its files is damaged.
    """
    if not run.is_dir():
        raise UserError(f"{run}: there is no such folder; give the folder that 'train' wrote.")
    settings, results = run / "settings.yaml", run / "results.json"
    if not settings.is_file() and not results.is_file():
        raise UserError(
            f"{run}: is no run folder (it holds neither settings.yaml nor results.json); give the "
            "folder that 'train' or 'evaluate' wrote."
        )
    for path in (settings, results, run / "metrics.csv"):
        check_own(path)
    chosen, text = _settings(settings) if settings.is_file() else ({}, "")
    return {
        "settings": chosen,
        "settings_text": text,
        "metrics": read_metrics(run / "metrics.csv"),
        "results": read_results(results) if results.is_file() else {},
        "heatmaps": read_heatmaps(run / "heatmaps"),
    }


def _settings(path: Path) -> tuple[dict[str, Any], str]:
    """A run's settings and their text; a warning when the file is not whole."""
    content = load_yaml(path)
    if "provenance" not in content:  # what `train` writes last
        _warn(f"{path}: is not whole; the report shows what is there.")
    return content, path.read_text(encoding="utf-8")


def read_metrics(path: Path) -> dict[str, list[float | None]]:
    """Read ``metrics.csv`` as columns; empty and undefined values are None, no file is empty.

    A last row that was cut off is left aside, with a warning.

    Raises:
        UserError: it is no table of numbers.
    """
    if not path.is_file():
        return {}
    try:
        text = path.read_text(encoding="utf-8")
        rows = list(csv.DictReader(text.splitlines(), strict=True))
    except (UnicodeDecodeError, csv.Error) as error:
        raise UserError(
            f"{path}: cannot be read as a table ({type(error).__name__}); move it away, and the "
            "report is written without curves."
        ) from error
    if text and not text.endswith("\n"):
        _warn(f"{path}: its last row is cut off and left aside.")
        rows = rows[:-1]
    if not rows:
        _warn(f"{path}: holds no rows, so the report has no curves.")
    names = [name for name in (rows[0] if rows else {}) if name]
    return {name: [_number(row.get(name)) for row in rows] for name in names}


def _warn(sentence: str) -> None:
    warnings.warn(ReportedWarning(sentence), stacklevel=3)


def check_own(path: Path) -> None:
    """Refuse a link: a report of somebody else's run must not show files of one's own.

    Raises:
        UserError: ``path`` is a symbolic link.
    """
    if path.is_symlink():
        raise UserError(
            f"{path}: is a link to another file, which a run folder does not have; put the file"
            " itself there if you trust it."
        )


def read_heatmaps(folder: Path) -> list[dict[str, Any]]:
    """The pictures that ``heatmaps/index.json`` lists, with their bytes as data addresses."""
    if not (folder / "index.json").is_file():
        return []
    check_own(folder)
    check_own(folder / "index.json")
    index = read_json(folder / "index.json", "run 'evaluate' again")
    items = []
    listed = index.get("items", [])
    if not isinstance(listed, list) or not all(isinstance(item, dict) for item in listed):
        raise UserError(f"{folder / 'index.json'}: is no list of pictures; run 'evaluate' again.")
    for item in listed:
        path = folder / Path(str(item.get("file"))).name
        if not path.is_file():
            raise UserError(f"{path}: this picture is missing; run 'evaluate' again.")
        check_own(path)
        if not path.read_bytes().startswith(_PNG):
            raise UserError(f"{path}: is no PNG picture; run 'evaluate' again.")
        facts = [
            f"{title} {number(item.get(key), digits)}"
            for key, title, digits in (("cnr_signed", "signed CNR", 2), ("miou", "mIoU", 3))
        ]
        if item.get("pointing_game") is not None:
            facts.append("peak inside" if item["pointing_game"] >= 0.5 else "peak outside")
        items.append(
            {
                "picture": data_address(path.read_bytes(), "image/png"),
                "text": str(item.get("text", "")),
                "category": str(item.get("category", "")),
                "facts": ", ".join(facts),
                "choice": str(index.get("choice", "")),
                "scale": str(index.get("scale", "Each picture has its own colour scale.")),
            }
        )
    return items


def _number(text: str | None) -> float | None:
    try:
        value = float(text or "")
    except ValueError:
        return None
    return value if math.isfinite(value) else None


# ------------------------------------------------------------------------------ formatting


def number(value: Any, digits: int = 3) -> str:
    """A number with ``digits`` decimals; a dash for none."""
    if value is None:
        return NOTHING
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    return f"{float(value):.{digits}f}"


def interval(value: Sequence[float] | None, digits: int = 3) -> str:
    """A 95% interval; a dash for none."""
    if not value:
        return NOTHING
    return f"{number(float(value[0]), digits)} to {number(float(value[1]), digits)}"


FEW_PATIENTS = 100
PATIENTS_OF = (
    *("zero_shot", "grounding", "study_retrieval", "triplets", "segmentation", "progression"),
)


def few_patients(counts: Iterable[Any]) -> str:
    """A sentence on intervals from fewer than `FEW_PATIENTS` patients; empty where none are.

    Args:
        counts: patients behind the metrics; what is no number is passed over.
    """
    few = sorted({n for n in counts if isinstance(n, int) and n < FEW_PATIENTS})
    if not few:
        return ""
    found = f"{few[0]}" if len(few) == 1 else f"{few[0]} to {few[-1]}"
    return (
        f"Fewer than {FEW_PATIENTS} patients ({found}): take these intervals as rough; in "
        "simulation those of 95% held the truth 90 to 97 times in 100 with 20 to 80 patients "
        "(docs/evaluation.md)."
    )


def patients_of(results: Mapping[str, Any]) -> list[Any]:
    """Numbers of patients behind the protocols of one evaluation."""
    return [dig(results, f"{part}.patients") for part in PATIENTS_OF]


def duration(seconds: Any) -> str:
    """Seconds as people say them.

    >>> duration(75), duration(3.21)
    ('1 min 15 s', '3.2 s')
    """
    if seconds is None:
        return NOTHING
    seconds = float(seconds)
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s"


def flat(content: Any, prefix: str = "") -> Rows:
    """Nested mappings as rows of dotted key and value."""
    if isinstance(content, Mapping):
        return [row for key, item in content.items() for row in flat(item, f"{prefix}{key}.")]
    if isinstance(content, list):
        text = ", ".join(str(item) for item in content)
    else:
        text = f"{content:,}" if type(content) is int else str(content)
    return [[prefix.removesuffix("."), text]]


# -------------------------------------------------------------------------------- sections


def tiles(results: Mapping[str, Any]) -> list[dict[str, str]]:
    """The paper's metrics, as far as the results hold them."""
    return [
        {
            "title": metric.title,
            "value": number(dig(results, metric.key), metric.digits),
            "interval": interval(dig(results, metric.interval_key), metric.digits),
            "better": "lower is better" if metric.lower_is_better else "higher is better",
        }
        for metric in METRICS
        if metric.paper and dig(results, metric.key) is not None
    ]


def metric_rows(results: Mapping[str, Any]) -> list[dict[str, str]]:
    """Every metric with its interval, what chance gives, and the paper's values."""
    rows = []
    for metric in METRICS:
        value = dig(results, metric.key)
        if value is None:
            continue
        digits = metric.digits
        chance = metric.chance
        if isinstance(chance, str):
            chance = dig(results, f"{metric.protocol}.{chance}")
        rows.append(
            {
                "title": metric.title,
                "definition": metric.definition,
                "value": number(value, digits),
                "interval": interval(dig(results, metric.interval_key), digits),
                "chance": number(chance, digits),
                "base": _paper(metric, PAPER_BASE),
                "best": _paper(metric, PAPER_BEST),
            }
        )
    return rows


def _paper(metric: Metric, method: str) -> str:
    if metric.paper is None:
        return NOTHING
    column = PAPER_COLUMNS.index(metric.paper)
    return paper_value(PAPER_TABLE_1[method], column)


def paper_value(row: Sequence[float], column: int) -> str:
    """One of the paper's values with the decimals that it was printed with."""
    return f"{row[column]:.0f}" if PAPER_COLUMNS[column] == "MedR" else f"{row[column]:.2f}"


def class_rows(results: Mapping[str, Any]) -> Rows:
    """Zero-shot metrics per class: name, counts, then values with intervals."""
    rows = []
    for name, c in (dig(results, "zero_shot.classes") or {}).items():
        row = [name, number(c["positive"]), number(c["negative"]), number(c["left_out"])]
        for key in ("auc", "accuracy", "balanced_accuracy"):
            row += [number(c[key]), interval(dig(c, f"interval.{key}"))]
        rows.append(row)
    return rows


def refused_lines(results: Mapping[str, Any]) -> list[str]:
    """Sentences on the classes that could not be measured."""
    return [
        f"{name}: {c['reason']} ({c['positive']} present, {c['negative']} absent, "
        f"{c['left_out']} left out)."
        for name, c in (dig(results, "zero_shot.refused") or {}).items()
    ]


def category_rows(results: Mapping[str, Any]) -> Rows:
    """Phrase-grounding metrics per category, then overall."""
    grounding = results.get("grounding") or {}
    groups = [*(grounding.get("categories") or {}).items()]
    if len(groups) > 1:
        groups.append(("All", grounding))
    return [
        [
            name,
            number(c["phrases"]),
            number(c["area"], 2),
            number(c["cnr"], 2),
            interval(dig(c, "interval.cnr"), 2),
            number(c["cnr_signed"], 2),
            number(c["miou"]),
            interval(dig(c, "interval.miou")),
            number(c["miou_middle"]),
            number(c["pointing_game"]),
            interval(dig(c, "interval.pointing_game")),
        ]
        for name, c in groups
    ]


def retrieval_rows(results: Mapping[str, Any]) -> Rows:
    """Retrieval metrics: strict and lenient, both ways."""
    rows = []
    titles = {"box_to_sentence": "box to sentence", "sentence_to_box": "sentence to box"}
    for mode in ("strict", "lenient"):
        part = dig(results, f"retrieval.{mode}") or {}
        for way, title in titles.items():
            if way in part:
                recalls = [number(part[way][f"recall_at_{k}"]) for k in (10, 50, 100)]
                rows.append([mode, title, *recalls, number(part[way]["median_rank"], 1)])
    return rows


def curves(
    metrics: Mapping[str, list[float | None]], draw: Callable[..., str] = curve
) -> list[dict[str, str]]:
    """Training curves of the columns that are there and hold numbers, by ``draw``."""
    count = len(next(iter(metrics.values()), []))
    steps = [
        float(index) if value is None else value
        for index, value in enumerate(metrics.get("step", [None] * count))
    ]
    shown = []
    for column, title, line in CURVES:
        values = metrics.get(column, [])
        if all(value is None for value in values):
            continue
        second = metrics.get("negative_similarity") if column == "positive_similarity" else None
        last = next(value for value in reversed(values) if value is not None)
        shown.append(
            {
                "title": title,
                "definition": line,
                "last": f"{last:.3g}",
                "plot": draw(steps, values, second),
            }
        )
    return shown


def funnel_rows(results: Mapping[str, Any]) -> Rows:
    """The funnel: step, unit, kept, dropped."""
    return [
        [
            str(step.get("step", "")),
            str(step.get("unit", "")),
            number(step.get("kept")),
            number(step.get("dropped")),
        ]
        for step in dig(results, "data.funnel") or []
    ]


def training_rows(
    settings: Mapping[str, Any],
    results: Mapping[str, Any],
    metrics: Mapping[str, list[float | None]],
) -> Rows:
    """What was trained on what, as rows of a name and a value."""
    counts = dig(results, "data.counts") or {}
    splits = dig(results, "data.splits") or {}
    architecture = settings.get("model") or dig(results, "model.architecture") or {}
    preprocessing = settings.get("preprocessing") or dig(results, "model.preprocessing") or {}
    rows: list[list[Any]] = [
        *_archives(results),
        ["Prepared set", settings.get("prepared")],
        ["Counts", ", ".join(f"{number(v)} {_words(k)}" for k, v in counts.items() if _plain(v))],
        ["Images by split", ", ".join(f"{number(v)} {k}" for k, v in sorted(splits.items()))],
        ["Image encoder", _image_encoder(architecture, results)],
        ["Initial weights", dig(architecture, "image.weights") or "random (no pretraining)"],
        ["Text encoder", dig(architecture, "text.folder")],
        ["Similarity", _similarity(architecture)],
        ["Input", _input(preprocessing)],
        ["Loss", ", ".join(" ".join(row) for row in flat(settings.get("loss") or {}))],
        ["Training", _training(settings.get("train") or {}, metrics)],
    ]
    return [[name, str(value)] for name, value in rows if value]


def _plain(value: Any) -> bool:
    return isinstance(value, int) and value > 0


def _words(key: str) -> str:
    return key.replace("_", " ")


def _archives(results: Mapping[str, Any]) -> Rows:
    """The source of the data; two rows where the model was trained on another set."""
    trained = dig(results, "archives.model") or {}
    if dig(results, "archives.relation") in (None, "same set") or not trained.get("kind"):
        return [["Data source", _source(results)]]
    synthetic = ", synthetic" if trained.get("synthetic") else ""
    relation = str(dig(results, "archives.relation"))
    how = {"unknown": "whether it is the same archive is not known"}.get(relation, relation)
    return [
        ["Model trained on", f"{trained['kind']}{synthetic}"],
        ["Evaluated on", f"{_source(results)} ({how})"],
    ]


def _source(results: Mapping[str, Any]) -> Any:
    kind = dig(results, "data.source")
    if kind and dig(results, "data.synthetic"):
        return f"{kind}, synthetic: generated images and reports, no patient"
    return kind


def _image_encoder(architecture: Mapping[str, Any], results: Mapping[str, Any]) -> str:
    words = [str(dig(architecture, "image.arch") or "")]
    grid = dig(results, "model.grid")
    if grid:
        words.append(f"{grid[0]} x {grid[1]} regions")
    if dig(results, "model.parameters"):
        words.append(f"{number(dig(results, 'model.parameters'))} parameters with the text encoder")
    return ", ".join(word for word in words if word)


def _similarity(architecture: Mapping[str, Any]) -> str:
    parts = architecture.get("similarity") or {}
    return ", ".join(f"{key} {value}" for key, value in parts.items())


def _input(preprocessing: Mapping[str, Any]) -> str:
    side, size = preprocessing.get("input_size"), dig(preprocessing, "prepare.size")
    return f"{side} x {side} pixels out of {size} x {size}" if side and size else ""


def _training(train: Mapping[str, Any], metrics: Mapping[str, list[float | None]]) -> str:
    words = [
        f"{title} {train[key]:g}" if isinstance(train[key], float) else f"{title} {train[key]}"
        for key, title in (
            ("steps", "steps"),
            ("batch_size", "batch"),
            ("sentences_per_study", "sentences a study"),
            ("lr", "learning rate"),
            ("warmup_steps", "warm-up"),
            ("precision", "precision"),
            ("seed", "seed"),
        )
        if key in train
    ]
    done = [step for step in metrics.get("step", []) if step is not None]
    if done and train.get("steps") and done[-1] < train["steps"]:
        words.append(f"last step logged {done[-1]:.0f}")
    return ", ".join(words)


def timing_rows(results: Mapping[str, Any]) -> Rows:
    """How long each part took."""
    return [[name, duration(seconds)] for name, seconds in (results.get("timing") or {}).items()]


def provenance_rows(results: Mapping[str, Any]) -> Rows:
    """Hashes, seed, options and versions: what somebody needs to repeat the results."""
    keys = (
        "data_hash",
        "model_hash",
        "code_hash",
        "self_test",
        "split",
        "seed",
        "options",
        "prompts",
        "versions",
    )
    return [row for key in keys if key in results for row in flat(results[key], f"{key}.")]
