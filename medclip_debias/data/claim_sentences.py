"""Sentences that other reports say, for the studies of a batch that agree with them by claims.

Of what most reports say a batch has many sentences, of a rare finding mostly none, and of one that
an image has seldom the denial beside it. `ClaimSentences` adds, of each finding that some study of
a batch has, sentences that say it and nothing else, and sentences that deny it, so that every
batch holds what zero-shot classification asks.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from medclip_debias.data.text.evidence import Evidence

Ints = NDArray[np.integer[Any]]


class ClaimSentences:
    """Further sentences of a batch, each given to one study that agrees with it for certain.

    Args:
        evidence: what reports and sentences claim.
        studies: number in ``evidence`` of each training study.
        sentences: number in ``evidence`` of each training sentence.
        each: sentences of a finding, and of its absence, in a batch.
    """

    def __init__(self, evidence: Evidence, studies: Ints, sentences: Ints, each: int) -> None:
        self._evidence, self._studies, self.each = evidence, studies, each
        found = evidence.single_claims(sentences)
        said = found.groupby("claim")["sentence"].apply(np.array)
        self._claims, self._said = said.index.to_numpy(), list(said)
        kinds = found.drop_duplicates("claim").set_index("claim").loc[self._claims]
        finding, present = kinds["finding"].to_numpy(), kinds["present"].to_numpy(dtype=bool)
        self._findings = [
            tuple(np.flatnonzero((finding == number) & (present == said)) for said in (True, False))
            for number in np.unique(finding[present])
        ]

    def draw(self, members: Ints, rng: np.random.Generator) -> tuple[Ints, Ints]:
        """Draw the sentences of one batch.

        Args:
            members: numbers of its studies, ``[B]``.
            rng: random numbers.

        Returns:
            Numbers of sentences and, for each, the place of its study in ``members``; of what all
            studies agree with, nothing.
        """
        true = self._evidence.stated(self._studies[members], 0)[:, self._claims] > 0
        texts: list[int] = []
        places: list[int] = []
        for present, absent in self._findings:
            if not true[:, present].any():
                continue
            for claims in (present, absent):
                agreeing = true[:, claims]
                (studies,) = np.nonzero(agreeing.any(axis=1))
                for _ in range(self.each if 0 < len(studies) < len(members) else 0):
                    study = rng.choice(studies)
                    claim = claims[rng.choice(np.flatnonzero(agreeing[study]))]
                    texts.append(rng.choice(self._said[claim]))
                    places.append(study)
        return np.array(texts, dtype=np.int64), np.array(places, dtype=np.int64)
