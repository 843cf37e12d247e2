"""The batches of the losses' own tests, for the objective that a study brings."""

from __future__ import annotations

from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

_spec = spec_from_file_location("losses_conftest", Path(__file__).parents[1] / "losses/conftest.py")
assert _spec is not None
assert _spec.loader is not None
_losses = module_from_spec(_spec)
_spec.loader.exec_module(_losses)

make_batch = _losses.make_batch
