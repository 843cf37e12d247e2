"""Bad inputs that a user may give, by the kind of file (played by tests/test_bad_inputs.py)."""

from __future__ import annotations

import importlib
from pathlib import Path

for _module in sorted(Path(__file__).parent.glob("*_cases.py")):
    importlib.import_module(f"bad_inputs.{_module.stem}")
