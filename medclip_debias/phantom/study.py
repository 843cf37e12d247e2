"""One study as a pure function of (settings, split, index): findings, report, views."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from medclip_debias.phantom import exact
from medclip_debias.phantom.catalogue import (
    CLASSES,
    INDEX,
    class_probabilities,
    draw_findings,
)
from medclip_debias.phantom.findings import Box
from medclip_debias.phantom.language import Sentence, Writer
from medclip_debias.phantom.render import Picture, render_frontal, render_lateral
from medclip_debias.phantom.report import Patient, Report, write_report
from medclip_debias.phantom.settings import PhantomSettings

# Each split is a stream of its own: a larger training set keeps its first studies, and the same
# test studies, whatever its size.
STREAMS = {"train": 0, "validate": 1, "test": 2}
_FIRST_PATIENT = {"train": 10_000_032, "validate": 18_000_007, "test": 19_000_011}
_PATIENT_RANGE = {"train": 7_999_993, "validate": 999_983, "test": 899_981}  # primes
_STUDY_BLOCK = {"train": 0, "validate": 7_000_000, "test": 8_400_000}
_STUDY_RANGE = {"train": 6_999_997, "validate": 1_399_999, "test": 1_499_977}  # primes
NATURAL_OF_FIVE = 2  # of five test studies in turn, two are natural and three forced


@dataclass(frozen=True, slots=True)
class View:
    """One image to render."""

    dicom_id: str
    position: str  # AP, PA, LATERAL
    stated: str  # ViewPosition as written in the file: sometimes blank
    size: tuple[int, int]  # height, width
    key: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Study:
    """All about one study but its pixels."""

    split: str
    index: int
    subject_id: int
    study_id: int
    findings: tuple[int, ...]
    forced: int | None
    marker: bool
    noisy_report: bool
    report: Report
    views: tuple[View, ...]
    date: str
    time: str
    female: bool

    @property
    def folder(self) -> str:
        """Folder of the study's images, relative to the tree's root."""
        return f"files/p{str(self.subject_id)[:2]}/p{self.subject_id}/s{self.study_id}"


@lru_cache(maxsize=16)
def patient_ordinals(seed: int, split: str, count: int) -> np.ndarray:
    """Ordinal of the patient of each of the first ``count`` studies; a quarter are returns."""
    rng = np.random.default_rng([seed, STREAMS[split], 1 << 30])
    first = rng.random(count) >= 0.25
    first[0] = True
    return np.cumsum(first) - 1


def forced_class(index: int, classes: int) -> int | None:
    """Class that test study ``index`` must have; None for the natural ones."""
    block, within = divmod(index, 5)
    if within < NATURAL_OF_FIVE:
        return None
    return (block * (5 - NATURAL_OF_FIVE) + within - NATURAL_OF_FIVE) % classes


def plan_study(settings: PhantomSettings, split: str, index: int) -> Study:
    """Decide everything about a study: the same arguments give the same study."""
    rng = np.random.default_rng([settings.seed, STREAMS[split], index])
    probabilities = class_probabilities(
        settings.classes, settings.probability_scale, settings.tail_exponent
    )
    forced = forced_class(index, settings.classes) if split == "test" else None
    present = draw_findings(rng, probabilities, forced)
    other = draw_findings(rng, probabilities)
    noisy = bool(rng.random() < settings.report_noise) and split != "test"
    marker = _marker(rng.random(), settings, split, present)
    views = _views(rng, settings, split, index)
    reported = other if noisy else present
    language = np.random.default_rng([settings.seed, STREAMS[split], index, 1 << 20])
    ordinal = int(patient_ordinals(settings.seed, split, settings.counts()[split])[index])
    female = np.random.default_rng([settings.seed, STREAMS[split], ordinal, 1 << 21]).random() < 0.5
    patient = Patient(bool(female), views[0].position == "AP")
    report = write_report(language, settings, reported, patient)
    return Study(
        split=split,
        index=index,
        subject_id=_FIRST_PATIENT[split] + ordinal * 5003 % _PATIENT_RANGE[split],
        study_id=50_000_000 + _STUDY_BLOCK[split] + (414_267 + index * 7919) % _STUDY_RANGE[split],
        findings=tuple(int(i) for i in np.flatnonzero(present)),
        forced=forced,
        marker=marker,
        noisy_report=noisy,
        report=report,
        views=views,
        # MIMIC shifts dates into the future; these are as invented as the rest.
        date=f"{2110 + index % 90}{1 + index * 7 % 12:02d}{1 + index * 11 % 28:02d}",
        time=f"{index * 13 % 24:02d}{index * 17 % 60:02d}{index * 29 % 60:02d}.{index % 1000:03d}",
        female=patient.female,
    )


def _marker(u: float, settings: PhantomSettings, split: str, present: np.ndarray) -> bool:
    if settings.marker_class is None:
        return False
    if split == "test":
        return u < 0.5
    sign = 1 if present[INDEX[settings.marker_class]] else -1
    return u < 0.5 + sign * 0.5 * settings.marker_correlation


def _views(
    rng: np.random.Generator, settings: PhantomSettings, split: str, index: int
) -> tuple[View, ...]:
    first = "AP" if rng.random() < 0.6 else "PA"
    chances = rng.random(3)
    positions = [first]
    if chances[0] < settings.second_frontal_share:
        positions.append("PA" if first == "AP" else "AP")
    if chances[1] < settings.lateral_share:
        positions.append("LATERAL")
    views = []
    for number, position in enumerate(positions):
        key = (settings.seed, STREAMS[split], index, number)
        digits = hashlib.sha256("/".join(map(str, key)).encode()).hexdigest()
        blank = number == 0 and chances[2] < settings.blank_view_share
        views.append(
            View(
                dicom_id="-".join(digits[i : i + 8] for i in range(0, 40, 8)),
                position=position,
                stated="" if blank else position,
                size=_size(rng, settings),
                key=key,
            )
        )
    return tuple(views)


def _size(rng: np.random.Generator, settings: PhantomSettings) -> tuple[int, int]:
    longer = float(rng.integers(settings.min_side, settings.max_side + 1))
    low, high = exact.log(settings.aspect)
    aspect = float(exact.exp(low + (high - low) * rng.random()))  # width over height
    height, width = (longer, longer * aspect) if aspect < 1 else (longer / aspect, longer)
    limits = (settings.min_side, settings.max_side)
    return int(np.clip(round(height), *limits)), int(np.clip(round(width), *limits))


def render_view(settings: PhantomSettings, study: Study, view: View) -> Picture:
    """Render one view of a study."""
    if view.position == "LATERAL":
        return render_lateral(view.key, view.size)
    return render_frontal(
        view.key,
        view.size,
        list(study.findings),
        portable=view.position == "AP",
        visibility=settings.visibility,
        marker=study.marker,
    )


def phrases(
    settings: PhantomSettings, view: View, boxes: dict[int, tuple[Box, ...]]
) -> list[tuple[int, Sentence]]:
    """Write one phrase for every boxed finding of a view, naming all that was drawn."""
    result = []
    for i in boxes:
        rng = np.random.default_rng([*view.key, 3, i])
        result.append((i, Writer(rng, settings).positive(CLASSES[i], always_name=True)))
    return result
