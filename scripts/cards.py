"""Lists that cards need and that may not be shared, made of an archive's own files by a rule."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from medclip_debias.bench.selections import five_by_count, single_box
from medclip_debias.data.sources.detect import detect
from medclip_debias.errors import EXIT_CODE, UserError


def main(words: Sequence[str] | None = None) -> int:
    """Write a list and print what was taken; exit code 2 for what cannot be used.

    Args:
        words: of the command line; by default those of this process.
    """
    parser = argparse.ArgumentParser(description=__doc__)
    rules = parser.add_subparsers(dest="rule", required=True)
    five = rules.add_parser("five-by-200", help="images of one class of five each")
    five.add_argument("archive", type=Path, help="folder of CheXpert, CheXpert Plus or MIMIC-CXR")
    five.add_argument("out", type=Path, help="CSV to write: five_by_200.csv in that folder")
    five.add_argument("--kind", default="auto", help="of source, as prepare --kind takes it")
    five.add_argument("--count", type=int, default=200)
    five.add_argument("--seed", type=int, default=0)
    single = rules.add_parser("single-box", help="images of MS-CXR with one box in all")
    single.add_argument("phrases", type=Path, help="MS_CXR_Local_Alignment_v1.1.0.json")
    single.add_argument("out", type=Path, help="JSON to write: ms_cxr_single_box.json beside it")
    single.add_argument("--split", default="test")
    given = parser.parse_args(words)
    try:
        if given.rule == "single-box":
            found: object = single_box(given.phrases, given.out, given.split)
        else:
            source = detect(given.archive, given.kind)
            found = five_by_count(source, given.out, count=given.count, seed=given.seed)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return EXIT_CODE
    print(json.dumps(found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
