"""The study of a patient before a study: from what a source knows of dates, to a column of the set.

The earlier study is the last one of the same patient that was made before, among all studies of
the source. If that one is not in the set, the study has none: an older one is not put in its
place, since a report that says "unchanged" speaks of the last one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise

from medclip_debias.data.funnel import Funnel
from medclip_debias.data.records import HasStudyOrder, Source, Step, StudyMoment
from medclip_debias.errors import UserError

UNIT = "earlier studies"
"""Unit of the steps: they drop no study of the set."""


def earlier_studies(source: Source) -> tuple[dict[str, str], list[Step]]:
    """Return the study before each study of a source, and the steps that count them.

    Raises:
        UserError: the source does not know the order of studies.
    """
    if not isinstance(source, HasStudyOrder):
        raise UserError(
            f"--earlier-studies is 'keep', but a source of the kind '{source.kind}' does not say"
            " which of a patient's studies came first; leave the option out."
        )
    return before_each(source.study_order())


def before_each(order: Mapping[str, StudyMoment]) -> tuple[dict[str, str], list[Step]]:
    """Return the study before each study, and the steps that count them.

    Moments are compared as far as they go: on a day of which one study has no time, nobody knows
    the order. Where several studies share the last moment before, none of them is taken.

    >>> days = {"a": ("p", (1,)), "b": ("p", (2,)), "c": ("q", (3,))}
    >>> before_each({study: StudyMoment(*told) for study, told in days.items()})[0]
    {'b': 'a'}
    """
    patients: dict[str, list[tuple[str, tuple[float, ...]]]] = {}
    for study, (patient, moment) in order.items():
        if moment is not None:
            patients.setdefault(patient, []).append((study, moment))
    known = sum(map(len, patients.values()))
    found: dict[str, str] = {}
    several = 0
    for studies in patients.values():
        groups = _by_moment(studies)
        for earlier, group in pairwise(groups):
            if len(earlier) == 1:
                found |= dict.fromkeys(group, earlier[0])
            else:
                several += len(group)
    later = len(found) + several
    steps: list[Step] = [
        ("study has a known date or number", UNIT, known, len(order)),
        ("its patient has an earlier study", UNIT, later, known),
        ("earlier study is one, not several of the same moment", UNIT, len(found), later),
    ]
    return found, steps


def _by_moment(studies: Sequence[tuple[str, tuple[float, ...]]]) -> list[list[str]]:
    """The studies of one patient in groups of equal moments, the earliest first."""
    shortest: dict[float, int] = {}
    for _, moment in studies:
        shortest[moment[0]] = min(len(moment), shortest.get(moment[0], len(moment)))
    groups: dict[tuple[float, ...], list[str]] = {}
    for study, moment in studies:
        groups.setdefault(moment[: shortest[moment[0]]], []).append(study)
    return [groups[moment] for moment in sorted(groups)]


def in_the_set(
    earlier: Mapping[str, str], members: Mapping[str, tuple[str, str]], funnel: Funnel
) -> dict[str, str]:
    """Return the earlier study of each study, where both are in the set, and count the steps.

    Args:
        earlier: what `earlier_studies` found, for the studies of the set.
        members: patient and split of each study of the set.
        funnel: gets the steps.
    """
    there = {study: before for study, before in earlier.items() if before in members}
    alike = {s: before for s, before in there.items() if members[s] == members[before]}
    funnel.step("study of the set has an earlier one", UNIT, len(earlier), len(members))
    funnel.step("earlier study is in the set", UNIT, len(there), len(earlier))
    funnel.step("earlier study is of the same patient and split", UNIT, len(alike), len(there))
    return alike
