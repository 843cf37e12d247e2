"""Keyword supervision for the severity of the phantom's findings (section 6 of its paper)."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from medclip_debias.config import Settings
from medclip_debias.experiments.differences import by_method, mean_sd, with_interval
from medclip_debias.experiments.experiment import Cell, Row, Summary, Table
from studies.phantom_data import PhantomFolder
from studies.phantom_methods import Candidate
from studies.phantom_run import PhantomTraining, measure, train_model
from studies.phantom_study import (
    LABELS,
    PhantomStudy,
    PhantomStudySettings,
    quick_settings,
    star_note,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from medclip_debias.data.store import PreparedSet
    from medclip_debias.evaluation.label_table import Labels
    from medclip_debias.models.dual_encoder import DualEncoder

PAIRS = {
    "effusion": ("Small pleural effusion", "Large pleural effusion"),
    "pneumothorax": ("Small pneumothorax", "Large pneumothorax"),
    "cardiomegaly": ("Mild cardiomegaly", "Severe cardiomegaly"),
    "edema": ("Mild pulmonary edema", "Severe pulmonary edema"),
}
"""Finding types that come in two severities: the prompt of the lesser and of the greater."""
GREATER = ("large", "severe")
PLAIN = "weight 0"
FORMS = {
    "g1": {"g": "g1"},
    "g2": {"g": "g2"},
    "L'": {"g": "g1", "denominator": "same_class"},
}
GENERAL = ("auc", "accuracy", "fine_auc", "cnr", "recall")


class FineGrainedPhantomSettings(PhantomStudySettings):
    """Weights of ``L_g`` for g1 and for g2, and for the variant ``L'``; 0 is always there."""

    g1: tuple[float, ...] = (10.0, 100.0, 1000.0)
    g2: tuple[float, ...] = (10.0, 100.0, 1000.0)
    same_class: tuple[float, ...] = (10.0,)


class FineGrainedPhantom(PhantomStudy):
    """Does naming true negatives by their severity words teach severity?"""

    name: ClassVar[str] = "fine-grained-phantom"
    title: ClassVar[str] = "Fine-grained objective: severity of findings"
    source: ClassVar[str] = "Improved CLIP Training Objective on Fine-Grained Tasks, section 6"
    settings_class: ClassVar[type[Settings]] = FineGrainedPhantomSettings
    about: ClassVar[str] = """
InfoNCE plus `weight` times L_g, with the packaged keyword list `severity` (mild, moderate, severe
and their like) in place of the paper's cardinal numbers: a sentence that names another severity
than the image's own sentence is taken for a true negative. g1 = log(1 + x), g2 = x / (1 + x), and
L', whose denominator is the sentence's whole keyword class. Everything else is the same for all:
data (hospital-like phantom), batches, steps, learning rate. Nothing is chosen by its result.

*Severity AUC*: among the test images that have a finding in exactly one of its two severities, how
often an image of the greater one has the greater difference of similarity between the two prompts
("Large pleural effusion" minus "Small pleural effusion"; mild and severe for cardiomegaly and
edema); the mean of four findings. 0.5 is chance. The other metrics are those of `table1`.

What to keep in mind: the words are a weak key to the truth. Two thirds of the sentences name a
severity at all, and an image may have one finding mildly and another severely, so that L_g pushes
some true pairs apart. The paper's words are cardinal numbers in captions of natural images, and
its test counts objects (Datacomp-small, CLEVR-Count).
Differences from weight 0 are paired over seeds, with 95% t intervals and Holm's correction over
settings and metrics.
"""

    @classmethod
    def quick(cls) -> FineGrainedPhantomSettings:
        """One weight of each form."""
        found: FineGrainedPhantomSettings = quick_settings(
            FineGrainedPhantomSettings, g1=(10.0,), g2=(10.0,), same_class=(10.0,)
        )
        return found

    def candidates(self) -> list[Candidate]:
        """Every setting; the first is plain InfoNCE."""
        s = self.settings
        weights = zip(FORMS, (s.g1, s.g2, s.same_class), strict=True)
        return [
            Candidate(PLAIN, {"kind": "infonce"}),
            *(
                Candidate(f"{form}, weight {weight:g}", keyword_loss(form, weight))
                for form, own in weights
                for weight in own
            ),
        ]

    def cells(self) -> list[dict[str, Any]]:
        """Settings by seed, on the phantoms that the other studies use."""
        return [
            self.cell(candidate, seed, method=candidate.label)
            for seed in self.settings.seeds
            for candidate in self.candidates()
        ]

    def measure(self, cell: Cell) -> Row:
        """Train; what every study measures, and severity."""
        import torch

        torch.set_num_threads(1)
        place = PhantomFolder(self.shared_folder(cell))
        train = PhantomTraining(**cell["train"])
        with tempfile.TemporaryDirectory() as scratch:
            model, metrics = train_model(
                place, train, cell["loss"], cell["seed"], cell["aggregator"], Path(scratch)
            )
        return metrics | measure(model, place) | severity_auc(model, place)

    def summary(self, rows: Sequence[Row]) -> Summary:
        """Severity and the general metrics, and paired differences."""
        groups = by_method(rows)
        names = [f"severity_{name}" for name in PAIRS]
        shown = ["severity_auc", *names, *GENERAL]
        heads = ["severity AUC", *PAIRS, *(LABELS[m] for m in GENERAL)]
        body = [
            [str(label), *(mean_sd(_column(own, m)) for m in shown)]
            for label, own in groups.items()
        ]
        seeds = len(self.settings.seeds)
        gaps = {m: paired(groups, m) for m in ("severity_auc", *GENERAL)}
        tables = [
            Table(f"Mean (sd) over {seeds} seeds", ["", *heads], body),
            _gap_table(gaps, [str(label) for label in groups if label != PLAIN], seeds),
        ]
        return Summary(findings(groups, gaps), tables, _figures(groups, shown))

    def figure(self, rows: Sequence[Row]) -> Figure:
        """Severity and two general metrics over the weight, a line for each form; bars are sd."""
        from studies.plots import labels, line, panels

        groups = by_method(rows)
        shown = {"severity_auc": "severity AUC", "auc": "AUC", "recall": "Recall"}
        figure, axes = panels(len(shown), list(shown.values()))
        weights = [*self.settings.g1, *self.settings.g2, *self.settings.same_class]
        # A logarithmic axis has no 0: plain InfoNCE stands one step to the left.
        origin = min(weights, default=10.0) / 10
        for place, (one, metric) in enumerate(zip(axes, shown, strict=True)):
            _mark(one, origin, _column(groups[PLAIN], metric), len(FORMS), PLAIN)
            one.axhline(float(np.mean(_column(groups[PLAIN], metric))), color="#aaaaaa", lw=0.8)
            for style, form in enumerate(FORMS):
                own = {
                    float(str(label).split("weight ")[1]): _column(group, metric)
                    for label, group in groups.items()
                    if str(label).startswith(f"{form},")
                }
                # Moved aside a little, so that intervals do not lie on one another.
                x = [weight * 1.12 ** (style - 1) for weight in own]
                for at, values in zip(x, own.values(), strict=True):
                    _mark(one, at, values, style)
                line(one, x, [np.mean(v) for v in own.values()], style, form)
            one.set_xscale("log")
            ticks = [origin, *sorted(set(weights))]
            one.set_xticks(ticks, ["0", *(f"{w:g}" for w in ticks[1:])])
            one.minorticks_off()
            labels(one, "weight of L_g", shown[metric], legend=place == 0)
        return figure


def keyword_loss(form: str, weight: float) -> dict[str, Any]:
    """InfoNCE with keyword supervision by severity words."""
    return {
        "kind": "keyword",
        "core": {"kind": "infonce"},
        "weight": weight,
        "words": "severity",
        **FORMS[form],
    }


# ------------------------------------------------------------------------- the measurement


def severity_labels(data: PreparedSet, place: PhantomFolder) -> Labels:
    """Of each type in `PAIRS` and each test image: 1 the greater severity, 0 the lesser one.

    NaN where the image does not have the finding, or has it in both severities (on two sides).
    """
    import pandas as pd

    from medclip_debias.evaluation.label_table import Labels
    from medclip_debias.evaluation.protocol import rows_of_split
    from medclip_debias.phantom.catalogue import CLASSES

    rows = rows_of_split(data, "test")
    table = pd.read_parquet(place.truth / "images.parquet").set_index("dicom_id")
    shown = table.loc[[str(name) for name in data.images["image_id"].iloc[rows]]]
    values = {}
    for name in PAIRS:
        sides = [
            [c.name for c in CLASSES if c.type == name and (c.severity in GREATER) == greater]
            for greater in (False, True)
        ]
        lesser, greater = (shown[side].to_numpy(dtype=bool).any(axis=1) for side in sides)
        values[name] = np.where(lesser == greater, np.nan, greater.astype(np.float64))
    return Labels(rows, values, {"labels": "the phantom's truth"})


def severity_auc(model: DualEncoder, place: PhantomFolder) -> dict[str, float]:
    """``severity_TYPE`` for each type in `PAIRS`, and their mean ``severity_auc``.

    A type of which the test split lacks one severity counts as 0.5: they cannot be distinguished.
    """
    from medclip_debias.data.labels import LabelPolicy
    from medclip_debias.data.prompts import load_prompts
    from medclip_debias.data.store import PreparedSet
    from medclip_debias.evaluation.encoding import Network, encode
    from medclip_debias.evaluation.protocol import Draw
    from medclip_debias.evaluation.protocols.zero_shot import ZeroShot

    data = PreparedSet.open(place.prepared)
    sides = {n: {"positive": [b], "negative": [a]} for n, (a, b) in PAIRS.items()}
    prompts = load_prompts({"name": "severity", "classes": sides})
    protocol = ZeroShot(
        data, severity_labels(data, place), prompts, LabelPolicy(), validation="not chosen here"
    )
    encode(model, Network(model, data), [protocol], batch_size=64)
    found = protocol.measure(Draw(0)).by_class("auc")
    each = {name: found.get(name, 0.5) for name in PAIRS}
    result = {f"severity_{name}": value for name, value in each.items()}
    return {"severity_auc": float(np.mean(list(each.values()))), **result}


# --------------------------------------------------------------------------- what is said

Gap = tuple[float, tuple[float, float], float]


def paired(groups: Mapping[Any, Mapping[int, Row]], metric: str) -> dict[str, Gap]:
    """Difference to weight 0 of each setting: value, 95% interval, Holm's p."""
    from studies.phantom_study import differences

    found = differences(groups, PLAIN, metric, ("severity_auc", *GENERAL))
    return {str(name): gap for name, gap in found.items()}


def _column(own: Mapping[int, Row], metric: str) -> list[float]:
    return [float(own[seed][metric]) for seed in sorted(own)]


def findings(
    groups: Mapping[Any, Mapping[int, Row]], gaps: Mapping[str, Mapping[str, Gap]]
) -> list[str]:
    """Sentences about severity first, then about what it costs."""
    plain = float(np.mean(_column(groups[PLAIN], "severity_auc")))
    said = [f"Without L_g the two severities of a finding are distinguished with AUC {plain:.3f}."]
    found = gaps["severity_auc"]
    if not found:
        return [*said, "Too few seeds to say what L_g changes."]
    for name, (value, interval, p) in found.items():
        judged = "no statistically significant difference"
        if p < 0.05 and value != 0:
            judged = "better" if value > 0 else "worse"
        costs = [f"{LABELS[m]} {gaps[m][name][0]:+.3f}" for m in GENERAL if gaps[m][name][2] < 0.05]
        other = ", ".join(costs) or "no statistically significant change"
        said.append(
            f"{name}: severity AUC {with_interval(value, interval)}, {judged}; "
            f"other metrics: {other}."
        )
    better = [name for name, (value, _, p) in found.items() if p < 0.05 and value > 0]
    said.append(
        (
            f"{len(better)} of {len(found)} settings tell severity apart better than plain InfoNCE"
            if better
            else "No setting is shown to tell severity apart better than plain InfoNCE"
        )
        + ". The paper finds that L_g counts better than CLIP, g2 less so than g1 but more stably "
        "at weight 1000, and L' better than CLIP but less so than L_g."
    )
    return said


def _gap_table(gaps: Mapping[str, Mapping[str, Gap]], names: Sequence[str], seeds: int) -> Table:
    body = []
    for name in names:
        cells = []
        for metric in gaps:
            if name not in gaps[metric]:
                cells.append("")
                continue
            value, interval, p = gaps[metric][name]
            cells.append(with_interval(value, interval) + (" *" if p < 0.05 else ""))
        body.append([name, *cells])
    heads = ["severity AUC" if m == "severity_auc" else LABELS[m] for m in gaps]
    title = "Difference to weight 0; a star where Holm's p < .05" + star_note(gaps, seeds)
    return Table(title, ["", *heads], body)


def _figures(groups: Mapping[Any, Mapping[int, Row]], shown: Sequence[str]) -> dict[str, Any]:
    return {
        str(label): {metric: float(np.mean(_column(own, metric))) for metric in shown}
        for label, own in groups.items()
    }


def _mark(axes: Any, x: float, values: Sequence[float], style: int, label: str = "") -> None:
    """Mean and one standard deviation over seeds."""
    from studies.plots import STYLES

    colour, marker, _ = STYLES[style]
    spread = float(np.std(values, ddof=1)) if len(values) > 1 else 0.0
    middle = float(np.mean(values))
    more = {"label": label, "marker": marker, "markersize": 4} if label else {}
    axes.errorbar([x], [middle], yerr=[spread], color=colour, linewidth=1, capsize=2, **more)
