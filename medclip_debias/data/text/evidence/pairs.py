"""Pair evidence: does this study's report agree with that sentence (docs/claims.md)?"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from medclip_debias.data.layout import STATED, TEMPLATE
from medclip_debias.data.store import PreparedSet
from medclip_debias.data.text.claims.claim import Claim
from medclip_debias.data.text.claims.lexicon import Lexicon
from medclip_debias.data.text.claims.table import read_claims
from medclip_debias.data.text.evidence.states import (
    Ints,
    Verdicts,
    all_verdicts,
    number_atoms,
    spread,
    study_states,
)
from medclip_debias.errors import UserError, did_you_mean

ALWAYS = 0.5
"""Share of the training reports that must mention a finding for it to be always mentioned."""
UNCERTAIN = 0.5
"""Confidence of a verdict that rests on an uncertain claim."""


class Evidence:
    """What the claims of all reports say of all sentences; use `Evidence.open`.

    Studies and sentences are named by numbers: the row in ``PreparedSet.studies`` and the place in
    ``PreparedSet.texts``.

    Args:
        claims: of each of T sentences.
        study: study of each occurrence of a sentence, ``[N]`` in 0..S-1.
        sentence: its sentence, ``[N]`` in 0..T-1.
        studies: S.
        lexicon: of the claims.
        always: share of the reports that must mention a finding for "not mentioned" to mean
            absent, or the names of such findings.
        counted: the studies over which that share is taken, bool ``[S]``; those with a sentence
            among them. All by default.
        listed: studies whose sentences say labels, not a report, bool ``[S]``: what they do not
            mention is unknown, whatever readers always mention. None by default.
    """

    def __init__(
        self,
        claims: Sequence[Sequence[Claim]],
        study: Ints,
        sentence: Ints,
        studies: int,
        lexicon: Lexicon,
        always: float | Sequence[str] = ALWAYS,
        counted: NDArray[np.bool_] | None = None,
        listed: NDArray[np.bool_] | None = None,
    ) -> None:
        order = np.argsort(study, kind="stable")
        study, sentence = np.asarray(study)[order], np.asarray(sentence)[order]
        self.lexicon = lexicon
        self._atoms = number_atoms(claims, lexicon)
        listed = np.zeros(studies, dtype=bool) if listed is None else listed
        states = study_states(self._atoms, study, sentence, studies, lexicon)
        self._states = states.with_open(listed)
        reported = np.zeros(studies, dtype=bool)
        reported[study] = True
        reported &= ~listed
        shares = states.mentioned(reported if counted is None else reported & counted)
        self.mentioned = dict(zip(lexicon.names, shares.tolist(), strict=True))
        self.always = _always(always, self.mentioned)
        self._rule = always
        self._closed = np.array([name in self.always for name in lexicon.names])
        self._sure = all_verdicts(self._atoms, self._states, self._closed)
        clash = self._conflicts(study, sentence)
        self.conflicts = int(clash.sum())
        self.conflicting_studies = len(np.unique(study[clash]))
        # A report agrees with its own sentences, but for those that it contradicts itself.
        kept_study, kept_sentence = study[~clash], sentence[~clash]
        self._own_start = np.searchsorted(kept_study, np.arange(studies + 1))
        self._own = kept_sentence
        self._counts = {"studies": studies, "sentences": len(claims)}
        self._silent = sum(not claims_of_text for claims_of_text in claims)

    @classmethod
    def open(cls, prepared: PreparedSet | Path, always: float | Sequence[str] = ALWAYS) -> Evidence:
        """Read the claims of a prepared set.

        The share of reports that mention a finding is taken over the training studies.
        """
        if not isinstance(prepared, PreparedSet):
            prepared = PreparedSet.open(prepared)
        table = read_claims(prepared)
        ids = pd.Index(prepared.studies["study_id"])
        study = ids.get_indexer(pd.Index(prepared.sentences["study_id"]))
        sentence = pd.Index(prepared.texts).get_indexer(pd.Index(prepared.sentences["text"]))
        train = (prepared.studies["split"] == "train").to_numpy()
        labels_say = prepared.sentences["section"].isin((TEMPLATE, STATED)).to_numpy()
        listed = np.zeros(len(ids), dtype=bool)
        listed[study[labels_say]] = True
        return cls(table.claims, study, sentence, len(ids), table.lexicon, always, train, listed)

    def pairs(self, studies: Ints, sentences: Ints) -> NDArray[np.int8]:
        """Evidence of each pair: 1 the report agrees, -1 it contradicts, 0 unknown.

        A report agrees with its own sentences, but for those that it contradicts elsewhere
        (unknown). A sentence of several claims agrees if all do, and contradicts if one does.

        Returns:
            ``[B, T]``.
        """
        return self._pairs(np.asarray(studies), np.asarray(sentences), self._sure)

    def graded(
        self, studies: Ints, sentences: Ints, uncertain: float = UNCERTAIN
    ) -> tuple[NDArray[np.int8], NDArray[np.float32]]:
        """Evidence with a confidence, uncertain claims included.

        Args:
            studies: numbers of B studies.
            sentences: numbers of T sentences.
            uncertain: confidence of a verdict that rests on an uncertain claim, 0..1.

        Returns:
            Evidence as `pairs`; where it is unknown, what it would be if each claim that the
            certain claims of the report leave open were judged by its uncertain ones, too; and its
            confidence in 0..1: 1 where `pairs` decides, ``uncertain`` where only the uncertain
            claims do, 0 where neither does. Both ``[B, T]``.
        """
        studies, sentences = np.asarray(studies), np.asarray(sentences)
        sure = self._pairs(studies, sentences, self._sure)
        perhaps = self._pairs(studies, sentences, self._unsure, before=self._sure)
        value = np.where(sure != 0, sure, perhaps)
        confidence = np.where(sure != 0, 1.0, np.where(perhaps != 0, uncertain, 0.0))
        return value, confidence.astype(np.float32)

    def stated(self, studies: Ints, uncertain: float = UNCERTAIN) -> NDArray[np.int8]:
        """What each study states about every distinct claim, in hundredths.

        With `claim_numbers` it decides pairs claim by claim: the least over a sentence's claims
        is the evidence of `graded` (`medclip_debias.losses.evidence.claims`), but for the rule
        that a report agrees with its own sentences.

        Args:
            studies: numbers of B studies.
            uncertain: confidence of a verdict that rests on an uncertain claim, 0..1.

        Returns:
            ``[B, P]`` for P claims: 100 certainly true, -100 certainly false, 0 unknown.
        """
        atoms = np.arange(len(self._atoms.asked))
        studies = np.asarray(studies)
        sure = 100 * self._look_up(self._sure, studies, atoms)
        if uncertain:
            weight = round(100 * uncertain)
            perhaps = weight * self._look_up(self._unsure, studies, atoms)
            sure = np.where(sure != 0, sure, perhaps)
        return np.asarray(sure, dtype=np.int8)

    def claim_numbers(self, sentences: Ints) -> NDArray[np.int32]:
        """Claims of T sentences: ``[T, L]`` column of `stated` plus 1, 0 for none."""
        start = self._atoms.start[np.asarray(sentences)]
        rows, places = spread(self._atoms.start, np.asarray(sentences))
        columns, atoms = places - start[rows], self._atoms.of[places]
        silent = (atoms == 0) & (np.bincount(rows) == 1)[rows]
        result = np.zeros((len(start), int(columns.max(initial=0)) + 1), dtype=np.int32)
        result[rows, columns] = np.where(silent, 0, atoms + 1)
        return result

    def meta(self) -> dict[str, Any]:
        """What the evidence rests on, for the record of a run."""
        tables = self._sure.flat.nbytes + self._sure.conflict.nbytes
        return {
            **self._counts,
            "sentences_without_claims": self._silent,
            "distinct_claims": len(self._atoms.asked) - 1,
            "states": sum(len(known) for known in self._states.known),
            "bytes": int(self._states.of.nbytes + tables + self._atoms.of.nbytes)
            + int(self._atoms.start.nbytes + self._own.nbytes + self._own_start.nbytes),
            "always_mentioned": {name: round(self.mentioned[name], 4) for name in self.always},
            "always_rule": self._rule if isinstance(self._rule, float | int) else "given",
            "own_sentences_contradicted": self.conflicts,
            "reports_that_contradict_themselves": self.conflicting_studies,
        }

    @cached_property
    def _unsure(self) -> Verdicts:
        return all_verdicts(self._atoms, self._states, self._closed, sure=False)

    def _pairs(
        self, studies: Ints, sentences: Ints, verdicts: Verdicts, before: Verdicts | None = None
    ) -> NDArray[np.int8]:
        """The least over a sentence's claims, each judged by ``before`` where that decides it."""
        if not len(studies) or not len(sentences):
            return np.zeros((len(studies), len(sentences)), dtype=np.int8)
        distinct, back = np.unique(sentences, return_inverse=True)
        owners, places = spread(self._atoms.start, distinct)
        atoms, where = np.unique(self._atoms.of[places], return_inverse=True)
        verdict = self._look_up(verdicts, studies, atoms)
        if before is not None:
            decided = self._look_up(before, studies, atoms)
            verdict = np.where(decided != 0, decided, verdict)
        cuts = np.searchsorted(owners, np.arange(len(distinct)))
        result = np.minimum.reduceat(verdict[:, where], cuts, axis=1)
        rows, places = spread(self._own_start, studies)
        own = self._own[places]
        columns = np.minimum(np.searchsorted(distinct, own), len(distinct) - 1)
        hit = distinct[columns] == own
        result[rows[hit], columns[hit]] = 1  # a report agrees with its own sentences
        return np.asarray(result[:, back], dtype=np.int8)

    def _look_up(self, verdicts: Verdicts, studies: Ints, asked: Ints) -> NDArray[np.int8]:
        """Verdicts of each study on each atom."""
        states = self._states.of[studies][:, self._atoms.finding[asked]]
        return verdicts.flat[verdicts.places(self._atoms.finding[asked], states, asked)]

    def _conflicts(self, study: Ints, sentence: Ints) -> NDArray[np.bool_]:
        """Which occurrences hold a claim that the same report also contradicts."""
        result = np.zeros(len(study), dtype=bool)
        for begin in range(0, len(study), 1 << 18):
            part = slice(begin, begin + (1 << 18))
            owners, places = spread(self._atoms.start, sentence[part])
            atoms = self._atoms.of[places]
            finding = self._atoms.finding[atoms]
            states = self._states.of[study[part][owners], finding]
            at = self._sure.places(finding, states, atoms)
            cuts = np.searchsorted(owners, np.arange(len(study[part])))
            result[part] = np.logical_or.reduceat(self._sure.conflict[at], cuts)
        return result


def _always(rule: float | Sequence[str], mentioned: dict[str, float]) -> tuple[str, ...]:
    if isinstance(rule, float | int):
        if not 0 < rule <= 1:
            raise UserError(f"always is {rule}; give a share above 0 and at most 1, or findings.")
        return tuple(name for name, share in mentioned.items() if share >= rule)
    for name in rule:
        if name not in mentioned:
            raise UserError(
                f"always names '{name}', which is not a finding of the lexicon"
                f"{did_you_mean(name, mentioned)}."
            )
    return tuple(dict.fromkeys(rule))
