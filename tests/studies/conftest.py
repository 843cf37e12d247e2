"""The batches of the losses' own tests, for the objective that a study brings."""

from tests.losses.conftest import make_batch

__all__ = ["make_batch"]
