"""What each figure of a report means, and what the paper reported on its own data."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Metric:
    """One figure of ``results.json``.

    Attributes:
        section: its part of the file.
        key: its key there.
        title: what tables call it.
        definition: one line.
        lower_is_better: True for ranks.
        digits: decimals shown.
        paper: its column in `PAPER`, when the paper reports it.
        floor: key, in the same section, of what a map or ranking without any skill gets; or a
            number.
    """

    section: str
    key: str
    title: str
    definition: str
    lower_is_better: bool = False
    digits: int = 3
    paper: int | None = None
    floor: str | float | None = None


METRICS = (
    Metric(
        "zero_shot",
        "mean_auc",
        "Zero-shot AUC",
        "How often an image with the finding scores higher on 'positive minus negative prompt' "
        "than one without; mean over classes.",
        paper=0,
        floor=0.5,
    ),
    Metric(
        "zero_shot",
        "accuracy",
        "Zero-shot accuracy",
        "Share of images for which the right one of the two prompts scores higher; mean over "
        "classes.",
        paper=1,
    ),
    Metric(
        "zero_shot",
        "balanced_accuracy",
        "Balanced accuracy",
        "The same, as the mean of its values on images with and without the finding.",
        floor=0.5,
    ),
    Metric(
        "grounding",
        "cnr",
        "CNR",
        "Contrast-to-noise ratio: how far a sentence's scores inside its boxes differ from those "
        "outside, over their spread; either direction counts.",
        digits=2,
        paper=2,
    ),
    Metric(
        "grounding",
        "cnr_signed",
        "CNR, signed",
        "The same, negative where the boxes score lower than the rest.",
        digits=2,
        floor=0.0,
    ),
    Metric(
        "grounding",
        "miou",
        "mIoU",
        "Overlap of the thresholded map and the boxes, mean over 41 thresholds from -1 to 1.",
        paper=3,
        floor="miou_floor",
    ),
    Metric(
        "grounding",
        "miou_middle",
        "mIoU, 0.1 to 0.5",
        "The same over the thresholds 0.10, 0.15, ..., 0.50 only.",
    ),
    Metric(
        "grounding",
        "pointing_game",
        "Pointing game",
        "Share of sentences whose highest-scoring pixel lies inside a box.",
        floor="pointing_game_floor",
    ),
    Metric(
        "retrieval",
        "recall",
        "Retrieval recall",
        "Share of queries that find their pair among the first 10, 50 and 100; mean of these "
        "three and of both directions (box to sentence, sentence to box).",
        paper=4,
        floor="chance.recall",
    ),
    Metric(
        "retrieval",
        "median_rank",
        "Median rank",
        "Median place of the pair in the ranked list, mean of both directions; lower is better.",
        lower_is_better=True,
        digits=1,
        paper=5,
        floor="chance.median_rank",
    ),
)
HEADLINE = (
    ("zero_shot", "mean_auc"),
    ("zero_shot", "accuracy"),
    ("grounding", "cnr"),
    ("grounding", "miou"),
    ("retrieval", "recall"),
    ("retrieval", "median_rank"),
)

# Table 1 of Wang et al. 2023 (MIMIC-CXR, MS-CXR, ResNet-18): AUC, ACC, CNR, mIoU, Recall, MedR.
PAPER: dict[str, tuple[float, ...]] = {
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
PAPER_BASE, PAPER_BEST = "LSE+NL, no correction", "debiased, language model"
PAPER_COLUMNS = ("AUC", "ACC", "CNR", "mIoU", "Recall", "MedR")

# Curves of metrics.csv: column, title, one line.
CURVES = (
    ("loss", "Loss", "Contrastive loss of the batch, mean over its anchors."),
    ("scale", "Logit scale", "Learned factor g2 between cosine and logit, clamped to 1..100."),
    (
        "clamped",
        "Clamped share",
        "Share of anchors whose debiased sum of negatives hit its floor.",
    ),
    ("mean_eta", "Mean eta", "Mean probability that an unpaired image agrees with a sentence."),
    (
        "positive_similarity",
        "Similarity",
        "Mean similarity of the pairs, and of everything else in the batch (dashed).",
    ),
    ("lr", "Learning rate", "Warm-up, then cosine decay."),
)
