"""A model of generated images says so before anything else than generated images."""

from __future__ import annotations

import pytest

from medclip_debias.models.synthetic import WARNING, synthetic_warning, trained_on_synthetic


@pytest.mark.parametrize(
    ("provenance", "expected"),
    [
        ({"synthetic": True}, True),
        ({"synthetic": False}, False),
        ({"data": {"kind": "mimic_cxr", "synthetic": True}}, True),
        ({"synthetic": False, "data": {"synthetic": True}}, False),
        ({"synthetic": "unknown"}, "unknown"),
        ({"synthetic": None, "data": "mimic_cxr"}, "unknown"),
        ({}, "unknown"),
    ],
)
def test_what_a_model_was_trained_on(provenance, expected):
    assert trained_on_synthetic(provenance) == expected
    warned = WARNING if expected is True else None
    assert synthetic_warning(provenance) == warned
    assert synthetic_warning(provenance, False) == warned
    assert synthetic_warning(provenance, True) is None
