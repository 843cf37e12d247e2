"""The page of a prepared set: what is in it, how it was prepared, and what was left out.

It holds counts alone: no sentence, no id and no picture.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from medclip_debias.data.store import STUDY_COLUMNS, PreparedSet
from medclip_debias.files import write_text
from medclip_debias.reporting.content import Rows, number
from medclip_debias.reporting.page import render
from medclip_debias.reporting.plots import bars, levels

NAME = "prepared.html"
SPLITS = ("train", "validate", "test", "held_out")
FREQUENCIES = ((1, 1), (2, 4), (5, 9), (10, 99), (100, None))
"""Ends of the groups of sentences by how many studies say them."""
_MOST_BINS = 30
_MOST_VIEWS = 24


def write_prepared_page(prepared: PreparedSet | Path) -> Path:
    """Write `NAME` into a prepared set; its path.

    Raises:
        UserError: the set is damaged.
    """
    if not isinstance(prepared, PreparedSet):
        prepared = PreparedSet.open(prepared)
    meta, counts = prepared.meta, prepared.meta["counts"]
    tiles = [
        (title, number(int(counts[key])))
        for title, key in (
            ("Images", "images"),
            ("Studies", "studies"),
            ("Patients", "patients"),
            ("Sentences", "sentences"),
            ("Distinct sentences", "distinct_sentences"),
            ("Phrases with boxes", "phrases"),
        )
        if counts.get(key)
    ]
    page = render(
        "prepared.html.j2",
        name=prepared.folder.resolve().name,
        synthetic=bool(meta.get("synthetic")),
        tiles=tiles,
        contents_rows=content_rows(prepared),
        how=how(meta),
        splits=split_rows(prepared),
        labels=label_rows(prepared.studies),
        frequencies=frequency_rows(said_by(prepared)),
        plots=_plots(prepared),
        funnel=[
            [str(s["step"]), str(s["unit"]), number(s["kept"]), number(s["dropped"])]
            for s in prepared.funnel
        ],
        rejected=int(counts.get("rejected", 0)),
        provenance=[
            ["Content", meta["content_hash"]],
            ["Manifest", str(meta.get("manifest_hash", ""))],
            *([str(k), str(v)] for k, v in (meta.get("made_by") or {}).items()),
        ],
    )
    path = prepared.folder / NAME
    if not path.is_file() or path.read_text(encoding="utf-8") != page:
        write_text(path, page)
    return path


def content_rows(prepared: PreparedSet) -> Rows:
    """Source, languages, and the like."""
    meta = prepared.meta
    spoken = ", ".join(f"{n:,} {code}" for code, n in (meta.get("languages") or {}).items())
    kind = "synthetic: generated images and reports, no patient" * bool(meta.get("synthetic"))
    made = {"Scores of sentences": "scores.json", "Claims of sentences": "claims.parquet"}
    rows = [
        ["Source", f"{meta.get('kind')}, {kind or 'real'}"],
        ["Reports by language", spoken],
    ]
    for title, file in made.items():
        rows.append([title, "yes" if (prepared.folder / file).is_file() else "not yet"])
    return [row for row in rows if row[1]]


def how(meta: Mapping[str, Any]) -> list[str]:
    """How the set was prepared, in sentences."""
    settings, chosen = meta.get("settings") or {}, meta.get("selection") or {}
    options = meta.get("options") or {}
    low, high = settings.get("clip", (0.5, 99.5))
    fit = "cut to its middle square" if settings.get("fit") == "crop" else "padded to a square"
    lines = [
        f"Each image is {fit} of {settings.get('size')} x {settings.get('size')} pixels; "
        f"intensities are clipped at the percentiles {low:g} and {high:g} of the image"
        + (", its histogram is equalised" if settings.get("equalize") else "")
        + (
            "; windows of the file are left out."
            if settings.get("window") == "none"
            else "; the file's first window is applied before."
        ),
        f"Views taken: {', '.join(chosen.get('views') or ()) or 'not named'}. Images whose view is "
        f"blank: {_words(chosen.get('blank_view'))}. Of studies with several views: "
        f"{_words(chosen.get('multi_view'))}. Studies without a sentence: "
        f"{_words(chosen.get('without_sentence'))}.",
    ]
    reports = options.get("reports") or {}
    if reports:
        sections = ", ".join(map(str, reports.get("sections") or ()))
        fallback = ", ".join(_words(name) for name in reports.get("fallback") or ())
        lines.append(
            f"Sections of reports that are read: {sections}"
            + (f"; where there is none, the first of: {fallback}." if fallback else ".")
        )
    seed = options.get("split_seed")
    lines.append(
        "The source's own split is kept." if seed is None else f"Patients are split by seed {seed}."
    )
    return lines


def _words(value: Any) -> str:
    return str(value).replace("_", " ")


def split_rows(prepared: PreparedSet) -> Rows:
    """Images, studies and patients of each split."""
    counts = prepared.images.groupby("split").agg(
        {"image_id": "size", "study_id": "nunique", "patient_id": "nunique"}
    )
    of_split = {str(name): numbers for name, *numbers in counts.reset_index().to_numpy().tolist()}
    names = [name for name in SPLITS if name in of_split]
    names += sorted(set(of_split) - set(names))
    return [[_words(name), *map(number, of_split[name])] for name in names]


def label_rows(studies: pd.DataFrame) -> Rows:
    """Each label: studies in which it is present, absent, uncertain, and not mentioned."""
    rows = []
    for name in studies.columns.difference(list(STUDY_COLUMNS), sort=False):
        values = studies[name]
        known = [int((values == value).sum()) for value in (1, 0, -1)]
        rows.append([name, *map(number, (*known, int(values.isna().sum())))])
    return rows


def said_by(prepared: PreparedSet) -> NDArray[np.int64]:
    """How many studies say each distinct sentence."""
    pairs = prepared.sentences[["study_id", "text"]].drop_duplicates()
    return np.asarray(pairs["text"].value_counts(), dtype=np.int64)


def frequency_rows(counts: NDArray[np.int64]) -> Rows:
    """Distinct sentences by how many studies say them, and their share of what is said."""
    rows = []
    for low, high in FREQUENCIES:
        group = counts[(counts >= low) & (counts <= (high or counts.max(initial=0)))]
        name = f"{low} or more" if high is None else str(low) if low == high else f"{low} to {high}"
        if len(group):
            share = group.sum() / counts.sum()
            rows.append([name, number(len(group)), number(int(group.sum())), f"{share:.1%}"])
    return rows


def _plots(prepared: PreparedSet) -> list[tuple[Any, str, str]]:
    shown = []
    per_study = prepared.sentences.groupby("study_id").size().to_numpy()
    lengths = np.array([len(text.split()) for text in prepared.sentences["text"]], dtype=int)
    for values, title, x, caption in (
        (per_study, "Sentences of a study", "sentences", "Studies with at least one."),
        (lengths, "Words of a sentence", "words", "Every occurrence counts."),
    ):
        if len(values):
            edges, counts = whole_bins(values)
            middle = float(np.median(values))
            label = f"Histogram: {title.lower()}, median {middle:g}, most {int(values.max())}"
            text = (
                f"{caption} Median {middle:g}, most {int(values.max())}. Heights are logarithmic."
            )
            drawn = bars(edges.tolist(), counts.tolist(), label, x=x, y="count")
            shown.append((drawn, title, text))
    every = prepared.images["view"].replace("", "blank").value_counts()
    views, rest = every.head(_MOST_VIEWS), every.iloc[_MOST_VIEWS:]
    more = f" {len(rest)} more, of {rest.sum():,} images, are not shown." if len(rest) else ""
    if len(views):
        plot = levels(
            [str(name) for name in views.index],
            views.tolist(),
            f"Images by view: {', '.join(f'{name} {n:,}' for name, n in views.items())}",
            x="images",
        )
        shown.append((plot, "Views", f"As the source names them.{more}"))
    return shown


def whole_bins(values: NDArray[Any]) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Histogram of whole numbers: at most `_MOST_BINS` of one width, edges between numbers."""
    low, high = int(values.min()), int(values.max())
    width = -(-(high - low + 1) // _MOST_BINS)
    edges = np.arange(low, high + width + 1, width) - 0.5
    return edges.astype(np.float64), np.histogram(values, edges)[0].astype(np.int64)
