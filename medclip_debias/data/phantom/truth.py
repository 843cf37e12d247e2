"""What a sentence states, and whether an image agrees with it."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache

import numpy as np

from medclip_debias.data.phantom.catalogue import CLASS_NAMES, CLASSES


@dataclass(frozen=True, slots=True)
class Clause:
    """One finding stated present or absent; a side, zone or severity left out means any.

    ``hedged`` marks "possible ..."; its truth is that of the plain clause. ``label`` is the
    CheXpert column that a labeller would tick for the noun used (None: no column).
    """

    finding: str
    present: bool
    side: str | None = None
    zone: str | None = None
    severity: str | None = None
    hedged: bool = False
    label: str | None = None

    def matches(self) -> np.ndarray:
        """Which classes this clause speaks about: bool over all classes."""
        return np.array(
            [
                c.type == self.finding
                and self.side in (None, c.side)
                and self.zone in (None, c.zone)
                and self.severity in (None, c.severity)
                for c in CLASSES
            ]
        )


@dataclass(frozen=True, slots=True)
class Statement:
    """All that one sentence says: it is true when every clause is (boilerplate has none).

    ``kind`` is ``positive``, ``hedged``, ``compound``, ``negative``, ``combined``, ``mixed``
    or ``boilerplate``.
    """

    kind: str
    clauses: tuple[Clause, ...] = ()

    @property
    def polarity(self) -> str:
        """``positive``, ``negative``, ``mixed`` or ``none`` (boilerplate)."""
        present = {clause.present for clause in self.clauses}
        if not present:
            return "none"
        if len(present) == 2:
            return "mixed"
        return "positive" if present == {True} else "negative"

    def classes(self) -> list[str]:
        """Names of the classes that the statement speaks about."""
        spoken = np.zeros(len(CLASSES), dtype=bool)
        for clause in self.clauses:
            spoken |= clause.matches()
        return [CLASS_NAMES[i] for i in np.flatnonzero(spoken)]

    def to_json(self) -> str:
        """Text that `statement_from_json` reads back, the same for equal statements."""
        return json.dumps(
            {"kind": self.kind, "clauses": [asdict(c) for c in self.clauses]}, sort_keys=True
        )


def statement_from_json(text: str) -> Statement:
    """Read the ``statement`` column of ``truth/sentences.parquet``."""
    content = json.loads(text)
    return Statement(content["kind"], tuple(Clause(**c) for c in content["clauses"]))


def agrees(statement: Statement, findings: Collection[str]) -> bool:
    """Whether an image with exactly these finding classes agrees with the statement.

    >>> small = Statement("positive", (Clause("effusion", True, side="left"),))
    >>> agrees(small, ["effusion_left_small"]), agrees(small, ["effusion_right_small"])
    (True, False)
    """
    vector = np.isin(np.array(CLASS_NAMES), list(findings))
    return bool(agreement_matrix([statement], vector[None])[0, 0])


def agreement_matrix(statements: Sequence[Statement], findings: np.ndarray) -> np.ndarray:
    """Agreement of every statement with every image.

    Args:
        statements: T statements.
        findings: bool ``[n, classes]``, columns in the order of ``CLASS_NAMES``.

    Returns:
        bool ``[T, n]``.
    """
    findings = np.asarray(findings, dtype=bool)
    result = np.ones((len(statements), len(findings)), dtype=bool)
    for row, statement in enumerate(statements):
        for clause in statement.clauses:
            result[row] &= findings[:, _matches(clause)].any(axis=1) == clause.present
    return result


def eta_true(statements: Iterable[Statement], findings: np.ndarray) -> dict[Statement, float]:
    """Share of the images (rows of ``findings``) that agree with each distinct statement."""
    distinct = list(dict.fromkeys(statements))
    return {s: float(agreement_matrix([s], findings).mean()) for s in distinct}


@lru_cache(maxsize=4096)
def _matches(clause: Clause) -> np.ndarray:
    return clause.matches()
