"""Settings and their hashes."""

from __future__ import annotations

from medclip_debias.config import settings_hash
from medclip_debias.training.settings import TrainSettings


def test_equal_settings_have_equal_hashes_and_others_do_not():
    assert settings_hash(TrainSettings()) == settings_hash(TrainSettings(lr=1e-5))
    assert settings_hash(TrainSettings()) != settings_hash(TrainSettings(lr=2e-5))
