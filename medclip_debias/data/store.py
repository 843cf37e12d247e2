"""The prepared set: one folder, opened in constant time (docs/architecture.md, Prepared set)."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from medclip_debias import parquet
from medclip_debias.config import PrepareSettings
from medclip_debias.data.layout import (
    FORMAT_VERSION,
    MASK_COLUMN,
    PHRASE_BOX_COLUMNS,
    PHRASE_BOXES,
    TABLES,
)
from medclip_debias.data.masks import from_coco
from medclip_debias.data.records import Mask
from medclip_debias.data.views import is_frontal
from medclip_debias.errors import UserError
from medclip_debias.files import atomic_file, read_json, read_json_value, write_json

FILES = ("images.bin", *(f"{name}.parquet" for name in TABLES), "rejected.csv", "funnel.json")


class PreparedSet:
    """A prepared set, read lazily; use `PreparedSet.open`.

    Attributes:
        folder: the set's folder.
        meta: content of ``meta.json``.
        settings: how its images were prepared.
        content_hash: hash of images and tables.
    """

    def __init__(self, folder: Path, meta: dict[str, Any], settings: PrepareSettings) -> None:
        self.folder = folder
        self.meta = meta
        self.settings = settings
        self.content_hash: str = meta["content_hash"]

    @classmethod
    def open(cls, folder: Path) -> PreparedSet:
        """Open and check the prepared set in ``folder``.

        Raises:
            UserError: it is not a complete prepared set of this format version.
        """
        folder = Path(folder)
        prepared = cls(folder, *_read_meta(folder))
        prepared.validate()
        return prepared

    def validate(self) -> None:
        """Check that every file is there and that ``images.bin`` has its full size."""
        for name in (*FILES, *self.meta.get("files", ())):
            if not (self.folder / name).is_file():
                raise UserError(
                    f"{self.folder / name}: this file of the prepared set is missing;"
                    " run 'prepare' again."
                )
        expected = len(self) * self.settings.size**2
        actual = (self.folder / "images.bin").stat().st_size
        if actual != expected:
            raise UserError(
                f"{self.folder / 'images.bin'}: has {actual} bytes where {len(self)} images of"
                f" {self.settings.size} x {self.settings.size} need {expected};"
                " the file is damaged, run 'prepare' again."
            )

    @property
    def parts(self) -> Sequence[PreparedSet]:
        """The sets on disk that it is made of: itself (`medclip_debias.data.joint`)."""
        return (self,)

    def __len__(self) -> int:
        return int(self.meta["counts"]["images"])

    @cached_property
    def images(self) -> pd.DataFrame:
        """One row per image, in the order of `pixels`: `IMAGE_COLUMNS`."""
        return self._table("images")

    @cached_property
    def studies(self) -> pd.DataFrame:
        """One row per study: `STUDY_COLUMNS`, then one float column per label."""
        return self._table("studies")

    @cached_property
    def frontal(self) -> NDArray[np.bool_]:
        """``[n]``, which images count as frontal (`medclip_debias.data.views.is_frontal`)."""
        views, selection = self.images["view"], self.meta.get("selection")
        listed = tuple(selection.get("views", ())) if isinstance(selection, dict) else ()
        known = {view: is_frontal(str(view), listed) for view in views.unique()}
        return np.array([known[view] for view in views], dtype=bool)

    @cached_property
    def sentences(self) -> pd.DataFrame:
        """One row per sentence and study, in reading order: `SENTENCE_COLUMNS`."""
        return self._table("sentences")

    @cached_property
    def phrases(self) -> pd.DataFrame:
        """One row per phrase: `PHRASE_COLUMNS`; ``boxes`` are lists of ``[x, y, w, h]``.

        ``split`` is the annotations' own (MS-CXR 1.1), empty where they have none.
        """
        table = self._table("phrases")
        boxes = [[[float(v) for v in box] for box in row] for row in table["boxes"]]
        table["boxes"] = pd.Series(boxes, index=table.index, dtype=object)
        return table

    @cached_property
    def masks(self) -> dict[str, Mask]:
        """Masks by phrase, at the size that was annotated; empty where the source has none.

        A mask covers the image that its boxes lie in: where the sizes differ, it is that image
        at another resolution (boxes were scaled, masks are as they came).

        Raises:
            UserError: a mask is damaged.
        """
        if MASK_COLUMN not in self.phrases.columns:
            return {}
        found = {}
        names = zip(self.phrases["phrase_id"], self.phrases[MASK_COLUMN], strict=True)
        for row, (phrase, text) in enumerate(names):
            if text:
                try:
                    found[str(phrase)] = from_coco(text)
                except ValueError as error:
                    raise UserError(
                        f"{self.folder / 'phrases.parquet'}, row {row}: its mask {error}; run"
                        " 'prepare' again."
                    ) from error
        return found

    @cached_property
    def phrase_boxes(self) -> pd.DataFrame:
        """What became of the boxes of each phrase of the source, counted when it was prepared.

        One row per phrase, in the source's order: `PHRASE_BOX_COLUMNS`. ``image_id`` may name no
        image of the set; ``boxes`` counts those that were kept, ``flat``, ``outside`` and
        ``clipped`` are those of `medclip_debias.data.boxes.Fitted`, as are ``scaled`` and
        ``other_shape``.
        """
        columns = list(PHRASE_BOX_COLUMNS)
        return read_table(self.folder / PHRASE_BOXES, "run 'prepare' again", columns)

    @property
    def annotation_names(self) -> tuple[str, ...]:
        """Names of the archive's own tables in the set, as ``progression``."""
        return tuple(self.meta.get("annotations", ()))

    def annotations(self, name: str) -> pd.DataFrame:
        """Return one of the archive's own tables.

        Args:
            name: one of `annotation_names`.

        Raises:
            UserError: the set has no such table.
        """
        if name not in self.annotation_names:
            has = ", ".join(self.annotation_names) or "none"
            raise UserError(f"{self.folder}: its archive had no table '{name}'; it had {has}.")
        return read_table(self.folder / f"{name}.parquet", "run 'prepare' again")

    @cached_property
    def pixels(self) -> NDArray[np.uint8]:
        """Memory-mapped uint8 images ``[n, size, size]``, read-only."""
        shape = (len(self), self.settings.size, self.settings.size)
        if not len(self):  # reports alone; an empty file cannot be mapped
            return np.zeros(shape, dtype=np.uint8)
        return np.memmap(self.folder / "images.bin", dtype=np.uint8, mode="r", shape=shape)

    @cached_property
    def funnel(self) -> list[dict[str, Any]]:
        """Every step that dropped a row: ``step, kept, dropped, unit``."""
        return list(read_json_value(self.folder / "funnel.json", "run 'prepare' again"))

    @property
    def summary(self) -> dict[str, Any]:
        """What two people compare first: the hashes, then the counts."""
        hashes = {name: self.meta[name] for name in ("content_hash", "manifest_hash")}
        return hashes | {"synthetic": self.meta["synthetic"]} | self.meta["counts"]

    @cached_property
    def texts(self) -> list[str]:
        """The distinct sentences, sorted: what `write_scores` needs a log-probability for."""
        return sorted(self.sentences["text"].unique())

    def scores(self, expected_hash: str | None = None) -> dict[str, float]:
        """Return the log-probability of every distinct sentence.

        Args:
            expected_hash: hash of the language model they must come from; ``None`` for any.

        Raises:
            UserError: there are none, they come from another model, or a sentence lacks one.
        """
        folder, command = self.folder, f"run 'score {self.folder} --language-model DIR'"
        for name in ("scores.json", "scores.parquet"):
            if not (folder / name).is_file():
                raise UserError(
                    f"{folder / name}: the sentences have no scores yet; {command} first."
                )
        found = read_json(folder / "scores.json", f"{command} again").get("model_hash")
        if expected_hash is not None and found != expected_hash:
            raise UserError(
                f"{folder / 'scores.json'}: the scores come from the language model {found},"
                f" not from {expected_hash}; {command} again with that model."
            )
        path = folder / "scores.parquet"
        table = read_table(path, f"{command} again")
        if not {"text", "log_prob"} <= set(table.columns):
            raise UserError(f"{path}: column 'text' or 'log_prob' is missing; {command} again.")
        scores = dict(zip(table["text"], table["log_prob"].astype(float), strict=True))
        missing = sum(text not in scores for text in self.texts)
        if missing:
            raise UserError(
                f"{path}: {missing} sentences of the set have no score; {command} again."
            )
        return scores

    @property
    def scored_by(self) -> str:
        """Hash of the language model that scored the sentences."""
        remedy = f"run 'score {self.folder} --language-model DIR' again"
        return str(read_json(self.folder / "scores.json", remedy).get("model_hash"))

    def _table(self, name: str) -> pd.DataFrame:
        path = self.folder / f"{name}.parquet"
        table = read_table(path, "run 'prepare' again")
        missing = [column for column in TABLES[name] if column not in table.columns]
        if missing:
            raise UserError(
                f"{path}: column '{missing[0]}' is missing; the file is damaged or was edited,"
                " run 'prepare' again."
            )
        return table


# -------------------------------------------------------------------------------- scores


def write_scores(
    folder: Path,
    texts: Sequence[str],
    log_probs: Sequence[float] | NDArray[np.floating[Any]],
    tokens: Sequence[int] | NDArray[np.integer[Any]],
    model_hash: str,
) -> None:
    """Store the log-probability of each text beside the prepared set, atomically.

    Args:
        folder: the prepared set.
        texts: distinct sentences.
        log_probs: pseudo-log-likelihood of each, finite.
        tokens: number of tokens of each.
        model_hash: names the language model that gave them.
    """
    if not len(texts) == len(log_probs) == len(tokens):
        raise ValueError("texts, log_probs and tokens must have one entry per text")
    if not np.isfinite(np.asarray(log_probs, dtype=np.float64)).all():
        raise ValueError("log_probs must be finite")
    folder = Path(folder)
    # The hash goes first and last: a run killed in between leaves no scores rather than
    # the new scores under the old model's name.
    (folder / "scores.json").unlink(missing_ok=True)
    table = pd.DataFrame(
        {
            "text": pd.Series(list(texts), dtype="str"),
            "log_prob": np.asarray(log_probs, dtype=np.float64),
            "tokens": np.asarray(tokens, dtype=np.int32),
        }
    )
    with atomic_file(folder / "scores.parquet") as temporary:
        table.to_parquet(temporary, index=False)
    write_json(folder / "scores.json", {"model_hash": model_hash, "sentences": len(texts)})


# --------------------------------------------------------------------------------- files


def _read_meta(folder: Path) -> tuple[dict[str, Any], PrepareSettings]:
    path = folder / "meta.json"
    if not folder.is_dir():
        raise UserError(f"{folder}: there is no such folder; give one that 'prepare' wrote.")
    if not path.is_file():
        raise UserError(
            f"{folder}: this is not a prepared set (it has no meta.json); run 'prepare' first."
        )
    meta = read_json(path, "run 'prepare' again")
    version = meta.get("format_version")
    if version != FORMAT_VERSION:
        raise UserError(
            f"{path}: the set has format version {version}, this program reads version"
            f" {FORMAT_VERSION}; run 'prepare' again."
        )
    try:
        settings = PrepareSettings.model_validate(meta["settings"])
        int(meta["counts"]["images"])
        str(meta["content_hash"])
    except (KeyError, TypeError, ValueError) as error:
        raise UserError(
            f"{path}: the file is damaged or was edited ({type(error).__name__});"
            " run 'prepare' again."
        ) from error
    return meta, settings


def read_table(path: Path, remedy: str, columns: list[str] | None = None) -> pd.DataFrame:
    """Read a table, or some columns of it.

    Raises:
        UserError: it cannot be read; ``remedy`` says what to do.
    """
    try:
        return parquet.read_parquet(path, columns)
    except (OSError, ValueError) as error:  # pyarrow's errors are subclasses of these
        raise UserError(
            f"{path}: cannot be read as a table ({type(error).__name__}); {remedy}."
        ) from error
