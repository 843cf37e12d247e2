"""What each study says of each finding, as the number of a state that many studies share.

A dense table of studies and sentences is never made: 377,000 x 400,000 would be 140 GiB. A report
says of one finding what thousands of others say, so a study is a row of small numbers, one a
finding, and a verdict is looked up by finding, state and claim.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from medclip_debias.data.text.claims.claim import Claim
from medclip_debias.data.text.claims.lexicon import Lexicon
from medclip_debias.data.text.evidence.entail import Said, implied, judge, said

Ints = NDArray[np.integer[Any]]
_CHUNK = 1 << 16
"""Studies whose claims are gathered at a time."""


def spread(start: Ints, keys: Ints) -> tuple[Ints, Ints]:
    """Return the places of the elements of some lists, and which of ``keys`` each is of."""
    counts = start[keys + 1] - start[keys]
    owners = np.repeat(np.arange(len(keys)), counts)
    within = np.arange(len(owners)) - np.repeat(np.cumsum(counts) - counts, counts)
    return owners, start[keys][owners] + within


def starts_of(counts: Ints) -> Ints:
    """Return where lists of these lengths begin, and the end of the last one."""
    return np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)


@dataclass(frozen=True)
class Atoms:
    """The distinct claims of the sentences; an atom is what one claim, or several, ask of an image.

    Number 0 of both is what nobody can judge, as is a sentence without claims.

    Attributes:
        start: where each sentence's claims begin in ``claim`` and ``of``; ``[sentences + 1]``.
        claim: numbers in ``distinct`` of the claims, sentence by sentence.
        of: numbers of their atoms.
        distinct: the distinct claims.
        finding: of each atom, an index into the lexicon's names.
        asked: what each atom says.
    """

    start: Ints
    claim: Ints
    of: Ints
    distinct: list[Claim | None]
    finding: Ints
    asked: list[Said | None]


def number_atoms(claims: Sequence[Sequence[Claim]], lexicon: Lexicon) -> Atoms:
    index = {name: number for number, name in enumerate(lexicon.names)}
    start = starts_of(np.array([max(len(sentence), 1) for sentence in claims], dtype=np.int64))
    distinct: dict[Claim | None, int] = {None: 0}
    every = (claim for sentence in claims for claim in (sentence or (None,)))
    numbers = (distinct.setdefault(claim, len(distinct)) for claim in every)
    claim_of = np.fromiter(numbers, np.int32, int(start[-1]))
    atoms: dict[tuple[int, Said] | None, int] = {None: 0}
    of_claim = []
    for claim in distinct:
        asked = None if claim is None else said(claim)
        key = None if claim is None or asked is None else (index[claim.finding], asked)
        of_claim.append(atoms.setdefault(key, len(atoms)))
    finding = np.array([key[0] if key else 0 for key in atoms], dtype=np.int32)
    asked_of = [key[1] if key else None for key in atoms]
    of = np.array(of_claim, dtype=np.int32)[claim_of]
    return Atoms(start, claim_of, of, [*distinct], finding, asked_of)


@dataclass(frozen=True)
class States:
    """What the studies say of the findings.

    Attributes:
        of: number of each study's state, ``[studies, findings]``; 0 is "not mentioned".
        known: what each state says, by finding and number; None says nothing, not even by silence.
    """

    of: Ints
    known: list[list[frozenset[Said] | None]]

    def with_open(self, studies: NDArray[np.bool_]) -> States:
        """The same, but that nothing follows from what some studies (bool) do not mention."""
        if not studies.any():
            return self
        of = self.of.astype(np.uint32)
        numbers = np.array([len(known) for known in self.known], dtype=np.uint32)
        of[studies] = np.where(of[studies] == 0, numbers, of[studies])
        return States(of, [[*known, None] for known in self.known])

    def mentioned(self, studies: NDArray[np.bool_]) -> NDArray[np.float64]:
        """Share of some studies that mention each finding, present or absent, sure or not."""
        if not studies.any():
            return np.zeros(self.of.shape[1])
        return np.asarray((self.of[studies] != 0).mean(axis=0), dtype=np.float64)


def study_states(
    atoms: Atoms, study: Ints, sentence: Ints, studies: int, lexicon: Lexicon
) -> States:
    """Gather what each study says."""
    index = {name: number for number, name in enumerate(lexicon.names)}
    said_by = [
        sorted({(index[f], s) for f, s in implied(claim, lexicon)}) if claim else []
        for claim in atoms.distinct
    ]
    items = sorted({item for pairs in said_by for item in pairs})
    number = {item: n for n, item in enumerate(items)}
    item_start = starts_of(np.array(list(map(len, said_by)), dtype=np.int64))
    item_of = np.array([number[item] for pairs in said_by for item in pairs], dtype=np.int64)
    finding_of = np.array([finding for finding, _ in items], dtype=np.int64)
    # A state is named by the sum of random numbers of what it says: equal sums, equal sets.
    names = np.random.default_rng(20).integers(0, 1 << 63, len(items), dtype=np.uint64)
    numbers: list[dict[int, int]] = [{} for _ in lexicon.names]
    known: list[list[frozenset[Said] | None]] = [[frozenset()] for _ in lexicon.names]
    of = np.zeros((studies, len(lexicon.names)), dtype=np.uint32)
    bounds = np.searchsorted(study, np.arange(0, studies + _CHUNK, _CHUNK))
    for first, last in pairwise(bounds):
        occurrences, places = spread(atoms.start, sentence[first:last])
        claims, items_at = spread(item_start, atoms.claim[places])
        rows, said_items = study[first:last][occurrences[claims]], item_of[items_at]
        if not len(rows):
            continue
        pairs = np.unique(rows.astype(np.int64) * len(items) + said_items)
        rows, said_items = pairs // len(items), pairs % len(items)
        group = rows * len(lexicon.names) + finding_of[said_items]
        starts = np.flatnonzero(np.diff(group, prepend=-1))
        ends = np.append(starts[1:], len(group))
        sums = np.add.reduceat(names[said_items], starts)
        _, where, which = np.unique(sums, return_index=True, return_inverse=True)
        states = np.empty(len(where), dtype=np.uint32)
        for n, at in enumerate(where):
            finding = int(finding_of[said_items[starts[at]]])
            seen = numbers[finding]
            name = int(sums[at])
            if name not in seen:
                seen[name] = len(known[finding])
                saying = said_items[starts[at] : ends[at]]
                known[finding].append(frozenset(items[i][1] for i in saying))
            states[n] = seen[name]
        of[rows[starts], finding_of[said_items[starts]]] = states[which]
    largest = max((len(k) for k in known), default=1)
    return States(of.astype(np.uint16) if largest <= 1 << 16 else of, known)


@dataclass(frozen=True)
class Verdicts:
    """A verdict for every state of a finding and every claim of it, in one flat array.

    ``flat[base[f] + state * width[f] + column[atom]]``; ``conflict`` is laid out alike.
    """

    flat: NDArray[np.int8]
    conflict: NDArray[np.bool_]
    base: Ints
    width: Ints
    column: Ints

    def places(self, finding: Ints, state: Ints, atom: Ints) -> Ints:
        """Where the verdicts stand in ``flat``."""
        return self.base[finding] + state.astype(np.int64) * self.width[finding] + self.column[atom]


def all_verdicts(
    atoms: Atoms, states: States, always: NDArray[np.bool_], sure: bool = True
) -> Verdicts:
    """Judge every claim against every state of its finding.

    Args:
        atoms: of the sentences.
        states: of the studies.
        always: which findings readers always mention.
        sure: leave uncertain claims unknown; otherwise read them as if they were certain.
    """
    members: list[list[int]] = [[] for _ in states.known]
    for atom in range(1, len(atoms.asked)):
        members[int(atoms.finding[atom])].append(atom)
    members[0].insert(0, 0)
    column = np.zeros(len(atoms.asked), dtype=np.int64)
    width = np.array([len(m) for m in members], dtype=np.int64)
    sizes = [len(k) * len(m) for k, m in zip(states.known, members, strict=True)]
    base = np.concatenate([[0], np.cumsum(sizes)[:-1]]).astype(np.int64)
    flat = np.zeros(sum(sizes), dtype=np.int8)
    conflict = np.zeros(sum(sizes), dtype=bool)
    at = 0
    for finding, (known, own) in enumerate(zip(states.known, members, strict=True)):
        column[own] = np.arange(len(own))
        for state in known:
            closed = bool(always[finding]) and state is not None
            heard = state or frozenset()
            heard = heard if sure else frozenset(s._replace(certain=True) for s in heard)
            for atom in own:
                asked = atoms.asked[atom]
                if asked is not None:
                    asked = asked if sure else asked._replace(certain=True)
                    flat[at], conflict[at] = judge(heard, asked, closed)
                at += 1
    return Verdicts(flat, conflict, base, width, column)
