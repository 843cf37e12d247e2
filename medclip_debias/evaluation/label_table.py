"""Labels from a table of their own, and lists of images for the multi-class protocol."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from medclip_debias.data.label_maps import Bound, LabelMap
from medclip_debias.data.labels import label_name, label_value
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
_FILES = ("path", "image")
OTHER_VIEWS = "images_of_other_views"
"""Key of the count of images that are left aside because they are not frontal."""
THE_SET = "the prepared set"
"""Where labels are from that no table was given for."""

Floats = NDArray[np.float64]


@dataclass
class Labels:
    """Labels of some images of the set.

    Attributes:
        rows: the images, by row.
        values: per class 1, 0, -1 or NaN for each of them; a class without a column is absent.
        source: where they are from, and how its rows fit the set.
        mapped: the label map that made the values, where there is one.
    """

    rows: list[int]
    values: dict[str, Floats]
    source: dict[str, str | int] = field(default_factory=dict)
    mapped: Bound | None = None


@dataclass(frozen=True)
class ClassList:
    """A list of images of one class each.

    Attributes:
        classes: row of the set to class.
        source: the file, its hash, and how its rows fit the set.
    """

    classes: dict[int, str]
    source: dict[str, str | int]


def set_labels(
    data: PreparedSet,
    split: str,
    classes: Sequence[str],
    label_map: LabelMap | None = None,
    views: Views = "frontal",
) -> Labels:
    """The set's own study labels for the images of ``split``, those of other views aside.

    Args:
        data: the prepared set.
        split: whose images count.
        classes: classes wanted.
        label_map: what the set's columns say of the classes; by default a class is the column of
            its name.

    Raises:
        UserError: the map does not fit the set.
        Skipped: the split has no image, or the set no label of any class.
    """
    listed = rows_of_split(data, split)
    rows = judged(data, listed, views)
    aside = len(listed) - len(rows)
    if label_map is not None and rows:
        return _mapped_set(data, rows, classes, label_map, aside)
    known = [name for name in classes if name in data.studies.columns]
    if not rows:
        what = "frontal image (the option views: all judges others)" if listed else "image"
        raise Skipped(f"The set has no {what} in the split '{split}'.")
    if not known or not data.studies[known].notna().to_numpy().any():
        raise Skipped(f"The set has no labels for {', '.join(classes)}.")
    studies = data.studies.drop_duplicates("study_id").set_index("study_id")
    of_image = studies.reindex(data.images["study_id"].iloc[rows])
    values = {name: of_image[name].to_numpy(dtype=np.float64) for name in known}
    return Labels(rows, values, {"labels": THE_SET, OTHER_VIEWS: aside})


def study_values(data: PreparedSet, studies: Sequence[str], columns: Sequence[str]) -> pd.DataFrame:
    """Labels of the set, a row for each of ``studies``."""
    table = data.studies.drop_duplicates("study_id").set_index("study_id")
    return table.reindex(list(studies))[list(columns)]


def map_studies(
    data: PreparedSet, studies: Sequence[str], classes: Sequence[str], label_map: LabelMap
) -> tuple[Bound, dict[str, Floats]]:
    """The set's own labels of ``studies`` through a label map, per class.

    Raises:
        UserError: a column is not there, or columns contradict each other.
        Skipped: none of the columns has a label.
    """
    file = data.folder / "studies.parquet"
    columns = [str(name) for name in data.studies.columns if name not in STUDY_COLUMNS]
    bound = label_map.bind(columns, classes, str(file))
    table = study_values(data, studies, list(dict.fromkeys(bound.columns.values())))
    if not table.notna().to_numpy().any():
        raise Skipped(f"The set has no labels in the columns {', '.join(table.columns)}.")
    place = {name: row for row, name in enumerate(data.studies["study_id"])}
    values = bound.values(
        lambda column: table[column].to_numpy(dtype=np.float64),
        lambda number: f"{file}, row {place.get(studies[number], 0)}",
    )
    return bound, values


def _mapped_set(
    data: PreparedSet,
    rows: list[int],
    classes: Sequence[str],
    label_map: LabelMap,
    aside: int,
) -> Labels:
    studies = [str(name) for name in data.images["study_id"].iloc[rows]]
    bound, values = map_studies(data, studies, classes, label_map)
    return Labels(rows, values, {"labels": THE_SET, OTHER_VIEWS: aside}, bound)


def table_labels(
    path: Path,
    data: PreparedSet,
    split: str,
    classes: Sequence[str],
    label_map: LabelMap | None = None,
    views: Views = "frontal",
) -> Labels:
    """Labels of a CSV or Parquet table for those images of ``split`` that it lists.

    Args:
        path: a table with one of `KEYS`, and a column for each class, named as the class or as
            CheXpert's table would.
        data: the prepared set.
        split: whose images count.
        classes: classes wanted.
        label_map: what the table's columns say of the classes, in place of their names.
        views: which of them are judged.

    Raises:
        UserError: the table cannot be read, has no key or none of the classes, names something
            twice, holds a value that is no label, or the map does not fit it.
        Skipped: none of the split's images is listed.
    """
    table = read_table(path)
    key, row_of = keyed(path, table, data)
    bound = None
    if label_map is None:
        columns = _columns(path, table, classes)
        values = {name: _values(path, table, column) for name, column in columns.items()}
    else:
        aside = {name for name in map(str, table.columns) if name.lower() in KEYS}
        there = [name for name in map(str, table.columns) if name not in aside]
        bound = label_map.bind(there, classes, str(path))
    ids = keys_of(data, key)
    listed = [row for row in rows_of_split(data, split) if ids[row] in row_of]
    rows = judged(data, listed, views)
    if not rows:
        what = "frontal image (the option views: all judges others)" if listed else "image"
        raise Skipped(
            f"{path.name} lists no {what} of the split '{split}' (its {len(row_of)} rows are keyed "
            f"by {key})."
        )
    places = [row_of[ids[row]] for row in rows]
    if bound is not None:
        values = bound.values(
            lambda column: _values(path, table, column)[places],
            lambda number: f"{path}, row {table.index[places[number]]}",
        )
    else:
        values = {name: array[places] for name, array in values.items()}
    known = set(ids)
    return Labels(
        rows,
        values,
        {
            "labels": path.name,
            "hash": file_hash(path),
            "key": key,
            "rows": len(row_of),
            "rows_not_in_set": sum(name not in known for name in row_of),
            "images_not_listed": len(rows_of_split(data, split)) - len(listed),
            OTHER_VIEWS: len(listed) - len(rows),
        },
        bound,
    )


def _values(path: Path, table: pd.DataFrame, column: str) -> Floats:
    """A column's labels as numbers; NaN where it is blank."""
    cells = (
        label_value(text, f"{path}, row {row}, column '{column}'")
        for row, text in zip(table.index, table[column], strict=True)
    )
    return np.array([np.nan if value is None else value for value in cells], dtype=np.float64)


def labels_or_list(
    table: Path | None,
    data: PreparedSet,
    split: str,
    classes: Sequence[str],
    listed: ClassList | None,
    label_map: LabelMap | None = None,
    views: Views = "frontal",
) -> Labels:
    """The labels of a table or of the set; without any, those that a class list makes."""
    try:
        return _labels(table, data, split, classes, label_map, views)
    except Skipped:
        if listed is None:
            raise
        return list_labels(listed, list(classes))


def threshold_labels(
    table: Path | None,
    data: PreparedSet,
    split: str,
    classes: Sequence[str],
    label_map: LabelMap | None = None,
    views: Views = "frontal",
) -> Labels | str:
    """Labels of the images on which thresholds are chosen, or why there are none."""
    if split == "validate":
        return "the validate split itself is evaluated, so no threshold can be chosen on it"
    try:
        return _labels(table, data, "validate", classes, label_map, views)
    except Skipped as reason:
        return f"no threshold can be chosen: {reason}"


def _labels(
    table: Path | None,
    data: PreparedSet,
    split: str,
    classes: Sequence[str],
    label_map: LabelMap | None,
    views: Views,
) -> Labels:
    if table is None:
        return set_labels(data, split, classes, label_map, views)
    return table_labels(table, data, split, classes, label_map, views)


def keyed(path: Path, table: pd.DataFrame, data: PreparedSet) -> tuple[str, dict[str, int]]:
    """The key column of a table, and the position of each key.

    A file or id that is one of the set's stands under the set's own id, however it is written.

    Raises:
        UserError: no key column, a key that is blank or comes twice, or hardly any key of the set.
    """
    columns = {str(name).lower(): name for name in reversed(table.columns)}
    key = next((name for name in KEYS if name in columns), None)
    if key is None:
        raise UserError(
            f"{path}: has neither 'image_id' nor 'study_id' nor 'path', so its rows belong to no "
            f"image; {columns_there(list(table.columns))}."
        )
    ids = keys_of(data, key)
    column = columns[key]
    row_of: dict[str, int] = {}
    find: Callable[[str], str]
    if key in _FILES:
        named, find = table[column].tolist(), PathFinder(ids).image
        blank = next((place for place, name in enumerate(named) if is_blank(name)), None)
        if blank is not None:
            raise UserError(
                f"{path}, row {table.index[blank]}: column '{column}' is blank; fill it in."
            )
    else:
        known = Ids(ids, STUDY if key == "study_id" else "")
        named, find = read_ids(path, table, column, known.letter).ids, known.find
    matched = 0
    for place, name in enumerate(named):
        ours = find(name)
        matched += bool(ours)
        other = row_of.setdefault(ours or name, place)
        if other != place:
            raise UserError(
                f"{path}, row {table.index[place]}: its {key} is already in row"
                f" {table.index[other]}; keep one row."
            )
    what = "studies of the set" if key == "study_id" else "images of the set"
    check_match(path, column, row_of, matched, Ids(ids), what)
    return key, row_of


def keys_of(data: PreparedSet, key: str) -> list[str]:
    """What ``key`` holds, for each image of the set."""
    return data.images["study_id" if key == "study_id" else "image_id"].astype(str).tolist()


def _columns(path: Path, table: pd.DataFrame, classes: Sequence[str]) -> dict[str, str]:
    """The column of each class that has one."""
    columns: dict[str, str] = {}
    for column in map(str, table.columns):
        name = column if column in classes else label_name(column)
        if name in classes and name not in columns:
            columns[str(name)] = column
        elif name is None and (hint := did_you_mean(column, classes)):
            warnings.warn(
                ReportedWarning(f"{path}: no label and not read: column '{column}'{hint}."),
                stacklevel=2,
            )
    if not columns:
        hint = did_you_mean(classes[0], map(str, table.columns))
        raise UserError(
            f"{path}: has no column for {', '.join(classes)}{hint}; name its label columns as the "
            "classes of the prompt set."
        )
    return columns


def class_list(
    path: Path, data: PreparedSet, classes: Sequence[str], views: Views = "frontal"
) -> ClassList:
    """Read a list such as CheXpert 5x200: the one class of each image that it names.

    Args:
        path: a table keyed as in `table_labels`, with a column ``class``, or one column a class
            of which exactly one is 1 in each row.
        data: the prepared set; its images of any split but training's count.
        classes: classes of the prompt set.
        views: which of its images are judged.

    Raises:
        UserError: the table does not fit, or a class has no prompts.
        Skipped: none of its images is in the set outside training.
    """
    table = read_table(path)
    key, row_of = keyed(path, table, data)
    named_in = next((name for name in table.columns if str(name).lower() == "class"), None)
    if named_in is not None:
        named = [text if text in classes else label_name(text) or text for text in table[named_in]]
    else:
        columns = _columns(path, table, classes)
        named = []
        for row, cells in zip(table.index, table[list(columns.values())].to_numpy(), strict=True):
            ones = [
                name
                for (name, column), text in zip(columns.items(), cells, strict=True)
                if label_value(text, f"{path}, row {row}, column '{column}'") == 1
            ]
            if len(ones) != 1:
                raise UserError(
                    f"{path}, row {row}: must have one class that is 1, has {len(ones)}."
                )
            named.append(ones[0])
    for row, name in zip(table.index, named, strict=True):
        if name not in classes:
            raise UserError(
                f"{path}, row {row}: the prompt set has no prompts for its class"
                f"{did_you_mean(name, classes)}; it has: {', '.join(classes)}."
            )
    ids = keys_of(data, key)
    splits = data.images["split"].tolist()
    inside = [row for row, name in enumerate(ids) if name in row_of]
    outside = [row for row in inside if splits[row] != "train"]
    found = {row: named[row_of[ids[row]]] for row in judged(data, outside, views)}
    if not found:
        what = "frontal image (the option views: all judges others)" if outside else "image"
        raise Skipped(f"{path.name} lists no {what} of the set outside training.")
    known = set(ids)
    return ClassList(
        found,
        {
            "list": path.name,
            "hash": file_hash(path),
            "key": key,
            "rows": len(row_of),
            "rows_not_in_set": sum(name not in known for name in row_of),
            "images_in_training": len(inside) - len(outside),
            OTHER_VIEWS: len(outside) - len(found),
        },
    )


def list_labels(listed: ClassList, classes: Sequence[str]) -> Labels:
    """A class list as labels: each image has its class and no other, as on CheXpert 5x200."""
    rows = sorted(listed.classes)
    return Labels(
        rows,
        {
            name: np.array([listed.classes[row] == name for row in rows], dtype=np.float64)
            for name in classes
        },
        {
            "labels": listed.source["list"],
            "hash": listed.source["hash"],
            "made_of": "the list of classes: an image has its class and no other",
        },
    )


def of_studies(labels: Labels, data: PreparedSet) -> tuple[Labels, dict[int, list[int]]]:
    """Labels of studies out of those of their images, and the images of each.

    Args:
        labels: of images.
        data: the prepared set.

    Returns:
        Labels whose ``rows`` are the first image of each study, and all of its rows by that one.

    Raises:
        UserError: the images of a study have different labels.
    """
    names = data.images["study_id"].iloc[labels.rows]
    places: dict[str, list[int]] = {}
    for place, study in enumerate(names):
        places.setdefault(str(study), []).append(place)
    first = [found[0] for found in places.values()]
    for values in labels.values.values():
        for found in places.values():
            told = values[found]
            if not ((told == told[0]) | (np.isnan(told) & np.isnan(told[0]))).all():
                raise UserError(
                    f"{labels.source.get('labels', 'the labels')}: images of one study have"
                    " different labels, so the study as a whole has none; leave the option"
                    " several_views at 'each'."
                )
    views = {labels.rows[found[0]]: [labels.rows[p] for p in found] for found in places.values()}
    chosen = {name: values[first] for name, values in labels.values.items()}
    return Labels([labels.rows[place] for place in first], chosen, labels.source), views
