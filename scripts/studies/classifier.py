"""A classifier beside an image-text model: the same image encoder, batches, steps and schedule."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from medclip_debias.training.optim import set_rate, trained
from medclip_debias.training.step import Trainer
from supervised import Classifier

Score = Callable[[Tensor], Tensor]
"""From uint8 images ``[B, S, S]`` to logits ``[B, classes]``."""


def learn(
    trainer: Trainer,
    network: Classifier,
    optimizer: torch.optim.Optimizer,
    loss: Callable[[Tensor, Tensor], Tensor],
) -> Score:
    """Train on the batches of a run, by its schedule and clipping; the logits of images.

    ``loss`` is of the logits and of the numbers of a batch's studies; the optimiser's groups have
    an ``lr_factor``.
    """
    settings, parameters = trainer.settings.train, trained(optimizer)
    for step in range(settings.steps):
        set_rate(optimizer, trainer.rate(step))
        batch = trainer.batches[step]
        with trainer.precision.autocast():
            images = trainer.model.normalise(batch.images_on(trainer.device))
            logits = network(images).float()
        optimizer.zero_grad()
        loss(logits, batch.studies).backward()
        nn.utils.clip_grad_norm_(parameters, settings.clip_norm or torch.inf)
        optimizer.step()
    network.eval()
    return lambda pixels: network(trainer.model.normalise(pixels.to(trainer.device)))
