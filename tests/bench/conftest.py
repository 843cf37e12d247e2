"""The scripts of scripts/bench can be imported by their tests."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[2] / "scripts" / "bench"))
