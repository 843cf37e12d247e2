"""Tables of the further protocols in a run's report: classes, groups, studies, several classes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from medclip_debias.evaluation.presets import preset_lines
from medclip_debias.reporting.content import Rows, dig, interval, number

Results = Mapping[str, Any]
_WAYS = {
    "report_to_image": "report to image",
    "image_to_report": "image to report",
    "sentence_to_image": "sentence to image",
    "image_to_sentence": "image to sentence",
}


def ranking_rows(results: Results) -> Rows:
    """Average precision, F1 and ECE per class; empty when the results do not have them."""
    rows = []
    for name, c in (dig(results, "zero_shot.classes") or {}).items():
        if c.get("average_precision") is None:
            continue
        row = [name]
        for key in ("average_precision", "f1", "ece"):
            row += [number(c.get(key)), interval(dig(c, f"interval.{key}"))]
        rows.append(row)
    return rows


def preset_rows(results: Results) -> Rows:
    """Preset, part, metrics and what it does, one row a part; empty where none was asked for."""
    return [
        [name, part.replace("_", " "), line, found["about"]]
        for name, found in (results.get("presets") or {}).items()
        for part, line in preset_lines(found).items()
    ]


def negation_rows(results: Results) -> Rows:
    """AUC of either side alone and of both, contradictions; empty where they were not measured.

    Classes that were refused have a contradiction rate all the same; the last row is over all.
    """
    part = results.get("zero_shot") or {}
    if part.get("mean_auc_positive") is None:
        return []
    keys = ("auc_positive", "auc_negative", "auc", "contradiction_rate")
    whole = ("mean_auc_positive", "mean_auc_negative", "mean_auc", "contradiction_rate")
    named = [(name, c, keys) for name, c in (part.get("classes") or {}).items()]
    named += [
        (name, c, keys)
        for name, c in (part.get("refused") or {}).items()
        if c.get("contradiction_rate") is not None
    ]
    rows = []
    for name, c, columns in (*named, ("all", part, whole)):
        row = [name]
        for key in columns:
            row += [number(c.get(key)), interval(dig(c, f"interval.{key}"))]
        rows.append(row)
    return rows


def reliability_plots(results: Results) -> list[dict[str, Any]]:
    """A reliability diagram for each class that has one."""
    from medclip_debias.reporting.plots import reliability

    shown = []
    for name, c in (dig(results, "zero_shot.classes") or {}).items():
        if c.get("reliability"):
            ece, images = (
                number(c.get("ece")),
                sum(int(each["images"]) for each in c["reliability"]),
            )
            caption = f"ECE {ece}, {number(images)} images; a mark's area: its images"
            plot = reliability(c["reliability"], f"Reliability diagram of {name}, ECE {ece}")
            shown.append({"title": name, "caption": caption, "plot": plot})
    return shown


def decision_rows(results: Results) -> Rows:
    """Probabilities and sets of answers per class; empty where no decisions were asked for."""
    rows = []
    for name, c in (dig(results, "zero_shot.decisions.classes") or {}).items():
        shares, sets = c["prevalence"], c["sets"]
        rows.append(
            [
                name,
                number(shares["validation"]),
                f"{number(shares['target'])} ({shares['from']})",
                number(shares["observed"]),
                number(dig(c, "uncalibrated.ece")),
                number(dig(c, "probabilities.ece")),
                interval(dig(c, "probabilities.interval.ece")),
                number(dig(c, "probabilities.slope"), 2),
                number(sets["coverage"]),
                interval(dig(sets, "interval.coverage")),
                number(sets["abstention"]),
            ]
        )
    return rows


def decision_lines(results: Results) -> list[str]:
    """Sentences on what of the decisions was left out, or is to be known."""
    part = dig(results, "zero_shot.decisions") or {}
    left = [f"{name}: {why['reason']}." for name, why in (part.get("skipped") or {}).items()]
    reason = [f"{part['reason']}."] if part.get("reason") else []
    return [*reason, *left, *(part.get("notes") or ())]


def multiclass_rows(results: Results) -> Rows:
    """Images, recall and answers of each class of the multi-class protocol."""
    part = dig(results, "zero_shot.multiclass") or {}
    rows = []
    for (name, c), answers in zip(
        (part.get("classes") or {}).items(), part.get("confusion") or [], strict=False
    ):
        shown = [number(value, 0 if float(value).is_integer() else 1) for value in answers]
        rows.append([name, number(c["images"]), number(c["recall"]), *shown])
    return rows


def group_rows(results: Results, division: str) -> Rows:
    """Grounding metrics of each group of ``areas`` or ``sentence_frequency``."""
    return [
        [
            name.replace("_", " "),
            number(c["phrases"]),
            number(c["cnr"], 2),
            interval(dig(c, "interval.cnr"), 2),
            number(c["miou"]),
            interval(dig(c, "interval.miou")),
            number(c["pointing_game"]),
            interval(dig(c, "interval.pointing_game")),
        ]
        for name, c in (dig(results, f"grounding.{division}") or {}).items()
    ]


def study_rows(results: Results) -> Rows:
    """Whole-study retrieval, each direction and counting."""
    rows = []
    for kind in ("report", "sentence"):
        for mode in ("strict", "lenient"):
            part = dig(results, f"study_retrieval.{kind}.{mode}") or {}
            for way, title in _WAYS.items():
                if way in part:
                    recalls = [number(part[way].get(f"recall_at_{k}")) for k in (1, 5, 10, 50, 100)]
                    rank = number(part[way]["median_rank"], 1)
                    rows.append([mode, title, number(part[way].get("queries")), *recalls, rank])
    return rows


def precision_rows(results: Results) -> Rows:
    """Precision@K by class labels, each direction."""
    return [
        [
            _WAYS.get(way, way),
            number(part["queries"]),
            *(number(part[f"precision_at_{k}"]) for k in (5, 10, 100)),
            number(part["chance"]),
        ]
        for way, part in (dig(results, "study_retrieval.class_precision") or {}).items()
    ]


def label_map_rows(results: Mapping[str, Any]) -> Rows:
    """What a label map made of each class: rule, then counts before the label policy."""
    counts = ("present", "absent", "uncertain", "blank", "contradictory")
    return [
        [name, str(made["rule"]), *(number(made[count]) for count in counts)]
        for name, made in (dig(results, "zero_shot.label_map.classes") or {}).items()
    ]
