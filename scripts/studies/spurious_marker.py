"""A marker that comes with a finding in training and not in test: who learns the shortcut?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from pydantic import Field, field_validator

from medclip_debias.config import Settings
from medclip_debias.experiments.differences import by_method, mean_sd, with_interval
from medclip_debias.experiments.experiment import Cell, Row, Summary, Table
from studies.phantom_data import PhantomData, PhantomFolder
from studies.phantom_methods import Candidate
from studies.phantom_run import PhantomTraining
from studies.phantom_study import PhantomStudy, PhantomStudySettings, quick_settings

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SUPERVISED, CONTRASTIVE, EXCLUDED = "supervised", "contrastive", "same class excluded"
SHOWN = {
    "auc_validate": "AUC, marker as in training",
    "auc": "AUC",
    "auc_with": "AUC, with marker",
    "auc_without": "AUC, without marker",
    "auc_against": "AUC against the tie",
    "auc_marker": "reads the marker",
    "accuracy": "bal. acc.",
    "worst_group": "worst group",
}


class SpuriousMarkerSettings(PhantomStudySettings):
    """Which finding carries the marker, and how closely.

    Attributes:
        finding: one of the phantom's classes.
        label: CheXpert column of its type, by which same-class pairs are excluded.
        ties: correlations c in training: the marker is on ``(1 + c) / 2`` of the images with the
            finding and on ``(1 - c) / 2`` of those without; 0 is no tie.
        data: prepared at the size that the encoder reads, so that no crop cuts the marker off.
        seeds: eight, since at a close tie contrastive training takes the marker or leaves it.
    """

    seeds: tuple[int, ...] = tuple(range(8))
    finding: str = "cardiomegaly_mild"
    label: str = "Cardiomegaly"
    ties: tuple[float, ...] = Field((0.0, 0.8, 0.95), min_length=1)
    data: PhantomData = PhantomData(size=48)

    @field_validator("ties")
    @classmethod
    def _are_correlations(cls, ties: tuple[float, ...]) -> tuple[float, ...]:
        if not all(0 <= tie <= 1 for tie in ties):
            raise ValueError("every tie must be in 0..1")
        return tuple(sorted(ties))


class SpuriousMarker(PhantomStudy):
    """Supervised, contrastive, and contrastive without pairs of one class."""

    name: ClassVar[str] = "spurious-marker"
    version: ClassVar[int] = 1
    title: ClassVar[str] = "A spurious marker, tied to a finding in training"
    source: ClassVar[str] = (
        "Understanding the Robustness of Multi-Modal Contrastive Learning, sections 4.1 and 6"
    )
    settings_class: ClassVar[type[Settings]] = SpuriousMarkerSettings
    about: ClassVar[str] = """
A small bright square in a corner of the image goes with mild cardiomegaly in the training and
validation images of a hospital-like phantom, and with nothing in the test images, half of which
have it. With a tie c it is on (1 + c) / 2 of the images with the finding and on (1 - c) / 2 of the
others. Reports never mention it. Three arms, with the same image encoder, batches, steps,
optimiser and learning rate:

- *supervised*: the regions' mean, one linear unit, binary cross-entropy against the image's truth;
- *contrastive*: InfoNCE between images and report sentences, LSE+NL scores; judged by the
  similarity to "Mild cardiomegaly" minus that to "No cardiomegaly";
- *same class excluded*: the same without the negatives whose cardiomegaly label (read from the
  report) equals the anchor's (`remove_by_label`, `match: equal`). This takes away just what the
  paper calls intra-class contrasting. `remove_known` would not: it removes sentences that are true
  of an image, and leaves other sentences of the same class.

Images with severe cardiomegaly are left out of the supervised loss and of all metrics, for they
belong to neither side. *AUC against the tie*: images with finding and without marker against images
without finding and with marker, the pairs that a shortcut gets wrong. *Reads the marker*: AUC of
the score for the marker among images without the finding; 0.5 when it is ignored. Balanced
accuracy and the worst of the four groups (finding by marker) are at the threshold with the best
balanced accuracy on the validation images, where the tie holds. Each seed is a phantom of its
own, and at one seed all ties have the same anatomy, findings and reports.

The arms also differ in what they learn from: the classifier gets the truth of every image, the
contrastive model reports that leave out or vary some of it. So the drop from c = 0 to a tie, within
each arm, is the fairer comparison; the findings state both. The supervised arm learns this one
finding only. A classifier of all findings at once is missing, so nothing here tells what image-text
contrast does from what learning many things at once does. What the findings conclude has p < .05
after Holm's correction over ties, contrasts and both metrics (one family); intervals are not
corrected. There are eight seeds, three more than were run first: a contrastive model takes the
marker or leaves it, so means hide what seeds do. In
the plot every hollow mark is a seed.
"""

    @classmethod
    def quick(cls) -> SpuriousMarkerSettings:
        """No tie and the closest, two seeds, few steps."""
        usual = quick_settings(PhantomStudySettings)
        data = usual.data.model_copy(update={"size": 48})
        return SpuriousMarkerSettings(
            seeds=usual.seeds, train=usual.train, data=data, ties=(0.0, 0.95)
        )

    def arms(self) -> list[Candidate]:
        """The arms; the supervised one has no image-text objective."""
        same = {"kind": "remove_by_label", "match": "equal", "labels": [self.settings.label]}
        return [
            Candidate(SUPERVISED, {"kind": "supervised"}),
            Candidate(CONTRASTIVE, {"kind": "infonce"}),
            Candidate(EXCLUDED, {"kind": "infonce", "negatives": [same]}),
        ]

    def cells(self) -> list[dict[str, Any]]:
        """Arms by tie by seed."""
        s = self.settings
        return [
            self.cell(
                arm,
                seed,
                data={"dials": {"marker_class": s.finding, "marker_correlation": tie}},
                method=arm.label,
                tie=tie,
                finding=s.finding,
            )
            for seed in s.seeds
            for tie in s.ties
            for arm in self.arms()
        ]

    def measure(self, cell: Cell) -> Row:
        """Train one arm and judge it."""
        import torch

        from studies.marker_run import contrastive, supervised

        torch.set_num_threads(1)
        place = PhantomFolder(self.shared_folder(cell))
        train = PhantomTraining(**cell["train"])
        if cell["loss"]["kind"] == "supervised":
            return dict(supervised(place, train, cell["finding"], cell["seed"]))
        return dict(contrastive(place, train, cell["loss"], cell["finding"], cell["seed"]))

    def summary(self, rows: Sequence[Row]) -> Summary:
        """Every metric of every arm and tie, what a tie costs, and who pays less."""
        ties = list(self.settings.ties)
        tables = [
            Table(
                f"Tie {tie:g}: mean (sd) over {len(self.settings.seeds)} seeds",
                ["", *SHOWN.values()],
                [
                    [str(arm), *(mean_sd(_column(own, metric)) for metric in SHOWN)]
                    for arm, own in by_method([r for r in rows if r["tie"] == tie]).items()
                ],
            )
            for tie in ties
        ]
        drops = {arm: _drop(rows, arm, ties) for arm in (SUPERVISED, CONTRASTIVE, EXCLUDED)}
        tables.append(_drop_table(drops, ties))
        figures = {
            f"{arm}, tie {tie:g}": {
                metric: float(np.mean(_column(own, metric))) for metric in SHOWN
            }
            for tie in ties
            for arm, own in by_method([r for r in rows if r["tie"] == tie]).items()
        }
        return Summary(findings(rows, drops, ties), tables, figures)

    def figure(self, rows: Sequence[Row]) -> Figure:
        """Four metrics over the tie: a line for each arm, a hollow mark for each seed."""
        from studies.plots import labels, means_with_seeds, panels

        shown = ("auc", "auc_against", "auc_marker", "worst_group")
        figure, axes = panels(len(shown), [SHOWN[metric] for metric in shown], rows=2)
        ties = list(self.settings.ties)
        for place, (one, metric) in enumerate(zip(axes, shown, strict=True)):
            if metric != "worst_group":
                one.axhline(0.5, color="#aaaaaa", linewidth=0.8)
            for style, arm in enumerate((SUPERVISED, CONTRASTIVE, EXCLUDED)):
                each = [_values(rows, arm, tie, metric) for tie in ties]
                means_with_seeds(one, ties, each, style, arm, 0.016 * (style - 1))
            labels(one, "tie c of marker and finding in training", "", legend=place == 0)
        return figure


# --------------------------------------------------------------------------- what is said

Gap = tuple[float, tuple[float, float], float]


def _column(own: Mapping[int, Row], metric: str) -> list[float]:
    return [float(own[seed][metric]) for seed in sorted(own)]


def _values(rows: Sequence[Row], arm: str, tie: float, metric: str) -> Any:
    chosen = [r for r in rows if (r["method"], r["tie"]) == (arm, tie)]
    return np.array([r[metric] for r in sorted(chosen, key=lambda r: r["seed"])])


def gap(first: Any, second: Any) -> Gap | None:
    """Second minus first, paired: mean, 95% t interval, p; None with fewer than two pairs."""
    from medclip_debias.evaluation.statistics import paired_seeds

    result = paired_seeds(dict(enumerate(second.tolist())), dict(enumerate(first.tolist())))
    return None if result is None else result[:3]


def _drop(rows: Sequence[Row], arm: str, ties: Sequence[float]) -> dict[str, Gap]:
    """What the closest tie changes in each metric of ``arm``; empty with too few seeds."""
    found = {
        metric: gap(*(_values(rows, arm, tie, metric) for tie in (ties[0], ties[-1])))
        for metric in SHOWN
    }
    return {metric: value for metric, value in found.items() if value is not None}


def _said(found: Gap) -> str:
    return with_interval(*found[:2])


def _drop_table(drops: Mapping[str, Mapping[str, Gap]], ties: Sequence[float]) -> Table:
    body = [
        [arm, *(_said(own[metric]) if metric in own else "" for metric in SHOWN)]
        for arm, own in drops.items()
    ]
    title = f"Tie {ties[-1]:g} minus tie {ties[0]:g}, with 95% intervals over seeds"
    return Table(title, ["", *SHOWN.values()], body)


def findings(
    rows: Sequence[Row], drops: Mapping[str, Mapping[str, Gap]], ties: Sequence[float]
) -> list[str]:
    """What the tie costs each arm, then the arms against one another, then the paper.

    Holm's correction is over all comparisons of arms: ties, contrasts, metrics.
    """
    from medclip_debias.evaluation.statistics import holm

    if len(ties) < 2 or not all(drops.values()):
        return ["Too few seeds or ties to say anything about the marker."]
    said = []
    for arm, own in drops.items():
        values = _values(rows, arm, ties[-1], "auc_against")
        level = float(values.mean())
        below = ", below chance" if _from_chance(values) < 0 else ""
        if _from_chance(_values(rows, arm, ties[0], "auc")) <= 0:
            said.append(
                f"{arm} is not shown to learn the finding even at tie {ties[0]:g}, so what a tie "
                "costs it means little."
            )
        said.append(
            f"{arm}: from tie {ties[0]:g} to {ties[-1]:g}, AUC changes by {_said(own['auc'])} and "
            f"AUC against the tie by {_said(own['auc_against'])}, to {level:.3f}{below}; its score "
            f"reads the marker with AUC "
            f"{float(_values(rows, arm, ties[-1], 'auc_marker').mean()):.3f}. The marker outweighs "
            f"the finding there (AUC against the tie below 0.5) in {int((values < 0.5).sum())} of "
            f"{len(values)} seeds."
        )
    claims = (
        (SUPERVISED, CONTRASTIVE, "image-text contrast loses less than supervision"),
        (EXCLUDED, CONTRASTIVE, "contrast within a class is part of the reason"),
    )
    found = []
    for less, more, claim in claims:
        for metric in ("auc_against", "worst_group"):
            found += _apart(rows, less, more, metric, ties, claim)
    adjusted = holm([change[2] for _, change, _ in found])
    return said + [
        f"{start}: {_verdict(change[0], p, claim)}."
        for (start, change, claim), p in zip(found, adjusted, strict=True)
    ]


def _apart(
    rows: Sequence[Row], less: str, more: str, metric: str, ties: Sequence[float], claim: str
) -> list[tuple[str, Gap, str]]:
    """One arm against another at every tie but the first: sentence, change, claim."""

    def values(arm: str, tie: float) -> Any:
        return _values(rows, arm, tie, metric)

    found = []
    for tie in ties[1:]:
        apart = gap(values(less, tie), values(more, tie))
        lost = [values(arm, tie) - values(arm, ties[0]) for arm in (less, more)]
        change = gap(*lost)
        assert apart is not None
        assert change is not None
        start = (
            f"{more} minus {less}, {SHOWN[metric]}: {_said(apart)} at tie {tie:g}, "
            f"{_said(change)} in what the tie changes"
        )
        found.append((start, change, claim))
    return found


def _from_chance(values: Any) -> int:
    """1 where the 95% interval of the mean lies above 0.5, -1 where below, 0 where it holds it."""
    found = gap(np.full(len(values), 0.5), values)
    assert found is not None
    low, high = found[1]
    return int(low > 0) - int(high < 0)


def _verdict(change: float, p: float, claim: str) -> str:
    if p < 0.05 and change > 0:
        return f"as the paper says, {claim}"
    if p < 0.05 and change < 0:
        return f"against the paper, by which {claim}"
    return f"chance is not ruled out, so it is not shown here that {claim}"
