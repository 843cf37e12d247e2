"""CheXpert labels of a study: what it shows, and what a labeller would read from its report."""

from __future__ import annotations

from collections.abc import Iterable

from medclip_debias.data.labels import CHEXPERT_LABELS
from medclip_debias.phantom.catalogue import CLASSES, TRUE_LABELS
from medclip_debias.phantom.truth import Statement


def report_labels(statements: Iterable[Statement]) -> dict[str, int]:
    """Labels that a rule-based labeller would read from a report's statements.

    1 wins over -1 (hedged) wins over 0; what is not mentioned has no key. ``No Finding`` is 1
    when nothing but devices is present or possible.
    """
    rank = {0: 0, -1: 1, 1: 2}
    labels: dict[str, int] = {}
    other = False
    for statement in statements:
        for clause in statement.clauses:
            value = (-1 if clause.hedged else 1) if clause.present else 0
            if clause.label is None:
                other = other or clause.present
                continue
            if clause.label not in labels or rank[value] > rank[labels[clause.label]]:
                labels[clause.label] = value
    disease = {k: v for k, v in labels.items() if k != "Support Devices"}
    if not other and all(v == 0 for v in disease.values()):
        labels["No Finding"] = 1
    return labels


def true_labels(findings: Iterable[int]) -> dict[str, int]:
    """Every CheXpert label of a study with these classes (by index): 1 or 0."""
    kinds = {CLASSES[i].type for i in findings}
    labels = {name for kind in kinds for name in TRUE_LABELS[kind]}
    if not labels - {"Support Devices"} and not kinds & {"hernia", "scoliosis"}:
        labels.add("No Finding")
    return {name: int(name in labels) for name in CHEXPERT_LABELS}
