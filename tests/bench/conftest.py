"""The scripts of scripts/bench can be imported by their tests."""

import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[2] / "scripts" / "bench"))


@pytest.fixture(scope="session")
def toy_data(tmp_path_factory):
    """A phantom with all that a step at toy size needs: do not write to it."""
    import train_step

    folder = tmp_path_factory.mktemp("bench")
    train_step.make_data(folder, train_step.SMALL)
    return folder
