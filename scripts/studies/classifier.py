"""A classifier beside an image-text model: the same image encoder, batches, steps and schedule."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from medclip_debias.training.optim import set_rate
from medclip_debias.training.step import Trainer
from supervised import Classifier

Score = Callable[[Tensor], Tensor]
"""From uint8 images ``[B, S, S]`` to logits ``[B, classes]``."""


def fit(trainer: Trainer, wanted: Tensor) -> Score:
    """Train encoder and one layer on a run's batches by its schedule; the logits of images.

    ``wanted`` is 1, 0 or, unknown, NaN for each study and class: ``[studies, classes]``.
    """
    settings = trainer.settings.train
    network = Classifier(trainer.model.image_encoder, wanted.shape[1]).to(trainer.device)
    group = {"params": list(network.parameters()), "lr_factor": 1.0}
    optimizer = torch.optim.AdamW([group], weight_decay=settings.weight_decay)
    for step in range(settings.steps):
        set_rate(optimizer, trainer.rate(step))
        batch = trainer.batches[step]
        with trainer.precision.autocast():
            images = trainer.model.normalise(batch.images_on(trainer.device))
            logits = network(images).float()
        target = wanted[batch.studies].to(trainer.device)
        known = ~target.isnan()
        optimizer.zero_grad()
        loss = nn.functional.binary_cross_entropy_with_logits(logits[known], target[known])
        loss.backward()
        nn.utils.clip_grad_norm_(network.parameters(), settings.clip_norm or torch.inf)
        optimizer.step()
    network.eval()
    return lambda pixels: network(trainer.model.normalise(pixels.to(trainer.device)))
