"""State with one entry for each training sample, in buffers: thresholds, averages, visits.

Each process holds the whole table; the same gathered batch makes the same update, so that the
copies stay equal.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from medclip_debias.losses.anchors import Anchors, LossBatch


class SampleTable(nn.Module):
    """Named columns, one row a training sample, 4 bytes an entry.

    It makes room when a sample is first seen, by a quarter at a time unless ``samples`` says how
    many there are; loading a checkpoint brings it to the size it had. ``columns`` are the initial
    values: an integer makes an int32 column, a float a float32 one. ``steps`` counts the training
    batches that updated it.
    """

    steps: Tensor

    def __init__(self, columns: Mapping[str, float | int], samples: int | None = None) -> None:
        super().__init__()
        self.columns = dict(columns)
        self.samples = samples or 0
        self.register_buffer("steps", torch.zeros((), dtype=torch.int64))
        for name, value in self.columns.items():
            kind = torch.int32 if isinstance(value, int) else torch.float32
            self.register_buffer(name, torch.empty(0, dtype=kind))

    def __getitem__(self, column: str) -> Tensor:
        """One column, to read and to write into."""
        return self.get_buffer(column)

    def __len__(self) -> int:
        return len(self[next(iter(self.columns))])

    def begin(self, *, samples: int, steps_per_epoch: int) -> None:  # noqa: ARG002
        """Make room for ``samples`` rows at once when the first of them is seen."""
        self.samples = max(self.samples, samples)

    def reserve(self, ids: Tensor) -> None:
        """Make room for the samples ``ids``."""
        if not ids.numel():
            return
        lowest, highest = torch.stack(torch.aminmax(ids)).tolist()
        if lowest < 0:
            raise ValueError(f"sample_ids holds {lowest}; ids count from 0")
        if highest >= len(self):
            self._resize(max(highest + 1, self.samples, len(self) * 5 // 4), ids.device)

    def adam(
        self, rows: Tensor, gradient: Tensor, count: Tensor, lr: float, betas: tuple[float, float]
    ) -> Tensor:
        """What one step of Adam on ``m`` and ``v`` of ``rows`` subtracts ``[R]``.

        The bias is corrected by ``count`` ``[R]``, the steps of each sample; where it is 0 there
        was none yet and the moments are 0.
        """
        first, second = betas
        m = torch.where(count > 0, first * self["m"][rows] + (1 - first) * gradient, 0.0)
        v = torch.where(count > 0, second * self["v"][rows] + (1 - second) * gradient**2, 0.0)
        self["m"][rows], self["v"][rows] = m, v
        taken = count.clamp(min=1).to(m.dtype)
        return lr * (m / (1 - first**taken)) / ((v / (1 - second**taken)).sqrt() + 1e-8)

    def _resize(self, rows: int, device: torch.device) -> None:
        self.steps = self.steps.to(device)
        for name, value in self.columns.items():
            old = self[name]
            new = torch.full((rows,), value, dtype=old.dtype, device=device)
            new[: len(old)] = old[:rows]
            setattr(self, name, new)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> SampleTable:  # noqa: ARG002
        # The state follows the module to a device, but stays float32 when the module is cast:
        # moments of 1e-6 are lost in half precision.
        device = fn(torch.empty(0, device=self.steps.device)).device
        for name in ("steps", *self.columns):
            setattr(self, name, self[name].to(device))
        return self

    def _load_from_state_dict(self, state_dict: Any, prefix: str, *args: Any) -> None:
        for name in self.columns:
            saved = state_dict.get(prefix + name)
            if isinstance(saved, Tensor) and saved.ndim == 1 and len(saved) != len(self):
                self._resize(len(saved), self.steps.device)
        super()._load_from_state_dict(state_dict, prefix, *args)


class PerSide(nn.Module):
    """A `SampleTable` for each kind of anchor: ``text``, ``image``, and ``view``."""

    def __init__(self, make: Callable[[], SampleTable]) -> None:
        super().__init__()
        self.text, self.image, self.view = make(), make(), make()

    def of(self, anchors: Anchors, batch: LossBatch) -> tuple[SampleTable, Tensor]:
        """The table of these anchors, with room for them, and the row ``[A]`` of each."""
        table: SampleTable = getattr(self, anchors.side)
        rows = batch["sample_ids"][anchors.images].long()
        table.reserve(rows)
        return table, rows


class Groups:
    """The anchors of one batch by the sample they belong to, ``ids`` ``[A]``, where ``valid``.

    The state of a sample with several anchors (sentences, views) moves once, by their mean.
    """

    def __init__(self, ids: Tensor, valid: Tensor) -> None:
        self.valid = valid
        self.samples, self.place = torch.unique(ids[valid], return_inverse=True)
        self.count = torch.bincount(self.place, minlength=len(self.samples))

    def mean(self, values: Tensor) -> Tensor:
        """Mean over each sample's anchors of ``values`` ``[A]``, in float64."""
        total = torch.zeros(len(self.samples), dtype=torch.float64, device=values.device)
        return total.index_add_(0, self.place, values[self.valid].double()) / self.count

    def log_mean_exp(self, values: Tensor) -> Tensor:
        """Logarithm of the mean of ``exp(values)``, in float64."""
        chosen = values[self.valid].double()
        top = torch.full((len(self.samples),), -torch.inf, dtype=torch.float64).to(chosen.device)
        top = top.scatter_reduce(0, self.place, chosen, "amax")
        total = torch.zeros_like(top).index_add_(0, self.place, (chosen - top[self.place]).exp())
        return top + (total / self.count).log()


def cosines(anchors: Anchors, batch: LossBatch) -> Tensor:
    """``[A, C]`` similarities of anchors and candidates before any scale."""
    if anchors.side == "text":
        return batch.similarity.T
    return batch.similarity if anchors.side == "view" else batch.similarity[batch.owners]
