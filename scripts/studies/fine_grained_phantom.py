"""Keyword supervision for the severity of the phantom's findings (section 6 of its paper)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from medclip_debias.evaluation.catalogue import Metric
from medclip_debias.experiments.differences import SeedTables, by_method
from medclip_debias.experiments.experiment import Row, Table
from studies.phantom import (
    METRICS,
    PhantomFolder,
    PhantomStudy,
    measure,
    measured,
    truth_of,
    zero_shot,
)

if TYPE_CHECKING:
    from medclip_debias.models.dual_encoder import DualEncoder

PAIRS = {
    "effusion": ("Small pleural effusion", "Large pleural effusion"),
    "pneumothorax": ("Small pneumothorax", "Large pneumothorax"),
    "cardiomegaly": ("Mild cardiomegaly", "Severe cardiomegaly"),
    "edema": ("Mild pulmonary edema", "Severe pulmonary edema"),
}
"""Finding types that come in two severities: the prompt of the lesser and of the greater."""
PLAIN = "weight 0"
FORMS = {"g1": {"g": "g1"}, "g2": {"g": "g2"}, "L'": {"g": "g1", "denominator": "same_class"}}
SHOWN = {"severity_auc": Metric("", "severity_auc", "severity AUC", "", "share")} | {
    name: replace(METRICS[name], digits=3)
    for name in ("auc", "accuracy", "fine_auc", "cnr", "recall")
}


class FineGrainedPhantom(PhantomStudy):
    """Does naming true negatives by their severity words teach severity?"""

    name: ClassVar[str] = "fine-grained-phantom"

    def cells(self) -> list[dict[str, Any]]:
        """Settings by seed, on the phantoms that the other studies use."""
        s = self.settings
        arms: dict[str, Any] = {PLAIN: {"kind": "infonce"}}
        for form, how in FORMS.items():
            for weight in s.weights[form]:
                loss = {"kind": "keyword", "core": {"kind": "infonce"}, "words": "severity"}
                arms[f"{form}, weight {weight:g}"] = loss | {"weight": weight, **how}
        return [
            self.cell(loss, seed, method=name, candidate=name)
            for seed in s.seeds
            for name, loss in arms.items()
        ]

    def metrics(self, model: DualEncoder, place: PhantomFolder) -> Row:
        """What every study measures, and severity."""
        return measure(model, place) | severity_auc(model, place)

    def tables(self, rows: Sequence[Row]) -> list[Table]:
        """Severity and the general metrics, and paired differences; one family."""
        groups = by_method(rows)
        each = {
            f"severity_{name}": Metric("", f"severity_{name}", name, "", "share") for name in PAIRS
        }
        general = {name: metric for name, metric in SHOWN.items() if name != "severity_auc"}
        every = SeedTables({"severity_auc": SHOWN["severity_auc"], **each, **general})
        means = every.means(f"Mean (sd) over {len(groups[PLAIN])} seeds", groups)
        body = [list(row)[:-1] for row in means.rows]  # a rank over such metrics says little
        differences = SeedTables(SHOWN).difference_table("Difference", groups, PLAIN)
        return [Table(means.title, list(means.columns)[:-1], body), differences]


def severity_auc(model: DualEncoder, place: PhantomFolder) -> dict[str, float]:
    """``severity_TYPE`` for each type in `PAIRS`, and their mean ``severity_auc``.

    Among the test images that have a finding in exactly one of its severities: how often an image
    of the greater one has the greater difference of similarity between the two prompts. A type of
    which the split lacks one severity counts as 0.5: they cannot be distinguished.
    """
    from medclip_debias.data.prompts import load_prompts
    from medclip_debias.evaluation.label_table import Labels
    from medclip_debias.evaluation.protocol import rows_of_split
    from medclip_debias.phantom.catalogue import CLASSES

    data = place.open()
    rows = rows_of_split(data, "test")
    shown, values = truth_of(place, data, rows), {}
    for name in PAIRS:
        forms = [c for c in CLASSES if c.type == name]
        lesser, greater = (
            shown[[c.name for c in forms if (c.severity in ("large", "severe")) == side]]
            .to_numpy(dtype=bool)
            .any(axis=1)
            for side in (False, True)
        )
        values[name] = np.where(lesser == greater, np.nan, greater.astype(np.float64))
    sides = {n: {"positive": [b], "negative": [a]} for n, (a, b) in PAIRS.items()}
    prompts = load_prompts({"name": "severity", "classes": sides})
    labels = Labels(rows, values, {"labels": "the phantom's truth"})
    (found,) = measured(model, data, [zero_shot(model, data, labels, prompts)])
    aucs = found.by_class("auc")
    each = {name: aucs.get(name, 0.5) for name in PAIRS}
    named = {f"severity_{name}": value for name, value in each.items()}
    return {"severity_auc": float(np.mean(list(each.values()))), **named}
