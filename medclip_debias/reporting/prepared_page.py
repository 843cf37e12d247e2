"""The page of a prepared set: what is in it, how it was prepared, and what was left out.

It holds counts alone: no sentence, no id and no picture.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from medclip_debias.data.layout import STUDY_COLUMNS
from medclip_debias.data.store import PreparedSet
from medclip_debias.files import write_text
from medclip_debias.reporting.content import Rows, number, render, words
from medclip_debias.reporting.plots import bars, levels

NAME = "prepared.html"
SPLITS = ("train", "validate", "test", "held_out")
FREQUENCIES = {"1": 1, "2 to 4": 2, "5 to 9": 5, "10 to 99": 10, "100 or more": 100}
"""Groups of sentences by how many studies say them, and their lowest number."""
_MOST_BINS = 30
_MOST_VIEWS = 24


def write_prepared_page(prepared: PreparedSet | Path) -> Path:
    """Write `NAME` into a prepared set; its path."""
    if not isinstance(prepared, PreparedSet):
        prepared = PreparedSet.open(prepared)
    pairs = prepared.sentences[["study_id", "text"]].drop_duplicates()
    page = render(
        "prepared.html.j2",
        name=prepared.folder.resolve().name,
        meta=prepared.meta,
        counts=prepared.meta["counts"],
        splits=split_rows(prepared.images),
        labels=label_rows(prepared.studies),
        frequencies=frequency_rows(pairs["text"].value_counts().to_numpy()),
        plots=_plots(prepared),
        funnel=prepared.funnel,
    )
    path = prepared.folder / NAME
    if not path.is_file() or path.read_text(encoding="utf-8") != page:
        write_text(path, page)
    return path


def split_rows(images: pd.DataFrame) -> Rows:
    """Images, studies and patients of each split."""
    columns = {"image_id": "size", "study_id": "nunique", "patient_id": "nunique"}
    counts = images.groupby("split").agg(columns)
    known = [name for name in SPLITS if name in counts.index]
    counts = counts.loc[[*known, *counts.index.difference(known)]]
    return [[words(name), *map(number, map(int, row))] for name, *row in counts.itertuples()]


def label_rows(studies: pd.DataFrame) -> Rows:
    """Each label: studies in which it is present, absent, uncertain, and not mentioned."""
    labels = studies.drop(columns=list(STUDY_COLUMNS), errors="ignore").astype(float)
    counts = [(labels == value).sum() for value in (1, 0, -1)] + [labels.isna().sum()]
    return [[name, *(number(int(of[name])) for of in counts)] for name in map(str, labels)]


def frequency_rows(counts: NDArray[np.integer]) -> Rows:
    """Distinct sentences by how many studies say them, and their share of what is said."""
    edges = [*FREQUENCIES.values(), np.inf]
    groups = pd.cut(pd.Series(counts), edges, right=False, labels=list(FREQUENCIES))
    table = pd.Series(counts).groupby(groups, observed=True).agg(["size", "sum"])
    return [
        [str(name), number(int(size)), number(int(total)), f"{total / counts.sum():.1%}"]
        for name, size, total in table.itertuples()
    ]


def _plots(prepared: PreparedSet) -> list[tuple[Any, str, str]]:
    plots: list[tuple[Any, str, str]] = []
    per_study = prepared.sentences.groupby("study_id").size().to_numpy()
    lengths = np.array([len(text.split()) for text in prepared.sentences["text"]], dtype=int)
    for values, title, x, caption in (
        (per_study, "Sentences of a study", "sentences", "Studies with at least one."),
        (lengths, "Words of a sentence", "words", "Every occurrence counts."),
    ):
        if len(values):
            edges, counts = whole_bins(values)
            summary = f"edian {np.median(values):g}, most {int(values.max())}"
            label = f"Histogram: {title.lower()}, m{summary}"
            plot = bars(edges.tolist(), counts.tolist(), label, x=x, y="count")
            plots.append((plot, title, f"{caption} M{summary}. Heights are logarithmic."))
    every = prepared.images["view"].replace("", "blank").value_counts()
    views, rest = every.head(_MOST_VIEWS), every.iloc[_MOST_VIEWS:]
    more = f" {len(rest)} more, of {rest.sum():,} images, are not shown." if len(rest) else ""
    if len(views):
        listed = ", ".join(f"{name} {n:,}" for name, n in views.items())
        names = [str(name) for name in views.index]
        plot = levels(names, views.tolist(), f"Images by view: {listed}", x="images")
        plots.append((plot, "Views", f"As the source names them.{more}"))
    return plots


def whole_bins(values: NDArray[Any]) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Histogram of whole numbers: at most `_MOST_BINS` of one width, edges between numbers."""
    low, high = int(values.min()), int(values.max())
    width = -(-(high - low + 1) // _MOST_BINS)
    edges = np.arange(low, high + width + 1, width) - 0.5
    return edges.astype(np.float64), np.histogram(values, edges)[0].astype(np.int64)
