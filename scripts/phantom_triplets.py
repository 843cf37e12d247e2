"""Report triplets of a phantom for `evaluate --triplets`, made from its truth."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from medclip_debias.errors import EXIT_CODE, UserError
from medclip_debias.phantom.triplets import write_triplets


def main(words: Sequence[str] | None = None) -> int:
    """Write the table and print what was made; exit code 2 for what cannot be used.

    Args:
        words: of the command line; by default those of this process.
    """
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("phantom", type=Path, help="folder of a phantom, in any layout")
    parser.add_argument("out", type=Path, help="table to write (CSV)")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args(words)
    try:
        made = write_triplets(given.phantom, given.out, given.seed)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return EXIT_CODE
    counts = {"without_finding": made.without_finding, "nothing_left": made.nothing_left}
    print(json.dumps({"triplets": len(made.table), **counts}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
