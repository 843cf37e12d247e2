"""The device that a model computes on."""

from __future__ import annotations

import torch

from medclip_debias.errors import UserError


def best_device(name: str | torch.device = "auto") -> torch.device:
    """The device called ``name``; ``auto`` takes a GPU when there is one."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.zeros(1, device=device)
    except (RuntimeError, AssertionError) as error:
        raise UserError(f"device '{name}' cannot be used here; try auto or cpu.") from error
    return device
