"""From the per-item tables of an evaluation back to its metrics, under any weights of the items.

What `results.json` says is the case of equal weights; a bootstrap over two runs needs the rest.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from medclip_debias.evaluation.bootstrap import (
    Floats,
    Statistics,
    mean_where_known,
    weighted_mean,
    weighted_median,
)
from medclip_debias.evaluation.catalogue import of_protocol
from medclip_debias.evaluation.protocol import Protocol
from medclip_debias.evaluation.protocols.laterality import LateralityProtocol, side_statistics
from medclip_debias.evaluation.protocols.phrase_grounding import PhraseGrounding
from medclip_debias.evaluation.protocols.progression import (
    ProgressionProtocol,
    progression_statistics,
)
from medclip_debias.evaluation.protocols.report_triplets import (
    SHARES,
    ReportTriplets,
    share_statistics,
)
from medclip_debias.evaluation.protocols.retrieval import RECALLS, BoxRetrieval
from medclip_debias.evaluation.protocols.segmentation import (
    ITEM_METRICS,
    Segmentation,
    mask_statistics,
)
from medclip_debias.evaluation.protocols.sentence_boxes import SentenceBoxes, sentence_statistics
from medclip_debias.evaluation.protocols.study_retrieval import StudyRetrieval
from medclip_debias.evaluation.protocols.zero_shot import ZeroShot
from medclip_debias.evaluation.zero_shot import SideScores, class_statistics


def zero_shot_statistics(results: Mapping[str, Any], table: pd.DataFrame) -> Statistics:
    """The zero-shot metrics of ``items/zero_shot.parquet``.

    Args:
        results: what the run's results say beside its metrics: the scale of its probabilities,
            its thresholds.
        table: columns ``score.CLASS`` and ``label.CLASS``; ``positive.CLASS`` and
            ``negative.CLASS`` too, but in tables of earlier versions, which have no metric of
            one side.
    """
    scores, truth = class_columns(table)
    sides = side_columns(table)
    thresholds = {
        name: float(value)
        for name, part in (results.get("classes") or {}).items()
        if (value := (part.get("threshold") or {}).get("value")) is not None
    }
    scale = results.get("scale")
    return lambda weights: class_statistics(
        scores, truth, weights, None if scale is None else float(scale), thresholds, sides
    )


def side_columns(table: pd.DataFrame) -> SideScores | None:
    """Scores of the two sides of every class; None where the table does not have them."""
    found: dict[str, dict[str, Floats]] = {"positive": {}, "negative": {}}
    for column in map(str, table.columns):
        side, dot, name = column.partition(".")
        if dot and side in found:
            found[side][name] = table[column].to_numpy(dtype=np.float64)
    if not found["positive"] or found["positive"].keys() != found["negative"].keys():
        return None
    return SideScores(found["positive"], found["negative"])


def class_columns(table: pd.DataFrame) -> tuple[dict[str, Floats], dict[str, Floats]]:
    """Score differences and labels of the classes that have both labels."""
    scores: dict[str, Floats] = {}
    truth: dict[str, Floats] = {}
    for column in table.columns:
        name = str(column).removeprefix("label.")
        if not str(column).startswith("label."):
            continue
        labels = table[column].to_numpy(dtype=np.float64)
        if (labels == 1).any() and (labels == 0).any():
            truth[name] = labels
            scores[name] = table[f"score.{name}"].to_numpy(dtype=np.float64)
    return scores, truth


def phrase_statistics(results: Mapping[str, Any], table: pd.DataFrame) -> Statistics:
    """The grounding metrics of the groundable phrases in ``items/phrases.parquet``."""
    del results
    yes = table["groundable"].to_numpy(dtype=bool)
    values = {
        metric.name: table[metric.item].to_numpy(dtype=np.float64)[yes]
        for metric in of_protocol("grounding")
        if metric.compared and metric.item in table.columns
    }
    return lambda weights: {
        name: mean_where_known(found, weights[:, yes]) for name, found in values.items()
    }


def asked_statistics(results: Mapping[str, Any], table: pd.DataFrame) -> Statistics:
    """The metrics of ``items/sentence_boxes.parquet``."""
    del results
    return sentence_statistics(table)


def rank_statistics(results: Mapping[str, Any], table: pd.DataFrame) -> Statistics:
    """Recall and median rank (strict) of the ranks in a retrieval's item table."""
    del results
    ways = [
        table[f"rank_{way}_strict"].to_numpy(dtype=np.float64)
        for way in ("text_to_image", "image_to_text")
    ]

    def statistics(weights: Floats) -> dict[str, Floats]:
        hits = [weighted_mean(ranks <= k, weights) for ranks in ways for k in RECALLS]
        medians = [weighted_median(ranks, weights) for ranks in ways]
        return {"recall": np.mean(hits, axis=0), "median_rank": np.mean(medians, axis=0)}

    return statistics


def triplet_statistics(results: Mapping[str, Any], table: pd.DataFrame) -> Statistics:
    """The shares of ``items/triplets.parquet``."""
    del results
    return share_statistics({name: table[name].to_numpy(dtype=np.float64) for name in SHARES})


def laterality_statistics(results: Mapping[str, Any], table: pd.DataFrame) -> Statistics:
    """The share of ``items/laterality.parquet``."""
    del results
    return side_statistics(table["right_side"].to_numpy(dtype=np.float64))


def segmentation_statistics(results: Mapping[str, Any], table: pd.DataFrame) -> Statistics:
    """The metrics of ``items/masks.parquet`` that need no threshold of the test."""
    del results
    values = {
        name: table[name].to_numpy(dtype=np.float64)
        for name in ITEM_METRICS
        if name in table.columns
    }
    return mask_statistics(table["category"].tolist(), values)


def change_statistics(results: Mapping[str, Any], table: pd.DataFrame) -> Statistics:
    """The metrics of ``items/progression.parquet``."""
    del results
    columns = (table[name].to_numpy(dtype=np.float64) for name in ("hit", "hit_current", "change"))
    states = table["state"].to_numpy(dtype=np.int64)
    return progression_statistics(table["finding"].tolist(), states, *columns)


@dataclass(frozen=True)
class Items:
    """How the item table of a protocol is read.

    Attributes:
        protocol: that writes it.
        statistics: from the protocol's details in the results and the table to its metrics.
        truth: beginnings of the columns that no model decides, equal in every run on a set.
    """

    protocol: type[Protocol]
    statistics: Callable[[Mapping[str, Any], pd.DataFrame], Statistics]
    truth: tuple[str, ...] = ()

    @property
    def file(self) -> str:
        """Its name under ``items/``, without ending."""
        return self.protocol.items_name


ITEMS = {
    items.protocol.name: items
    for items in (
        Items(ZeroShot, zero_shot_statistics, ("label.",)),
        Items(PhraseGrounding, phrase_statistics, ("groundable", "area")),
        Items(SentenceBoxes, asked_statistics, ("kind", "there", "truths")),
        Items(BoxRetrieval, rank_statistics),
        Items(StudyRetrieval, rank_statistics),
        Items(ReportTriplets, triplet_statistics),
        Items(LateralityProtocol, laterality_statistics),
        Items(Segmentation, segmentation_statistics, ("area",)),
        Items(ProgressionProtocol, change_statistics, ("state",)),
    )
}
