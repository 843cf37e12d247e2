"""A whole report: which sentences it holds, and how it is laid out (MIMIC-CXR style)."""

from __future__ import annotations

import textwrap
from dataclasses import dataclass

import numpy as np

from medclip_debias.phantom.catalogue import CHEX5_TYPES, CLASSES, FindingClass
from medclip_debias.phantom.language import ACUTE_TYPES, WORDS, Sentence, Writer, absent_types, pick
from medclip_debias.phantom.settings import PhantomSettings

HEADING = " " * 33 + "FINAL REPORT"


@dataclass(frozen=True, slots=True)
class Patient:
    """What a report's header tells: the patient's sex, and whether the view is portable (AP)."""

    female: bool
    portable: bool


@dataclass(frozen=True, slots=True)
class Placed:
    """A sentence and where in the report it stands."""

    section: str
    position: int
    sentence: Sentence


@dataclass(frozen=True, slots=True)
class Report:
    """Text of the report file, its layout's name, and its sentences in reading order."""

    text: str
    layout: str
    sentences: tuple[Placed, ...]


def write_report(
    rng: np.random.Generator, settings: PhantomSettings, findings: np.ndarray, patient: Patient
) -> Report:
    """Write the report of a study with these findings.

    Args:
        rng: source of randomness.
        settings: of the language.
        findings: bool vector over all classes, as the *report* has them (with report noise they
            are another study's).
        patient: what the header says of the patient and the view.
    """
    writer = Writer(rng, settings)
    layout = _layout(rng, settings)
    findings_section = _findings(writer, findings) if layout != "impression" else []
    impression = _impression(writer, findings) if layout not in ("findings", "unusable") else []
    typos = [
        [writer.misspell(s) if rng.random() < settings.typo_rate else s for s in section]
        for section in (findings_section, impression)
    ]
    text, names = _lay_out(rng, layout, typos[0], typos[1], patient)
    placed: list[Placed] = []
    for name, section in zip(names, typos, strict=True):
        before = sum(p.section == name for p in placed)
        placed += [Placed(name, before + i, s) for i, s in enumerate(section) if name]
    return Report(text, layout, tuple(placed))


# ------------------------------------------------------------------------- what is said


def _findings(writer: Writer, findings: np.ndarray) -> list[Sentence]:
    rng, settings = writer.rng, writer.settings
    present = [CLASSES[i] for i in np.flatnonzero(findings)]
    absent = absent_types(findings)
    named = [f for f in present if rng.random() < settings.mention_rate]
    sentences = _positives(writer, named, absent)
    denied: set[str] = set()
    if rng.random() < settings.negation_combined:
        together = writer.combined(absent)
        if together is not None:
            sentences.append(together)
            denied = {c.finding for c in together.statement.clauses}
    for finding in absent:
        rate = settings.negation_single * (1.0 if finding in CHEX5_TYPES else 0.1)
        if finding not in denied and rng.random() < rate:
            sentences.append(writer.negative(finding))
    sentences += [writer.boilerplate() for _ in range(3) if rng.random() < settings.boilerplate]
    if not sentences:
        sentences = [writer.no_acute() if _quiet(findings) else writer.boilerplate()]
    return [sentences[i] for i in rng.permutation(len(sentences))]


def _positives(writer: Writer, named: list[FindingClass], absent: list[str]) -> list[Sentence]:
    rng, settings = writer.rng, writer.settings
    rest = [named[i] for i in rng.permutation(len(named))]
    sentences = []
    while rest:
        finding = rest.pop()
        opposite = [
            f for f in rest if f.type == finding.type and f.zone is None and f.side is not None
        ]
        pairs = bool(opposite) and finding.zone is None and finding.type != "line"
        if pairs and rng.random() < 0.6:
            rest.remove(opposite[0])
            pair = (finding, opposite[0])
            left, right = pair if finding.side == "left" else pair[::-1]
            sentences.append(writer.bilateral(left, right))
            continue
        others = [f for f in rest if f.type != finding.type]
        if others and rng.random() < settings.compound_rate:
            rest.remove(others[-1])
            sentences.append(writer.compound(finding, others[-1]))
        elif absent and rng.random() < 0.3 * settings.compound_rate:
            possible = [t for t in absent if t in CHEX5_TYPES and t != "cardiomegaly"]
            if possible:
                sentences.append(writer.mixed(finding, pick(rng, possible, 0.5)))
            else:
                sentences.append(writer.positive(finding))
        else:
            sentences.append(writer.positive(finding, hedged=rng.random() < settings.hedge_rate))
    return sentences


def _impression(writer: Writer, findings: np.ndarray) -> list[Sentence]:
    rng, settings = writer.rng, writer.settings
    present = [CLASSES[i] for i in np.flatnonzero(findings)]
    absent = absent_types(findings)
    present = [present[i] for i in rng.permutation(len(present))]
    mentioned = [f for f in present[:3] if rng.random() < 0.75 * settings.mention_rate / 0.95]
    sentences = [writer.positive(f, hedged=rng.random() < settings.hedge_rate) for f in mentioned]
    if not sentences and _quiet(findings):
        sentences.append(writer.no_acute())
    elif not sentences or rng.random() < 0.4 * settings.negation_single:
        possible = [t for t in CHEX5_TYPES if t in absent]
        if possible:
            sentences.append(writer.negative(possible[int(rng.integers(len(possible)))]))
    return sentences or [writer.boilerplate()]


def _quiet(findings: np.ndarray) -> bool:
    return not any(CLASSES[i].type in ACUTE_TYPES for i in np.flatnonzero(findings))


# -------------------------------------------------------------------------- how it looks


def _layout(rng: np.random.Generator, settings: PhantomSettings) -> str:
    u = rng.random()
    if u < settings.odd_report_share:
        odd = ["wet_read", "addendum", "tight_headers", "mixed_case", "last_paragraph", "unusable"]
        return odd[int(rng.integers(len(odd)))]
    if rng.random() < settings.impression_share:
        return "impression" if rng.random() < 0.15 else "both"
    return "findings"


def _lay_out(
    rng: np.random.Generator,
    layout: str,
    findings: list[Sentence],
    impression: list[Sentence],
    patient: Patient,
) -> tuple[str, tuple[str, str]]:
    """Return the text and the section names under which a reader finds the two lists."""
    portable = patient.portable
    view, person = "PORTABLE AP" if portable else "PA AND LAT", "woman" if patient.female else "man"
    head = [
        f" EXAMINATION:  CHEST ({view})",
        " ",
        f" INDICATION:  ___ year old {person} with {pick(rng, WORDS['reasons'])}.",
        " ",
    ]
    if rng.random() < 0.5:
        views = "Single frontal" if portable else "Frontal"
        head += [f" TECHNIQUE:  {views} view of the chest.", " "]
    head += [f" COMPARISON:  {pick(rng, ['___.', 'None.', 'Chest radiograph from ___.'])}", " "]
    lines = [HEADING, *head]
    first = [s.text for s in findings]
    last = [s.text for s in impression]
    numbered = len(last) > 1 and rng.random() < 0.4
    items = [f"{number}. {sentence}" for number, sentence in enumerate(last, 1)]
    names = ("findings", "impression")
    if layout == "unusable":
        # Nothing a reader could use: the section was left to a later dictation.
        return "\n".join([HEADING, *head[:3], " "]) + "\n", ("", "")
    if layout == "last_paragraph":
        lines += _wrap(" ".join([*first, *last]))
        return "\n".join(lines) + "\n", ("last_paragraph", "last_paragraph")
    if layout == "wet_read":
        lines = [" WET READ: ___ ___ 10:15 PM", "  See final report.", " ", *lines]
    if layout == "tight_headers":
        lines += [*_wrap("FINDINGS:" + " ".join(first)), " "]
        lines += _wrap("IMPRESSION:" + " ".join(last))
    elif layout == "mixed_case":
        lines += [*_wrap("Findings: " + " ".join(first)), " "]
        lines += _wrap("Impression: " + " ".join(last))
    else:
        if first:
            lines += [" FINDINGS: ", " ", *_wrap(" ".join(first)), " "]
        if last:
            lines += [" IMPRESSION: ", " "]
            for item in items if numbered else [" ".join(last)]:
                lines += _wrap(item)
    if layout == "addendum":
        lines += [" ", " " + "_" * 70, " ADDENDUM:  ___ was informed by telephone."]
    return "\n".join(lines) + "\n", names


def _wrap(text: str) -> list[str]:
    return textwrap.wrap(
        text,
        width=76,
        initial_indent=" ",
        subsequent_indent=" ",
        break_long_words=False,
        break_on_hyphens=False,
    )
