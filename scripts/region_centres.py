"""How much the place of the regions matters: receptive-field centres against patches.

Evaluates one model twice on one prepared set, once with every region at the centre of its
receptive field (what this project does), once as if the grid cut the input into patches (what
upsampling a feature map to the image amounts to). Nothing else differs.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

from medclip_debias.evaluation.evaluate import evaluate, headline
from medclip_debias.models.dual_encoder import DualEncoder
from medclip_debias.models.region_grid import RegionGrid


def main() -> None:
    """Print the figures of both placements side by side."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("prepared", type=Path)
    options = parser.parse_args()
    fields = DualEncoder.grid

    def patches(model: DualEncoder) -> RegionGrid:
        grid = fields.fget(model)
        return RegionGrid.patches(grid.rows, grid.columns, grid.stride * grid.columns)

    figures = []
    for place in (fields, property(patches)):
        DualEncoder.grid = place  # type: ignore[method-assign]
        with tempfile.TemporaryDirectory() as out:
            results = evaluate(options.model, options.prepared, Path(out), bootstrap=0, heatmaps=0)
        figures.append(headline(results))
    print(f"{'':32}{'fields':>10}{'patches':>10}")
    for name, value in figures[0].items():
        print(f"{name:32}{value:10.4f}{figures[1][name]:10.4f}")


if __name__ == "__main__":
    main()
