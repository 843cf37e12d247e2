"""Every metric once: name, title, direction, digits, definition, unit.

Results, comparisons, reports, tables, the page docs/metrics.md, experiments and early
stopping read what stands here. A new metric needs two places: the protocol that computes it, and
its entry below.
"""

from __future__ import annotations

from medclip_debias.evaluation.annotation_metrics import PROGRESSION, SEGMENTATION
from medclip_debias.evaluation.box_metrics import DICE, MATCH_LEVELS, SENTENCE_BOXES
from medclip_debias.evaluation.declaration import MEASURED, Metric, PaperColumn, Unit

__all__ = [
    "CHANCE",
    "COMPARED",
    "MATCH_LEVELS",
    "METRICS",
    "PAPER_BASE",
    "PAPER_BEST",
    "PAPER_COLUMNS",
    "PAPER_TABLE_1",
    "PROTOCOLS",
    "PROTOCOL_TITLES",
    "VALIDATION",
    "Metric",
    "PaperColumn",
    "Unit",
    "address",
    "find",
    "of_protocol",
    "page",
]


def _box_recall(level: float) -> Metric:
    return Metric(
        "grounding",
        f"box_recall_{level}",
        f"Box recall, IoU {level}",
        f"Share of a sentence's boxes that a box cut from its map overlaps with an IoU of {level} "
        "or more.",
        "share",
        item=f"box_recall_{level}",
    )


def _precision(k: int) -> Metric:
    return Metric(
        "study_retrieval",
        f"precision_at_{k}",
        f"Class precision at {k}",
        f"Share of the {k} studies ranked first that have all CheX5 labels that are positive in "
        "the query; an image ranks the reports.",
        "share",
        alias=f"class_precision.image_to_report.precision_at_{k}",
        chance=MEASURED,
        compared=False,
    )


def _triplets(name: str, title: str, counted: str, chance: float) -> Metric:
    return Metric(
        "triplets",
        name,
        f"Original report {title}",
        "Share of images that score higher with their report than with the same report with one "
        f"finding {counted}.",
        "share",
        item=name,
        chance=chance,
        terminal=True,
    )


def _decision(name: str, title: str, definition: str, unit: Unit = "share") -> Metric:
    return Metric(
        "zero_shot",
        f"decisions_{name}",
        title,
        f"{definition}; mean over the classes that could be calibrated.",
        unit,
        lower_is_better=name != "coverage",
        alias=f"decisions.{name}",
        compared=False,
    )


METRICS = (
    Metric(
        "zero_shot",
        "mean_auc",
        "Zero-shot AUC",
        "PNC: how often an image with the finding scores higher on 'positive minus negative "
        "prompt' than one without; mean over classes.",
        "share",
        per_class="auc",
        chance=0.5,
        paper="AUC",
        terminal=True,
        required=True,
    ),
    Metric(
        "zero_shot",
        "mean_auc_positive",
        "AUC of 'X' alone (POS)",
        "How often an image with the finding scores higher on the positive prompts alone than one "
        "without; mean over classes.",
        "share",
        per_class="auc_positive",
        chance=0.5,
        terminal=True,
    ),
    Metric(
        "zero_shot",
        "mean_auc_negative",
        "AUC of 'no X' alone (NEG)",
        "How often an image with the finding scores lower on the negative prompts alone than one "
        "without; mean over classes.",
        "share",
        per_class="auc_negative",
        chance=0.5,
        terminal=True,
    ),
    Metric(
        "zero_shot",
        "contradiction_rate",
        "Contradiction rate",
        "Share of all images for which both the positive and the negative prompts of one class "
        "score strictly higher than either side of every other class; sum over classes.",
        "share",
        lower_is_better=True,
        per_class="contradiction_rate",
        chance=MEASURED,
        terminal=True,
    ),
    Metric(
        "zero_shot",
        "average_precision",
        "Average precision",
        "Step-wise area under the curve of precision over recall of 'positive minus negative "
        "prompt'; mean over classes.",
        "share",
        per_class="average_precision",
    ),
    Metric(
        "zero_shot",
        "accuracy",
        "Zero-shot accuracy",
        "Share of images for which the right one of the two prompts scores higher; mean over "
        "classes.",
        "share",
        per_class="accuracy",
        paper="ACC",
        terminal=True,
        required=True,
    ),
    Metric(
        "zero_shot",
        "balanced_accuracy",
        "Balanced accuracy",
        "Mean of the shares of right decisions on images with and without the finding; mean over "
        "classes.",
        "share",
        per_class="balanced_accuracy",
        chance=0.5,
        terminal=True,
        required=True,
    ),
    Metric(
        "zero_shot",
        "f1",
        "F1",
        "F1 at the threshold of best F1 on the validation images; mean over the classes that have "
        "one.",
        "share",
        per_class="f1",
    ),
    Metric(
        "zero_shot",
        "ece",
        "Calibration error (ECE)",
        "Expected calibration error of the logistic function of scale times difference, over 15 "
        "bins of equal width; mean over classes.",
        "error",
        lower_is_better=True,
        per_class="ece",
    ),
    Metric(
        "zero_shot",
        "multiclass_accuracy",
        "Multi-class accuracy",
        "Share of the images with exactly one positive class that the right class's prompts score "
        "highest on.",
        "share",
        alias="multiclass.accuracy",
        chance=MEASURED,
        compared=False,
    ),
    Metric(
        "zero_shot",
        "multiclass_balanced_accuracy",
        "Multi-class balanced accuracy",
        "Share of each class's images that its own prompts score highest on; mean over classes.",
        "share",
        alias="multiclass.balanced_accuracy",
        chance=MEASURED,
        compared=False,
    ),
    _decision(
        "ece",
        "Calibration error, calibrated",
        "Expected calibration error of calibrated probabilities, over 15 bins of equal width",
        "error",
    ),
    _decision("coverage", "Coverage", "Share of images whose set of answers holds the truth"),
    _decision("abstention", "Abstention", "Share of images with both answers in their set or none"),
    Metric(
        "grounding",
        "cnr",
        "CNR",
        "Contrast-to-noise ratio: how far a sentence's scores inside its boxes differ from those "
        "outside, over their spread; either direction counts.",
        "ratio",
        digits=2,
        item="cnr",
        paper="CNR",
        terminal=True,
        lowest=0.0,
        seeds_needed=10,
    ),
    Metric(
        "grounding",
        "cnr_signed",
        "CNR, signed",
        "Contrast-to-noise ratio with its sign: negative where the boxes score lower than the "
        "rest.",
        "ratio",
        digits=2,
        item="cnr_signed",
        chance=0.0,
        terminal=True,
    ),
    Metric(
        "grounding",
        "cnr_above_others",
        "CNR, signed, above others' boxes",
        "Signed contrast-to-noise ratio with a sentence's own boxes less that with the boxes of "
        "other images of its class; 0 for maps that show where the finding mostly is.",
        "ratio",
        digits=2,
        item="cnr_above_others",
        chance=0.0,
        terminal=True,
    ),
    Metric(
        "grounding",
        "miou",
        "mIoU",
        "Overlap of the thresholded map and the boxes, mean over 41 thresholds from -1 to 1.",
        "share",
        item="miou",
        chance=MEASURED,
        paper="mIoU",
        terminal=True,
    ),
    Metric(
        "grounding",
        "miou_middle",
        "mIoU, 0.1 to 0.5",
        "Overlap of the thresholded map and the boxes, mean over the thresholds 0.10, 0.15, ..., "
        "0.50.",
        "share",
        item="miou_middle",
    ),
    Metric(
        "grounding",
        "pointing_game",
        "Pointing game",
        "Share of sentences whose highest-scoring pixel lies inside a box.",
        "share",
        item="pointing",
        chance=MEASURED,
        terminal=True,
    ),
    *(_box_recall(level) for level in (0.1, 0.3, 0.5)),
    *DICE,
    *SENTENCE_BOXES,
    Metric(
        "retrieval",
        "recall",
        "Box retrieval recall",
        "Share of queries that find their pair among the first 10, 50 and 100; mean of these "
        "three and of both directions (box to sentence, sentence to box).",
        "share",
        chance=MEASURED,
        paper="Recall",
        terminal=True,
        required=True,
    ),
    Metric(
        "retrieval",
        "median_rank",
        "Box median rank",
        "Median place of the pair in the ranked list, mean of both directions; lower is better.",
        "rank",
        lower_is_better=True,
        digits=1,
        chance=MEASURED,
        paper="MedR",
        terminal=True,
        required=True,
    ),
    Metric(
        "study_retrieval",
        "recall",
        "Report retrieval recall",
        "Share of whole studies whose image finds its report among the first 10, 50 and 100, and "
        "whose report its image; mean of these.",
        "share",
        alias="report.recall",
        chance=MEASURED,
        terminal=True,
    ),
    Metric(
        "study_retrieval",
        "median_rank",
        "Report median rank",
        "Median place of an image's report, and of a report's image, mean of both; lower is "
        "better.",
        "rank",
        lower_is_better=True,
        digits=1,
        alias="report.median_rank",
        chance=MEASURED,
        terminal=True,
    ),
    *(_precision(k) for k in (5, 10, 100)),
    _triplets(
        "original_best", "best of three", "negated or omitted (CXR-Align); a tie is shared", 1 / 3
    ),
    *(
        _triplets(f"original_above_{other}", f"above {other}", f"{other}; a tie is half", 0.5)
        for other in ("negated", "omitted")
    ),
    Metric(
        "laterality",
        "right_side",
        "Right side",
        "Share of sentences naming one side that score higher with their own image than the same "
        "sentence with left and right exchanged; a tie is half.",
        "share",
        item="right_side",
        chance=0.5,
        terminal=True,
    ),
    *SEGMENTATION,
    *PROGRESSION,
)
"""What `evaluate` measures, in the order of every table."""

COMPARED = tuple(metric for metric in METRICS if metric.compared)
"""What `compare` tests."""

CHANCE = "chance"
"""Group of what a model without any skill gets."""

VALIDATION = (
    Metric(
        "validation",
        "mean_auc",
        "Zero-shot AUC",
        "Mean zero-shot AUC of the classes on images of the validate split.",
        "share",
    ),
    Metric(
        "validation",
        "recall_at_10",
        "Recall at 10",
        "Share of validate images with a sentence of their own study among the ten best.",
        "share",
    ),
    Metric(
        "validation",
        "median_rank",
        "Median rank",
        "Median place of the first sentence of an image's own study; lower is better.",
        "rank",
        lower_is_better=True,
        digits=1,
    ),
)
"""What a training run measures on the way, and stops early by."""

PROTOCOLS = tuple(dict.fromkeys(metric.protocol for metric in METRICS))
"""The protocols, in the order of their results."""

PROTOCOL_TITLES = {
    "zero_shot": "Zero-shot classification",
    "grounding": "Phrase grounding",
    "sentence_boxes": "Boxes for sentences that may not be in the image",
    "retrieval": "Retrieval of boxes and sentences",
    "study_retrieval": "Retrieval of whole studies",
    "triplets": "Report triplets (--triplets)",
    "laterality": "Sentences against their mirror images",
    "segmentation": "Segmentation (archives with masks)",
    "progression": "Progression (MS-CXR-T beside MIMIC-CXR)",
    "validation": "On the way of a training run (validation.csv)",
}
"""The protocols as headings."""

PAPER_COLUMNS: tuple[PaperColumn, ...] = ("AUC", "ACC", "CNR", "mIoU", "Recall", "MedR")

PAPER_TABLE_1: dict[str, tuple[float, ...]] = {
    "BioViL": (0.78, 0.62, 1.14, 0.17, 0.25, 148),
    "LSE+NL, no correction": (0.79, 0.65, 1.40, 0.19, 0.29, 115),
    "remove by CheX5 labels": (0.86, 0.71, 1.37, 0.19, 0.29, 113),
    "resample by text": (0.82, 0.71, 1.37, 0.19, 0.30, 111),
    "remove by text": (0.84, 0.72, 1.39, 0.19, 0.30, 112),
    "reweight by text": (0.84, 0.69, 1.40, 0.19, 0.29, 113),
    "debiased, eta 0.05": (0.80, 0.72, 1.46, 0.19, 0.30, 104),
    "debiased, eta 0.1": (0.85, 0.72, 1.45, 0.19, 0.29, 111),
    "debiased, language model": (0.86, 0.72, 1.49, 0.20, 0.30, 104),
}
"""Table 1 of Wang et al. 2023 (MIMIC-CXR, MS-CXR, ResNet-18), rows of `PAPER_COLUMNS`."""
PAPER_BASE, PAPER_BEST = "LSE+NL, no correction", "debiased, language model"


_BY_KEY = {metric.key: metric for metric in METRICS}


def find(protocol: str, name: str) -> Metric:
    """The metric ``name`` of ``protocol``.

    Raises:
        KeyError: there is none.
    """
    for metric in (*METRICS, *VALIDATION):
        if (metric.protocol, metric.name) == (protocol, name):
            return metric
    raise KeyError(f"{protocol}.{name}")


def address(key: str) -> tuple[str, str, str | None]:
    """Protocol, metric and group of what a key names, as task cards and command lines write it.

    >>> address("study_retrieval.report.recall"), address("presets.afloc.grounding.miou")
    (('study_retrieval', 'recall', None), ('grounding', 'miou', 'preset afloc'))
    """
    if key in _BY_KEY:
        return _BY_KEY[key].protocol, _BY_KEY[key].name, None
    protocol, _, name = key.partition(".")
    if protocol == "presets" and name.count(".") > 1:
        preset, protocol, name = name.split(".", 2)
        return protocol, name, f"preset {preset}"
    return protocol, name, None


def of_protocol(protocol: str) -> tuple[Metric, ...]:
    """The metrics that ``protocol`` gives, in the order of tables."""
    return tuple(metric for metric in METRICS if metric.protocol == protocol)


def page() -> str:
    """The page of the site, in Markdown."""
    lines = [
        "# Metrics",
        "",
        "Written from `medclip_debias/evaluation/catalogue.py`, which every table, plot and "
        "comparison reads. How each is computed:",
        "[evaluation.md](evaluation.md).",
    ]
    for protocol in (*PROTOCOLS, "validation"):
        found = [m for m in (*METRICS, *VALIDATION) if m.protocol == protocol]
        lines += ["", f"## {PROTOCOL_TITLES[protocol]}", ""]
        lines += ["| metric | key | unit | better | chance | definition |", "| --- " * 6 + "|"]
        lines += [_line(metric) for metric in found]
    return "\n".join(lines) + "\n"


def _line(metric: Metric) -> str:
    chance = f"{metric.chance:.4g}" if isinstance(metric.chance, float) else metric.chance or ""
    cells = (
        metric.title,
        f"`{metric.key if metric.protocol != 'validation' else metric.name}`",
        metric.unit,
        "lower" if metric.lower_is_better else "higher",
        chance,
        metric.definition,
    )
    return f"| {' | '.join(cells)} |"
