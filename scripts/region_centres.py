"""How much the place of the regions matters: receptive-field centres against patches.

Evaluates one model twice on one prepared set, once with every region at the centre of its
receptive field (what this project does), once as if the grid cut the input into patches (what
upsampling a feature map to the image amounts to). Nothing else differs.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from medclip_debias.errors import EXIT_CODE, UserError
from medclip_debias.evaluation.catalogue import METRICS
from medclip_debias.evaluation.evaluate import evaluate
from medclip_debias.models.dual_encoder import DualEncoder
from medclip_debias.models.region_grid import RegionGrid


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("prepared", type=Path)
    parser.add_argument("--split", default="test")
    given = parser.parse_args(words)
    try:
        if (given.model / "peer.yaml").is_file():
            raise UserError(f"{given.model}: is another group's model; give one trained here.")
        fields = metrics(given.model, given.prepared, given.split)
        with regions_as_patches():
            patches = metrics(given.model, given.prepared, given.split)
    except UserError as error:
        print(error, file=sys.stderr)
        return EXIT_CODE
    print(f"{'':32}{'fields':>10}{'patches':>10}")
    for name, value in fields.items():
        if name.startswith("skipped."):
            print(f"Not measured: {name.removeprefix('skipped.')}. {value}")
        else:
            print(f"{name:32}{cell(value):>10}{cell(patches[name]):>10}")
    return 0


def metrics(model: Path, prepared: Path, split: str) -> dict[str, Any]:
    """The main metrics of an evaluation that leaves nothing behind, and what was skipped."""
    with tempfile.TemporaryDirectory() as out:
        results = evaluate(model, prepared, Path(out), split=split, bootstrap=0, heatmaps=0)
    shown = {
        f"{metric.protocol}.{metric.name}": results.value(metric.protocol, metric.name)
        for metric in METRICS
        if metric.terminal and metric.protocol in results.protocols
    }
    return shown | {f"skipped.{part}": reason for part, reason in results["skipped"].items()}


@contextmanager
def regions_as_patches() -> Iterator[None]:
    """Models place their regions as if the grid cut the input into patches."""
    before = DualEncoder.__dict__["grid"]

    def patches(model: DualEncoder) -> RegionGrid:
        grid = before.fget(model)
        return RegionGrid.patches(grid.rows, grid.columns, model.preprocessing.input_size)

    DualEncoder.grid = property(patches)  # type: ignore[assignment, method-assign]
    try:
        yield
    finally:
        DualEncoder.grid = before  # type: ignore[method-assign]


def cell(value: float | None) -> str:
    """A metric; a dash where there is none."""
    return "-" if value is None else f"{value:.4f}"


if __name__ == "__main__":
    sys.exit(main())
