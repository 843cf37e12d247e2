"""Time to parse reports and cut them into sentences on one core, and what MIMIC-CXR then takes.

    OMP_NUM_THREADS=1 python scripts/bench/reports.py PATH

PATH is any source that `medclip-debias prepare` takes, such as ``NLMCXR_reports.tgz``. Each round
starts with an empty cache, and one way (PySBD asked for every sentence anew) has no cache at all:
larger sets repeat themselves more, so the truth lies between the two.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from statistics import median

from common import ROUNDS

from medclip_debias.data.sources.detect import detect
from medclip_debias.data.text import sentences
from medclip_debias.data.text.reports import report_sentences, sections

STUDIES, CORES, GOAL = 227_835, 8, 15  # MIMIC-CXR; minutes


def main() -> None:
    """Print a Markdown table of milliseconds a report and minutes for MIMIC-CXR."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("source", type=Path)
    parser.add_argument("--every", type=int, default=1, help="take each n-th report")
    chosen = parser.parse_args()
    reports = [s.report for s in detect(chosen.source).studies() if s.report][:: chosen.every]
    segment = sentences._segment
    report_sentences(reports[0])  # imports

    def cached() -> None:
        segment.cache_clear()
        for report in reports:
            report_sentences(report)

    def uncached() -> None:
        sentences._segment = segment.__wrapped__
        for report in reports:
            report_sentences(report)
        sentences._segment = segment

    def sections_alone() -> None:
        for report in reports:
            sections(report)

    ways = {
        "sections alone": sections_alone,
        "sections and sentences": cached,
        "the same without the cache": uncached,
    }
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(ROUNDS):
        for name, way in ways.items():
            start = time.process_time()
            way()
            seconds[name].append((time.process_time() - start) / len(reports))
    print(f"{len(reports)} reports, medians of {ROUNDS}; goal: {GOAL} minutes on {CORES} cores\n")
    print(
        f"| way | ms a report | minutes for {STUDIES:,} on {CORES} cores |\n| --- | ---: | ---: |"
    )
    for name, values in seconds.items():
        each = median(values)
        print(f"| {name} | {1000 * each:.3f} | {each * STUDIES / CORES / 60:.2f} |")


if __name__ == "__main__":
    main()
