"""Whole-study retrieval at full size: seconds of each step, and the memory it takes.

Scores are random, since their values do not change the time: 3,000 studies whose reports hold 1
to 8 sentences of a pool in which few are frequent and most are rare, so that many reports share
sentences and some are equal. Timed is everything after the encoding, with intervals.
"""

from __future__ import annotations

import argparse
import resource
import time
from collections.abc import Callable
from itertools import pairwise
from typing import TypeVar

import numpy as np

from medclip_debias.evaluation.metrics import first_relevant_rank
from medclip_debias.evaluation.protocol import Draw
from medclip_debias.evaluation.protocols.retrieval import (
    paired_ranks,
    summarise_modes,
    summarise_ranks,
)
from medclip_debias.evaluation.protocols.study_retrieval import (
    REPORT_WAYS,
    SENTENCE_WAYS,
    class_precision,
    report_scores,
    target_ranks,
)

T = TypeVar("T")
POOL = 40_000  # sentences to draw from, the n-th with weight 1 / n


def made(studies: int, seed: int) -> tuple[np.ndarray, list[list[int]], np.ndarray]:
    """Scores ``[studies, sentences]``, the columns of each report, and five labels a study."""
    rng = np.random.default_rng(seed)
    weights = 1 / np.arange(1, POOL + 1)
    reports = [
        np.unique(rng.choice(POOL, size=int(count), p=weights / weights.sum()))
        for count in rng.integers(1, 9, studies)
    ]
    used, columns = np.unique(np.concatenate(reports), return_inverse=True)
    bounds = np.cumsum([0, *map(len, reports)])
    reports = [columns[a:b].tolist() for a, b in pairwise(bounds)]
    scores = rng.normal(0, 0.1, (studies, len(used))).astype(np.float32)
    for study, own in enumerate(reports):
        scores[study, own] += 0.2
    return scores, reports, rng.random((studies, 5)) < 0.15


def main() -> None:
    """Time the steps and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--studies", type=int, default=3000)
    parser.add_argument("--bootstrap", type=int, default=1000)
    options = parser.parse_args()
    scores, reports, positive = made(options.studies, seed=0)
    patients = [f"p{study // 2}" for study in range(options.studies)]
    same = [" ".join(map(str, columns)) for columns in reports]
    draw = Draw(options.bootstrap, 0)
    says = np.zeros(scores.shape, dtype=bool)
    for study, columns in enumerate(reports):
        says[study, columns] = True
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    spent: dict[str, float] = {}

    def timed(name: str, step: Callable[[], T]) -> T:
        began = time.perf_counter()
        found = step()
        spent[name] = time.perf_counter() - began
        return found

    table = timed("scores of reports", lambda: report_scores(scores, reports))
    ranks = timed(
        "ranks of image and report, strict and lenient",
        lambda: paired_ranks(table, same, REPORT_WAYS),
    )
    report = timed("their metrics, with intervals", lambda: summarise_modes(ranks, patients, draw))
    study, sentence = np.nonzero(says)
    pairs = [patients[number] for number in study]
    strict = timed(
        "ranks of image and sentence, strict",
        lambda: {
            SENTENCE_WAYS[0]: target_ranks(scores.T, sentence, study),
            SENTENCE_WAYS[1]: target_ranks(scores, study, sentence),
        },
    )
    timed(
        "ranks of image and sentence, lenient",
        lambda: (first_relevant_rank(scores.T, says.T), first_relevant_rank(scores, says)),
    )
    timed(
        "metrics of the strict ones, with intervals",
        lambda: summarise_ranks(strict, dict.fromkeys(SENTENCE_WAYS, pairs), draw),
    )
    timed(
        "precision by class, both ways, with intervals",
        lambda: [class_precision(t, positive, patients, draw) for t in (table.T, table)],
    )
    after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    print(
        f"{options.studies} studies, {scores.shape[1]} distinct sentences, "
        f"{len(set(same))} distinct reports, {len(study)} pairs, {options.bootstrap} resamples"
    )
    print("| step | seconds |\n| --- | ---: |")
    for name, seconds in spent.items():
        print(f"| {name} | {seconds:.2f} |")
    print(f"| together | {sum(spent.values()):.2f} |")
    print(f"\nScores: {scores.nbytes / 2**20:.0f} MiB; on top of them up to ", end="")
    print(f"{(after - before) / 1024:.0f} MiB. Recall {report['strict']['recall']:.3f}.")


if __name__ == "__main__":
    main()
