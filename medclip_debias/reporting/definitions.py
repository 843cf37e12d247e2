"""What the curves of a training run show."""

from __future__ import annotations

# Curves of metrics.csv: column, title, one line.
CURVES = (
    ("loss", "Loss", "Contrastive loss of the batch, mean over its anchors."),
    ("scale", "Logit scale", "Learned factor g2 between cosine and logit, clamped to 1..100."),
    (
        "clamped",
        "Clamped share",
        "Share of anchors whose debiased sum of negatives was raised to its lower bound.",
    ),
    ("mean_eta", "Mean eta", "Mean probability that an unpaired image agrees with a sentence."),
    ("positives", "Positives", "Mean number of positives of an anchor, its own among them."),
    ("removed", "Removed negatives", "Share of the negatives that the policies took away."),
    (
        "positive_similarity",
        "Similarity",
        "Mean similarity of the pairs, and of everything else in the batch (dashed).",
    ),
    ("lr", "Learning rate", "Warm-up, then cosine decay."),
)
