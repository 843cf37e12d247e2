"""A classifier beside an image-text model: the same image encoder, batches, steps and schedule."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from medclip_debias.training.optim import set_rate, trained
from medclip_debias.training.step import Trainer


class Classifier(nn.Module):
    """Mean of a model's region features, then one logit for each class."""

    def __init__(self, model: Any, classes: int) -> None:
        super().__init__()
        self.encoder, self.normalise = model.image_encoder, model.normalise
        self.head = nn.Linear(model.image_encoder.width, classes)

    def forward(self, pixels: Tensor) -> Tensor:
        """Score uint8 images ``[B, S, S]``."""
        logits: Tensor = self.head(self.encoder(self.normalise(pixels)).mean(dim=(2, 3)))
        return logits


def learn(
    trainer: Trainer,
    network: Classifier,
    optimizer: torch.optim.Optimizer,
    loss: Callable[[Tensor, Tensor], Tensor],
) -> Classifier:
    """Train on the batches of a run, by its schedule and clipping.

    ``loss`` is of the logits and of the numbers of a batch's studies; the optimiser's groups have
    an ``lr_factor``.
    """
    settings, parameters = trainer.settings.train, trained(optimizer)
    for step in range(settings.steps):
        set_rate(optimizer, trainer.rate(step))
        batch = trainer.batches[step]
        with trainer.precision.autocast():
            logits = network(batch.images_on(trainer.device)).float()
        optimizer.zero_grad()
        loss(logits, batch.studies).backward()
        nn.utils.clip_grad_norm_(parameters, settings.clip_norm or torch.inf)
        optimizer.step()
    return network.eval()
