"""Learned numbers that stay within bounds and are never stuck at them.

A plain ``clamp`` has gradient 0 at and beyond its bounds, so a parameter that a few steps carried
there never learns again. Two things keep it alive: `within` lets every gradient through that leads
back inside, and `keep_in_bounds` puts the parameter itself back after each step of the optimiser.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn


class _Within(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, low: float, high: float) -> Tensor:
        ctx.save_for_backward(x)
        ctx.bounds = low, high
        return x.clamp(low, high)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        (x,) = ctx.saved_tensors
        low, high = ctx.bounds
        # A step goes against the gradient: below, a positive one would lead further out.
        outwards = ((x < low) & (gradient > 0)) | ((x > high) & (gradient < 0))
        return torch.where(outwards, torch.zeros_like(gradient), gradient), None, None


def within(x: Tensor, low: float, high: float) -> Tensor:
    """``x`` cut to ``[low, high]``; its gradient is 0 only where a step would lead further out.

    Between the bounds, value and gradient are bit for bit those of ``x.clamp(low, high)``.

    Args:
        x: of any shape.
        low: lower bound.
        high: upper bound.

    Example:
        >>> x = torch.tensor(120.0, requires_grad=True)
        >>> within(x, 1.0, 100.0).backward()  # less of it would be better: the step leads back
        >>> x.grad
        tensor(1.)
    """
    result: Tensor = _Within.apply(x, low, high)
    return result


class Bounded:
    """Base of the modules whose learned numbers have bounds."""

    def keep_in_bounds(self) -> None:
        """Put the parameters back within their bounds, in place; inside nothing changes."""
        raise NotImplementedError


@torch.no_grad()
def keep_in_bounds(modules: Iterable[nn.Module]) -> None:
    """Put every bounded parameter of ``modules`` back; call it after each optimiser step.

    It is a function of the parameters alone, so processes with equal parameters stay equal.
    """
    for module in modules:
        for part in module.modules():
            if isinstance(part, Bounded):
                part.keep_in_bounds()
