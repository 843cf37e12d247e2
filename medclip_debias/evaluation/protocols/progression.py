"""Progression: did a finding improve, stay or worsen between two images of one patient?

The task is MS-CXR-T's (Bannur et al. 2023, "Learning to Exploit Temporal Structure for Biomedical
Vision-Language Processing"): pairs of images, five findings, three states, macro accuracy. Their
model reads both images at once; one of single images is asked in three ways.

- ``macro_accuracy``: the state whose sentences ("X has worsened") gained most from the earlier
  image to the later one.
- ``macro_accuracy_current``: the state whose sentences score highest on the later image alone:
  what its looks give away without the earlier one.
- ``order_auc``: whether "X" minus "no X" rose more in pairs that worsened than in those that
  improved. No state's sentence is needed, and none can be preferred for its words.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from medclip_debias.data.prompts import PromptSet
from medclip_debias.data.sources.progression import STATES, TABLE
from medclip_debias.data.store import PreparedSet
from medclip_debias.errors import UserError
from medclip_debias.evaluation.bootstrap import (
    Statistics,
    mean_of_defined,
    weighted_auc,
    weighted_mean,
)
from medclip_debias.evaluation.metrics import highest_shares
from medclip_debias.evaluation.protocol import (
    HELD_OUT,
    Draw,
    Measured,
    NotAsked,
    Request,
    ScoreProtocol,
    Skipped,
    columns_of,
    patients_of,
)

Floats = NDArray[np.float64]
SENTENCES: Mapping[str, tuple[str, ...]] = {
    "improving": ("{} has improved", "{} has decreased"),
    "stable": ("{} is unchanged", "{} is stable"),
    "worsening": ("{} has worsened", "{} has increased"),
}
"""What is said of a finding in each state; several are averaged after scoring."""
PRESENT, ABSENT = ("{}",), ("No {}",)
"""What is said of one that the prompt set does not name."""
METRICS = ("macro_accuracy", "macro_accuracy_current", "order_auc")


class Change(NamedTuple):
    """A finding of a pair: rows of the earlier and the later image, and the place of its state."""

    earlier: int
    later: int
    finding: str
    state: int


def progression_statistics(
    findings: Sequence[str],
    states: NDArray[np.integer],
    hits: Floats,
    hits_current: Floats,
    change: Floats,
) -> Statistics:
    """`METRICS` and those of each finding as ``FINDING/METRIC``, under any weights.

    The accuracy of a finding is the mean over the states that it has of the share of right
    answers; the whole is the mean over findings. Items have a ``finding``, the place of their
    state in `STATES`, what counts for each (1, 0, or a tie's part), and the change of "X" minus
    "no X" from the earlier to the later image.
    """
    names, distinct = np.asarray(findings, dtype=object), sorted(set(findings))

    def statistics(weights: Floats) -> dict[str, Floats]:
        result: dict[str, Floats] = {}
        for name in distinct:
            own = names == name
            members = [own & (states == state) for state in sorted(set(states[own].tolist()))]
            for metric, right in zip(METRICS, (hits, hits_current), strict=False):
                shares = [weighted_mean(right[part], weights[:, part]) for part in members]
                result[f"{name}/{metric}"] = mean_of_defined(shares)
            ends = own & (states != STATES.index("stable"))
            worse = states[ends] == STATES.index("worsening")
            result[f"{name}/order_auc"] = (
                weighted_auc(worse, change[ends], weights[:, ends])
                if worse.any() and not worse.all()
                else np.full(len(weights), np.nan)
            )
        for metric in METRICS:
            result[metric] = mean_of_defined([result[f"{name}/{metric}"] for name in distinct])
        return result

    return statistics


def right_state(scores: Floats, states: NDArray[np.integer]) -> Floats:
    """1, 0, or the right state's part of a tie ``[n]``, of the states' scores ``[n, 3]``."""
    return np.asarray(highest_shares(scores)[np.arange(len(states)), states])


class ProgressionProtocol(ScoreProtocol):
    """The protocol on the pairs of a set's table of progressions."""

    name = file = "progression"
    truth = ("state",)

    def __init__(self, request: Request) -> None:
        data = self._data = request.data
        if TABLE not in data.annotation_names:
            raise NotAsked("The set's archive has no table of progressions.")
        table = data.annotations(TABLE)
        columns = ["previous_image_id", "image_id", "finding", "progression"]
        if not set(columns) <= set(table.columns):
            raise _damaged(data)
        row_of = {str(name): row for row, name in enumerate(data.images["image_id"])}
        splits = data.images["split"].tolist()
        frontal = data.frontal | (request.options.views == "all")
        self._left_out = {"other_splits": 0, "other_views": 0}
        self._changes: list[Change] = []
        cells = table[columns].astype(str).itertuples(index=False, name=None)
        for row, (before, now, finding, state) in enumerate(cells):
            if state not in STATES or before not in row_of or now not in row_of:
                raise _damaged(data, f", row {row}")
            pair = row_of[before], row_of[now]
            if any(splits[image] not in (request.split, HELD_OUT) for image in pair):
                self._left_out["other_splits"] += 1
            elif not all(frontal[image] for image in pair):
                self._left_out["other_views"] += 1
            else:
                self._changes.append(Change(*pair, finding, STATES.index(state)))
        if not self._changes:
            raise Skipped(
                f"None of the set's {len(table)} progressions can be judged:"
                f" {self._left_out['other_splits']} are on images of other splits than"
                f" '{request.split}' and '{HELD_OUT}', {self._left_out['other_views']} on images"
                " that are not frontal (views: all takes them)."
            )
        findings = sorted({change.finding for change in self._changes})
        self._said = {name: _sentences(name, request.prompts) for name in findings}
        self.texts = list(dict.fromkeys(t for said in self._said.values() for s in said for t in s))
        self.rows = frozenset(row for c in self._changes for row in (c.earlier, c.later))

    def measure(self, draw: Draw) -> Measured:
        def scores(rows: Sequence[int]) -> Floats:
            """Mean score of each side's sentences ``[changes, states, present, absent]``."""
            means = [
                [
                    self.scores[row][[self.column[text] for text in side]].mean()
                    for side in self._said[change.finding]
                ]
                for row, change in zip(rows, self._changes, strict=True)
            ]
            return np.array(means).astype(np.float64)

        later = scores([change.later for change in self._changes])
        gained = later - scores([change.earlier for change in self._changes])
        count, names = len(STATES), self._data.images["image_id"].tolist()
        states = np.array([change.state for change in self._changes])
        findings = [change.finding for change in self._changes]
        items = pd.DataFrame(
            {
                "id": [f"{names[c.earlier]}:{names[c.later]}:{c.finding}" for c in self._changes],
                "patient": patients_of(self._data, [change.later for change in self._changes]),
                "finding": findings,
                "state": states,
                "hit": right_state(gained[:, :count], states),
                "hit_current": right_state(later[:, :count], states),
                "change": gained[:, count] - gained[:, count + 1],
            }
        )
        counts = Counter(zip(findings, states.tolist(), strict=True))
        ends = {
            f"{name}/order_auc": better + worse
            for name in self._said
            if (better := counts[name, STATES.index("improving")])
            and (worse := counts[name, STATES.index("worsening")])
        }
        details = {
            "classes": {
                name: {state: counts[name, number] for number, state in enumerate(STATES)}
                for name in self._said
            },
            "progressions": len(states),
            "pairs": len({(change.earlier, change.later) for change in self._changes}),
            "patients": items["patient"].nunique(),
            "sentences": {
                name: dict(zip((*STATES, "present", "absent"), map(list, sides), strict=True))
                for name, sides in self._said.items()
            },
            **self._left_out,
        }
        fewer = ends | {"order_auc": sum(ends.values())}
        return self.measured(draw, items, details, findings, fewer)

    @classmethod
    def statistics(cls, details: Mapping[str, Any], items: pd.DataFrame) -> Statistics:
        del details
        states = items["state"].to_numpy(dtype=np.int64)
        columns = columns_of(items, "hit", "hit_current", "change")
        return progression_statistics(items["finding"].tolist(), states, *columns)


def _damaged(data: PreparedSet, where: str = "") -> UserError:
    path = data.folder / f"{TABLE}.parquet"
    return UserError(f"{path}{where}: is damaged or was edited; run 'prepare' again.")


def _sentences(finding: str, prompts: PromptSet) -> tuple[tuple[str, ...], ...]:
    """What is said of a finding in each of `STATES`, when it is there, and when it is not."""

    def filled(texts: Sequence[str]) -> tuple[str, ...]:
        sentences = [text.format(finding) for text in texts]
        return tuple(f"{sentence[:1].upper()}{sentence[1:]}" for sentence in sentences)

    of_states = [filled(SENTENCES[state]) for state in STATES]
    own = next((s for name, s in prompts.classes.items() if name.lower() == finding), None)
    sides = (filled(PRESENT), filled(ABSENT)) if own is None else (own.positive, own.negative)
    return (*of_states, *sides)
