"""Write what the documentation holds of the code: results' schema, metrics, label maps, cards."""

from __future__ import annotations

from pathlib import Path

from cards_page import page as cards_page
from medclip_debias.data.label_maps import page as label_maps_page
from medclip_debias.evaluation.catalogue import page
from medclip_debias.evaluation.schema import json_schema
from medclip_debias.files import write_text

DOCS = Path(__file__).parents[1] / "docs"
WRITTEN = {
    "results.schema.json": json_schema,
    "metrics.md": page,
    "label_maps.md": label_maps_page,
    "cards.md": cards_page,
}

if __name__ == "__main__":
    for name, text in WRITTEN.items():
        write_text(DOCS / name, text())
        print(DOCS / name)
