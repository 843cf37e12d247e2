"""The 28 finding classes: what they are, how often, what excludes what, how others call them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

CHEX5_TYPES = ("cardiomegaly", "edema", "effusion", "pneumonia", "pneumothorax")


@dataclass(frozen=True, slots=True)
class FindingClass:
    """One class: a type, perhaps a side (the patient's), a zone and a severity."""

    type: str
    side: str | None = None
    zone: str | None = None
    severity: str | None = None

    @property
    def name(self) -> str:
        """Name used in every truth table, as in ``effusion_right_small``."""
        return "_".join(p for p in (self.type, self.zone, self.side, self.severity) if p)

    @property
    def group(self) -> tuple[str, str | None, str | None]:
        """Classes of one group differ in severity only, and exclude each other."""
        return (self.type, self.side, self.zone)


# In order of rank: the first is the commonest. Sides and severities of one type are spread over
# the ranks, so that head and tail both hold small and large, left and right.
CLASSES: tuple[FindingClass, ...] = (
    FindingClass("cardiomegaly", severity="mild"),
    FindingClass("atelectasis", side="left"),
    FindingClass("effusion", side="right", severity="small"),
    FindingClass("edema", severity="mild"),
    FindingClass("line", side="right"),
    FindingClass("effusion", side="left", severity="small"),
    FindingClass("pneumonia", side="right", zone="lower"),
    FindingClass("atelectasis", side="right"),
    FindingClass("cardiomegaly", severity="severe"),
    FindingClass("pneumothorax", side="right", severity="small"),
    FindingClass("tube"),
    FindingClass("effusion", side="left", severity="large"),
    FindingClass("pneumonia", side="left", zone="lower"),
    FindingClass("edema", severity="severe"),
    FindingClass("pacemaker"),
    FindingClass("effusion", side="right", severity="large"),
    FindingClass("nodule", side="right", zone="upper"),
    FindingClass("line", side="left"),
    FindingClass("pneumothorax", side="left", severity="small"),
    FindingClass("pneumonia", side="right", zone="upper"),
    FindingClass("nodule", side="left", zone="lower"),
    FindingClass("hernia"),
    FindingClass("pneumothorax", side="right", severity="large"),
    FindingClass("pneumonia", side="left", zone="upper"),
    FindingClass("nodule", side="left", zone="upper"),
    FindingClass("scoliosis"),
    FindingClass("pneumothorax", side="left", severity="large"),
    FindingClass("nodule", side="right", zone="lower"),
)
CLASS_NAMES: tuple[str, ...] = tuple(c.name for c in CLASSES)
INDEX: dict[str, int] = {name: i for i, name in enumerate(CLASS_NAMES)}
TYPES: tuple[str, ...] = tuple(dict.fromkeys(c.type for c in CLASSES))

# MS-CXR's eight categories, then one for each of the phantom's other types.
MS_CXR_CATEGORIES = (
    "Atelectasis",
    "Cardiomegaly",
    "Consolidation",
    "Edema",
    "Lung Opacity",
    "Pleural Effusion",
    "Pneumonia",
    "Pneumothorax",
    "Lung Lesion",
    "Catheter",
    "Endotracheal Tube",
    "Pacemaker",
    "Hiatal Hernia",
    "Scoliosis",
)
# Of each type its category, and what a reader who sees the image would tick (the labelled test
# set); a report's words may tick less, see the label of each noun in words.yaml.
_OF_TYPE: dict[str, tuple[str, tuple[str, ...]]] = {
    "atelectasis": ("Atelectasis", ("Atelectasis",)),
    "cardiomegaly": ("Cardiomegaly", ("Cardiomegaly",)),
    "edema": ("Edema", ("Edema", "Lung Opacity")),
    "effusion": ("Pleural Effusion", ("Pleural Effusion",)),
    "hernia": ("Hiatal Hernia", ()),
    "line": ("Catheter", ("Support Devices",)),
    "nodule": ("Lung Lesion", ("Lung Lesion",)),
    "pacemaker": ("Pacemaker", ("Support Devices",)),
    "pneumonia": ("Pneumonia", ("Pneumonia", "Consolidation", "Lung Opacity")),
    "pneumothorax": ("Pneumothorax", ("Pneumothorax",)),
    "scoliosis": ("Scoliosis", ()),
    "tube": ("Endotracheal Tube", ("Support Devices",)),
}
CATEGORY_OF_TYPE = {kind: category for kind, (category, _) in _OF_TYPE.items()}
TRUE_LABELS = {kind: labels for kind, (_, labels) in _OF_TYPE.items()}
GROUPS: dict[tuple[str, str | None, str | None], list[int]] = {}
for _index, _finding in enumerate(CLASSES):
    GROUPS.setdefault(_finding.group, []).append(_index)


def class_probabilities(classes: int, scale: float, exponent: float) -> np.ndarray:
    """Probability of each class in a natural study: ``scale * 0.25 / rank ** exponent``.

    Classes from ``classes`` on have probability 0. A group whose severities sum to more than
    0.95 (only with a large scale) is scaled down to that, since its members exclude each other.
    """
    ranks = np.arange(1, len(CLASSES) + 1, dtype=float)
    p = np.minimum(scale * 0.25 / ranks**exponent, 0.95)
    p[classes:] = 0.0
    for members in GROUPS.values():
        total = p[members].sum()
        if total > 0.95:
            p[members] *= 0.95 / total
    return p


def draw_findings(
    rng: np.random.Generator, probabilities: np.ndarray, forced: int | None = None
) -> np.ndarray:
    """Draw which classes a study has: a bool vector over all classes.

    Args:
        rng: source of randomness; one number is used per group, whatever comes out.
        probabilities: marginal probability of each class.
        forced: class that must be present; the other members of its group are then absent.
    """
    present = np.zeros(len(CLASSES), dtype=bool)
    for members in GROUPS.values():
        u = rng.random()
        if forced in members:
            present[forced] = True
            continue
        chosen = int(np.searchsorted(np.cumsum(probabilities[members]), u, side="right"))
        if chosen < len(members):
            present[members[chosen]] = True
    return present
