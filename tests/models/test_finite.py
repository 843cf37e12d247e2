"""Values of a model that are no numbers."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from medclip_debias.models.finite import NotFiniteError, finite


def test_numbers_pass_as_they_are():
    values = torch.tensor([[1.5, -2.0]], dtype=torch.bfloat16)
    assert finite(values, "here").dtype == np.float32
    assert finite(values, "here").tolist() == [[1.5, -2.0]]


def test_other_values_are_counted_and_said():
    values = torch.tensor([0.0, torch.nan, torch.inf, -torch.inf])
    with pytest.raises(NotFiniteError, match=r"^here: 3 of 4 values"):
        finite(values, "here")
