"""What a sentence states, whether an image agrees with it, and the tables that say so."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from medclip_debias.errors import UserError, explained
from medclip_debias.parquet import read_parquet
from medclip_debias.phantom.catalogue import CLASS_NAMES, CLASSES

if TYPE_CHECKING:
    from medclip_debias.data.store import PreparedSet


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


_MATCHES = lru_cache(maxsize=4096)(Clause.matches)


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
        matches = np.array([clause.matches() for clause in self.clauses]).reshape(-1, len(CLASSES))
        return [CLASS_NAMES[i] for i in np.flatnonzero(matches.any(axis=0))]

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
            result[row] &= findings[:, _MATCHES(clause)].any(axis=1) == clause.present
    return result


def eta_true(statements: Iterable[Statement], findings: np.ndarray) -> dict[Statement, float]:
    """Share of the images (rows of ``findings``) that agree with each distinct statement."""
    distinct = list(dict.fromkeys(statements))
    return {s: float(agreement_matrix([s], findings).mean()) for s in distinct}


# ------------------------------------------------------------------------------ the tables


class Truth:
    """The phantom's tables: what every sentence states and every image shows."""

    def __init__(self, folder: Path) -> None:
        place = folder / "truth" if (folder / "truth").is_dir() else folder
        self._folder = place
        with explained(f"{folder}: holds no truth of a phantom (truth/*.parquet)", Exception):
            images = read_parquet(place / "images.parquet")
            sentences = read_parquet(place / "sentences.parquet")
            self._findings = images.set_index("dicom_id")[list(CLASS_NAMES)].astype(bool)
            distinct = sentences.drop_duplicates("text")
            self._statements = dict(zip(distinct["text"], distinct["statement"], strict=True))
            self._eta = dict(zip(distinct["text"], distinct["eta_true"], strict=True))

    def knows(self, text: str) -> bool:
        """Whether the truth of this sentence is known."""
        return text in self._statements

    def eta(self, texts: list[str]) -> NDArray[np.float64]:
        """True class probability of each sentence."""
        return np.array([self._eta[text] for text in texts], dtype=np.float64)

    def agreement(self, texts: list[str], images: list[str]) -> NDArray[np.bool_]:
        """Whether each image agrees with each sentence: ``[texts, images]``."""
        missing = [name for name in images if name not in self._findings.index]
        if missing:
            raise UserError(
                f"{len(missing)} of {len(images)} images are not in the phantom's truth tables; "
                "give the truth of the phantom that the set was prepared from."
            )
        shown = self._findings.loc[images].to_numpy()
        written = [self._statements[text] for text in texts]
        damaged = f"{self._folder}: a sentence's statement is damaged; write the phantom again"
        with explained(damaged, ValueError, TypeError, KeyError):
            statements = [statement_from_json(text) for text in written]
        return np.asarray(agreement_matrix(statements, shown))


def write_truth(truth: Truth, prepared: PreparedSet, path: Path) -> None:
    """Write which training studies agree with which of their sentences, for ``remove_known``."""
    from medclip_debias.data.agreement import write_agreement

    images = prepared.images[prepared.images["split"] == "train"].drop_duplicates("study_id")
    sentences = prepared.sentences
    trained = sentences["study_id"].isin(images["study_id"])
    texts = list(dict.fromkeys(sentences["text"][trained]))
    unknown = sum(not truth.knows(text) for text in texts)
    if unknown:
        raise UserError(f"{unknown} of {len(texts)} sentences are not of this phantom.")
    agree = truth.agreement(texts, [str(name) for name in images["image_id"]])
    write_agreement(path, texts, [str(name) for name in images["study_id"]], agree)
