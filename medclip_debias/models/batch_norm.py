"""Batch norm for steps that are cut into micro-batches or shared by processes.

Cached gradients run every micro-batch forward twice. `StepBatchNorm2d` moves the running statistics
once a step, by the mean over all micro-batches, and can take the statistics of its input over all
processes (as torch's SyncBatchNorm, which has no CPU form).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn


class _Sum(torch.autograd.Function):
    """Sum over the processes; the gradient is summed over them as well."""

    @staticmethod
    def forward(_: Any, value: Tensor) -> Tensor:
        total = value.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(total)
        return total

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(_: Any, gradient: Tensor) -> Tensor:
        total = gradient.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(total)
        return total


class StepBatchNorm2d(nn.BatchNorm2d):
    """Batch norm with torch's parameters and names, for use by the training step.

    In training mode a forward pass normalises by its input, over all processes if ``synchronised``,
    and notes its statistics if ``remember``; `finish_step` then moves the running ones.
    """

    remember: bool = False
    synchronised: bool = False
    step_sums: Tensor

    @classmethod
    def from_plain(cls, plain: nn.BatchNorm2d, synchronised: bool) -> StepBatchNorm2d:
        """The same layer: its parameters and buffers are shared, not copied."""
        layer = cls(plain.num_features, plain.eps, plain.momentum)
        layer.weight, layer.bias = plain.weight, plain.bias
        for name, value in plain.named_buffers(recurse=False):
            setattr(layer, name, value)
        # Mean and unbiased variance summed over the passes, and in the last row their number.
        empty = plain.running_mean.new_zeros(3, plain.num_features)  # type: ignore[union-attr]
        layer.register_buffer("step_sums", empty, persistent=False)
        layer.synchronised = synchronised
        layer.train(plain.training)
        return layer

    def forward(self, x: Tensor) -> Tensor:
        if not self.training:
            return super().forward(x)
        if self.synchronised:
            return self._synchronised(x)
        mean, variance = torch.zeros_like(self.step_sums[:2]).unbind()
        # With momentum 1 the "running" statistics are those of this input.
        y = F.batch_norm(x, mean, variance, self.weight, self.bias, True, 1.0, self.eps)
        self._note(mean, variance)
        return y

    def _synchronised(self, x: Tensor) -> Tensor:
        wide = x.float()
        count = _Sum.apply(wide.new_full((1,), wide.numel() // wide.shape[1]))
        mean = _Sum.apply(wide.sum(dim=(0, 2, 3))) / count
        centred = wide - mean[:, None, None]
        variance = _Sum.apply(centred.square().sum(dim=(0, 2, 3))) / count
        self._note(mean.detach(), (variance * count / (count - 1)).detach())
        scale = self.weight * torch.rsqrt(variance + self.eps)
        return (centred * scale[:, None, None] + self.bias[:, None, None]).to(x.dtype)

    def _note(self, mean: Tensor, variance: Tensor) -> None:
        if self.remember:
            self.step_sums += torch.stack([mean, variance, torch.ones_like(mean)])

    @torch.no_grad()
    def finish_step(self, world: int) -> None:
        """Move the running statistics by the mean of what was remembered, in all processes."""
        if not self.training:
            return
        if world > 1:
            dist.all_reduce(self.step_sums)
        mean, variance = self.step_sums[:2] / self.step_sums[2]
        share = 0.1 if self.momentum is None else self.momentum
        assert self.running_mean is not None
        assert self.running_var is not None
        assert self.num_batches_tracked is not None
        self.running_mean.mul_(1 - share).add_(mean, alpha=share)
        self.running_var.mul_(1 - share).add_(variance, alpha=share)
        self.num_batches_tracked += 1
        self.step_sums.zero_()


def use_step_batch_norm(module: nn.Module, *, synchronised: bool) -> list[StepBatchNorm2d]:
    """Replace every batch norm below ``module``, in place; return the new layers in order."""
    made: list[StepBatchNorm2d] = []
    for name, child in module.named_children():
        if isinstance(child, nn.BatchNorm2d):
            layer = StepBatchNorm2d.from_plain(child, synchronised)
            setattr(module, name, layer)
            made.append(layer)
        else:
            made += use_step_batch_norm(child, synchronised=synchronised)
    return made


@contextmanager
def remembering(norms: Sequence[StepBatchNorm2d]) -> Iterator[None]:
    for norm in norms:
        norm.remember = True
    try:
        yield
    finally:
        for norm in norms:
            norm.remember = False
