"""The comparison that `demo` leaves beside a run: other objectives, of equal seed and length."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from medclip_debias.errors import UserError
from medclip_debias.files import read_json
from medclip_debias.reporting.forest import forest
from medclip_debias.reporting.plots import inline
from medclip_debias.reporting.run_files import check_own
from medclip_debias.reporting.tables import comparison_table, seeds_sentence

FILE = Path("beside") / "comparison.json"


def comparison_part(run: Path) -> dict[str, Any] | None:
    """The plot, the table and the sentence on seeds of ``RUN/beside/comparison.json``, if any.

    Raises:
        UserError: the file is no comparison.
    """
    path = run / FILE
    check_own(path.parent)
    check_own(path)
    if not path.is_file():
        return None
    content = read_json(path, "run 'medclip-debias compare' again")
    try:
        label = f"Differences to {content['baseline']} with 95% intervals; numbers in the table"
        return {
            "baseline": content["baseline"],
            "labels": [group["label"] for group in content["groups"]],
            "plot": inline(forest(content)["svg"], label),
            "table": comparison_table(content),
            "seeds": seeds_sentence(content),
        }
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise UserError(
            f"{path}: is not a file of 'compare'; run 'medclip-debias compare' again, or remove it."
        ) from error
