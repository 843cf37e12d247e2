"""Labels of images: the set's own, those of a table, and lists of images of one class each."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Self

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from medclip_debias.data.label_maps import Bound, LabelMap
from medclip_debias.data.labels import label_columns, label_name, label_values
from medclip_debias.data.layout import STUDY_COLUMNS
from medclip_debias.data.sources.ids import STUDY, Ids, check_match, is_blank, read_ids
from medclip_debias.data.sources.paths import PathFinder
from medclip_debias.data.sources.tables import columns_there, read_table
from medclip_debias.data.views import Views
from medclip_debias.errors import ReportedWarning, UserError, did_you_mean
from medclip_debias.evaluation.protocol import Skipped, judged, rows_of_split
from medclip_debias.files import file_hash

if TYPE_CHECKING:
    from medclip_debias.data.store import PreparedSet

KEYS = ("image_id", "dicom_id", "study_id", "path", "image")
"""Columns, in any case, that may name the image or study of a row; the first that is there counts.

``path`` (as in CheXpert's tables) and ``image`` (as in a manifest) hold files, see
`PathFinder`.
"""
OTHER_VIEWS = "images_of_other_views"
"""Key of the count of images that are left aside because they are not frontal."""
THE_SET = "the prepared set"
"""Where labels are from that no table was given for."""

Floats = NDArray[np.float64]


@dataclass
class Labels:
    """Labels of the images in ``rows``: per class that has a column 1, 0, -1 or NaN for each.

    ``source`` says where they are from and how its rows fit the set, ``mapped`` is the label map
    that made them, where there is one.
    """

    rows: list[int]
    values: dict[str, Floats]
    source: dict[str, str | int] = field(default_factory=dict)
    mapped: Bound | None = None


# ------------------------------------------------------------------------- the set's labels


def labels_of(
    data: PreparedSet,
    split: str,
    classes: Sequence[str],
    *,
    table: Path | None = None,
    label_map: LabelMap | None = None,
    views: Views = "frontal",
) -> Labels:
    """Labels of a table, or without one the set's own, for the judged images of ``split``."""
    if table is not None:
        return table_labels(table, data, split, classes, label_map, views)
    listed = rows_of_split(data, split)
    rows = judged(data, listed, views)
    if not rows:
        raise Skipped(f"The set has no {_missing(listed)} in the split '{split}'.")
    studies = [str(name) for name in data.images["study_id"].iloc[rows]]
    bound, values = study_labels(data, studies, classes, label_map)
    if bound is None and not data.studies[list(values)].notna().to_numpy().any():
        raise Skipped(f"The set has no labels for {', '.join(classes)}.")
    return Labels(rows, values, {"labels": THE_SET, OTHER_VIEWS: len(listed) - len(rows)}, bound)


def study_labels(
    data: PreparedSet,
    studies: Sequence[str],
    classes: Sequence[str],
    label_map: LabelMap | None = None,
) -> tuple[Bound | None, dict[str, Floats]]:
    """The set's own labels of ``studies``, per class that has a column or a rule of the map."""
    of_study = data.studies.drop_duplicates("study_id").set_index("study_id").reindex(list(studies))

    def values(column: str) -> Floats:
        return of_study[column].to_numpy(dtype=np.float64)

    if label_map is None:
        return None, {name: values(name) for name in classes if name in of_study.columns}
    file = data.folder / "studies.parquet"
    columns = [str(name) for name in data.studies.columns if name not in STUDY_COLUMNS]
    bound = label_map.bind(columns, classes, str(file))
    wanted = list(dict.fromkeys(bound.columns.values()))
    if not of_study[wanted].notna().to_numpy().any():
        raise Skipped(f"The set has no labels in the columns {', '.join(wanted)}.")
    place = {name: row for row, name in enumerate(data.studies["study_id"])}
    return bound, bound.values(
        values, lambda number: f"{file}, row {place.get(studies[number], 0)}"
    )


def _missing(listed: Sequence[int]) -> str:
    return "frontal image (the option views: all judges others)" if listed else "image"


# --------------------------------------------------------------------------------- tables


@dataclass(frozen=True)
class KeyedTable:
    """A table whose rows belong to images or studies of a set.

    ``key`` is the column of `KEYS` that it has, ``place`` the row of each key by position (the
    set's own keys under the set's own id), ``ids`` the set's id of each of its images.
    """

    path: Path
    table: pd.DataFrame
    key: str
    place: dict[str, int]
    ids: list[str]

    @classmethod
    def of(cls, path: Path, table: pd.DataFrame, data: PreparedSet) -> Self:
        """Find the key column, and the row of each key."""
        columns = {str(name).lower(): name for name in reversed(table.columns)}
        key = next((name for name in KEYS if name in columns), None)
        if key is None:
            raise UserError(
                f"{path}: has neither 'image_id' nor 'study_id' nor 'path', so its rows belong to"
                f" no image; {columns_there(list(table.columns))}."
            )
        ids = data.images["study_id" if key == "study_id" else "image_id"].astype(str).tolist()
        column = columns[key]
        find: Callable[[str], str]
        if key in ("path", "image"):
            named, find = table[column].tolist(), PathFinder.of_ids(ids).image
            blank = next((place for place, name in enumerate(named) if is_blank(name)), None)
            if blank is not None:
                raise UserError(
                    f"{path}, row {table.index[blank]}: column '{column}' is blank; fill it in."
                )
        else:
            known = Ids(ids, STUDY if key == "study_id" else "")
            named, find = read_ids(path, table, column, known.letter)[0], known.find
        place_of: dict[str, int] = {}
        matched = 0
        for place, name in enumerate(named):
            ours = find(name)
            matched += bool(ours)
            other = place_of.setdefault(ours or name, place)
            if other != place:
                raise UserError(
                    f"{path}, row {table.index[place]}: its {key} is already in row"
                    f" {table.index[other]}; keep one row."
                )
        what = "studies of the set" if key == "study_id" else "images of the set"
        check_match(path, column, place_of, matched, Ids(ids), what)
        return cls(path, table, key, place_of, ids)

    def listed(self, rows: Sequence[int]) -> list[int]:
        """Those of the set's ``rows`` that the table names."""
        return [row for row in rows if self.ids[row] in self.place]

    def source(self, what: str) -> dict[str, str | int]:
        """The file under the name ``what``, its hash, and how its rows fit the set."""
        known = set(self.ids)
        return {
            what: self.path.name,
            "hash": file_hash(self.path),
            "key": self.key,
            "rows": len(self.place),
            "rows_not_in_set": sum(name not in known for name in self.place),
        }

    def labels(self, column: str) -> Floats:
        """A column's labels as numbers; NaN where it is blank."""
        return np.array(label_values(self.path, self.table, column), dtype=np.float64)

    def columns(self, classes: Sequence[str]) -> dict[str, str]:
        """The column of each class that has one."""
        names = [str(column) for column in self.table.columns]
        columns = label_columns(self.path, names, classes)
        for name in names:
            unknown = name not in columns and label_name(name) is None
            if unknown and (hint := did_you_mean(name, classes)):
                sentence = f"{self.path}: no label and not read: column '{name}'{hint}."
                warnings.warn(ReportedWarning(sentence), stacklevel=2)
        if not columns:
            hint = did_you_mean(classes[0], names)
            raise UserError(
                f"{self.path}: has no column for {', '.join(classes)}{hint}; name its label columns"
                " as the classes of the prompt set."
            )
        return {label: column for column, label in columns.items()}


def table_labels(
    path: Path,
    data: PreparedSet,
    split: str,
    classes: Sequence[str],
    label_map: LabelMap | None = None,
    views: Views = "frontal",
) -> Labels:
    """Labels of a CSV or Parquet table for those images of ``split`` that it lists.

    The table has one of `KEYS` and a column for each class, named as the class or as CheXpert's
    table would; a label map takes the place of the names.
    """
    keyed = KeyedTable.of(path, read_table(path), data)
    bound = None
    if label_map is None:
        every = {name: keyed.labels(column) for name, column in keyed.columns(classes).items()}
    else:
        names = [name for name in map(str, keyed.table.columns) if name.lower() not in KEYS]
        bound = label_map.bind(names, classes, str(path))
    of_split = rows_of_split(data, split)
    listed = keyed.listed(of_split)
    rows = judged(data, listed, views)
    if not rows:
        raise Skipped(
            f"{path.name} lists no {_missing(listed)} of the split '{split}' (its"
            f" {len(keyed.place)} rows are keyed by {keyed.key})."
        )
    places = [keyed.place[keyed.ids[row]] for row in rows]
    if bound is None:
        values = {name: labels[places] for name, labels in every.items()}
    else:
        values = bound.values(
            lambda column: keyed.labels(column)[places],
            lambda number: f"{path}, row {keyed.table.index[places[number]]}",
        )
    counts: dict[str, str | int] = {
        "images_not_listed": len(of_split) - len(listed),
        OTHER_VIEWS: len(listed) - len(rows),
    }
    return Labels(rows, values, keyed.source("labels") | counts, bound)


def class_list(
    path: Path, data: PreparedSet, classes: Sequence[str], views: Views = "frontal"
) -> Labels:
    """A list such as CheXpert 5x200 as labels: each image has its class and no other.

    The table is keyed as in `table_labels`, with a column ``class``, or one column a class of which
    exactly one is 1 in each row; images of any split but training's count.
    """
    table = read_table(path)
    keyed = KeyedTable.of(path, table, data)
    named_in = next((name for name in table.columns if str(name).lower() == "class"), None)
    if named_in is not None:
        named = [text if text in classes else label_name(text) or text for text in table[named_in]]
    else:
        columns = keyed.columns(classes)
        present = np.stack([keyed.labels(column) == 1 for column in columns.values()], axis=1)
        for row, count in zip(table.index, present.sum(axis=1), strict=True):
            if count != 1:
                raise UserError(f"{path}, row {row}: must have one class that is 1, has {count}.")
        named = [list(columns)[place] for place in present.argmax(axis=1)]
    for row, name in zip(table.index, named, strict=True):
        if name not in classes:
            raise UserError(
                f"{path}, row {row}: the prompt set has no prompts for its class"
                f"{did_you_mean(name, classes)}; it has: {', '.join(classes)}."
            )
    inside = keyed.listed(range(len(keyed.ids)))
    splits = data.images["split"].tolist()
    outside = [row for row in inside if splits[row] != "train"]
    rows = judged(data, outside, views)
    if not rows:
        raise Skipped(f"{path.name} lists no {_missing(outside)} of the set outside training.")
    counts: dict[str, str | int] = {
        "images_in_training": len(inside) - len(outside),
        OTHER_VIEWS: len(outside) - len(rows),
    }
    of_row = np.array([named[keyed.place[keyed.ids[row]]] for row in rows], dtype=object)
    values = {name: (of_row == name).astype(np.float64) for name in classes}
    return Labels(rows, values, keyed.source("list") | counts)


# --------------------------------------------------------------------------------- studies


def of_studies(labels: Labels, data: PreparedSet) -> tuple[Labels, dict[int, list[int]]]:
    """Labels of studies out of those of their images, and the images of each.

    ``rows`` are the first image of each study; all rows of a study stand by its first.
    """
    studies = data.images["study_id"].iloc[labels.rows].astype(str).to_numpy()
    by_study = pd.DataFrame(labels.values).groupby(studies, sort=False)
    if (by_study.nunique(dropna=False) > 1).to_numpy().any():
        raise UserError(
            f"{labels.source.get('labels', 'the labels')}: images of one study have different"
            " labels, so the study as a whole has none; leave the option several_views at 'each'."
        )
    first, of_study = by_study.nth(0), pd.Series(labels.rows).groupby(studies, sort=False)
    images: dict[int, list[int]] = {rows.iloc[0]: rows.tolist() for _, rows in of_study}
    chosen = {name: first[name].to_numpy() for name in labels.values}
    return replace(labels, rows=list(images), values=chosen), images
