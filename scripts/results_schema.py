"""Write docs/results.schema.json, the JSON Schema of ``results.json``."""

from __future__ import annotations

from pathlib import Path

from medclip_debias.evaluation.schema import json_schema
from medclip_debias.files import write_text

if __name__ == "__main__":
    path = Path(__file__).parents[1] / "docs" / "results.schema.json"
    write_text(path, json_schema())
    print(path)
