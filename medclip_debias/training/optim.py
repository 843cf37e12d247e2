"""What is trained, how fast each part of it, and the moving average of the weights."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import nn

from medclip_debias.errors import UserError
from medclip_debias.losses.objective import Objective
from medclip_debias.models.dual_encoder import DualEncoder
from medclip_debias.training.settings import FreezeSettings, LearningRateFactors, TrainSettings

_TEXT_LAYER = re.compile(r"bert\.encoder\.layer\.(\d+)\.")
_IMAGE_LAYER = re.compile(r"layer(\d+)\.")


def frozen_parts(model: DualEncoder, freeze: FreezeSettings, where: str) -> list[nn.Module]:
    """Switch off the gradients of what ``freeze`` names; return those modules.

    Raises:
        UserError: the encoder has no such layer.
    """
    parts = [*frozen_image(model, freeze.image, where), *_frozen_text(model, freeze.text, where)]
    for part in parts:
        part.requires_grad_(False)
    return parts


def frozen_image(model: DualEncoder, upto: str, where: str) -> list[nn.Module]:
    """The modules of the image encoder up to ``upto``, as ``train.freeze.image`` names it.

    Raises:
        UserError: the encoder has no such layer.
    """
    encoder = model.image_encoder
    if upto == "none":
        return []
    if upto == "all":
        return [encoder]
    names = [name for name, _ in encoder.named_children() if _IMAGE_LAYER.match(f"{name}.")]
    if upto != "stem" and upto not in names:
        raise UserError(
            f"{where}: setting 'train.freeze.image' is '{upto}', but {encoder.arch} has "
            f"{', '.join(names)}; choose one of them, stem or all."
        )
    below = names[: names.index(upto) + 1] if upto in names else []
    return [encoder.conv1, encoder.bn1, *(encoder.get_submodule(name) for name in below)]


def _frozen_text(model: DualEncoder, upto: str | int, where: str) -> list[nn.Module]:
    bert = model.text_encoder.bert
    if upto == "none":
        return []
    if upto == "all":
        return [model.text_encoder]
    layers = list(bert.encoder.layer)
    count = 0 if upto == "embeddings" else int(upto)
    if count > len(layers):
        raise UserError(
            f"{where}: setting 'train.freeze.text' is {count}, but the text encoder has only "
            f"{len(layers)} layers."
        )
    return [bert.embeddings, *layers[:count]]


def make_optimizer(
    model: DualEncoder, others: Sequence[nn.Module], settings: TrainSettings
) -> torch.optim.AdamW:
    """AdamW over what is not frozen; biases, norms and the logit scale are not decayed.

    Each group carries its ``lr_factor``, by which the schedule's rate is to be multiplied.

    Args:
        model: its encoders have learning rates of their own, by depth.
        others: the objective, and the masked-language-model term; they learn as the heads do,
            an objective's parameters times the factor of its own groups.
        settings: of the run.
    """
    factors = settings.lr_factors
    factor_of = {p: _factor(name, model, factors) for name, p in model.named_parameters()}
    undecayed: set[nn.Parameter] = set()
    for module in others:
        for parameter in module.parameters():  # the term shares an embedding with the encoder
            factor_of.setdefault(parameter, factors.heads)
        if isinstance(module, Objective):
            for group in module.parameter_groups():
                undecayed |= set(group.parameters)
                factor_of |= dict.fromkeys(group.parameters, factors.heads * group.lr_factor)
    groups: dict[tuple[bool, float], list[nn.Parameter]] = {}
    for decayed in (True, False):
        for parameter, factor in factor_of.items():
            decays = parameter.ndim > 1 and parameter not in undecayed
            if parameter.requires_grad and decays == decayed:
                groups.setdefault((decayed, factor), []).append(parameter)
    if not groups:
        raise UserError("Every parameter is frozen, so there is nothing to train; free some.")
    device = next(iter(factor_of)).device
    fused = device.type == "cuda" if settings.fused == "auto" else settings.fused
    content: list[dict[str, Any]] = [
        {
            "params": parameters,
            "weight_decay": settings.weight_decay if decayed else 0.0,
            "lr_factor": factor,
        }
        for (decayed, factor), parameters in groups.items()
    ]
    return torch.optim.AdamW(content, lr=settings.lr, eps=settings.adam_eps, fused=fused or None)


def _factor(name: str, model: DualEncoder, factors: LearningRateFactors) -> float:
    """What the learning rate of the model's parameter ``name`` is multiplied by."""
    part, _, rest = name.partition(".")
    if part == "image_encoder":
        found = _IMAGE_LAYER.match(rest)
        depth = int(found[1]) if found else 0
        layers = sum(1 for n, _ in model.image_encoder.named_children() if n.startswith("layer"))
        return factors.image * factors.layer_decay ** (layers - depth)
    if part == "text_encoder":
        layers = len(model.text_encoder.bert.encoder.layer)
        found = _TEXT_LAYER.match(rest)
        lowest = 0 if rest.startswith("bert.embeddings") else layers  # head: as the last layer
        depth = int(found[1]) + 1 if found else lowest
        return factors.text * factors.layer_decay ** (layers - depth)
    return factors.heads


def set_rate(optimizer: torch.optim.Optimizer, rate: float) -> None:
    """Set every group's learning rate for this step."""
    for group in optimizer.param_groups:
        group["lr"] = rate * group["lr_factor"]


def trained(optimizer: torch.optim.Optimizer) -> list[nn.Parameter]:
    """The parameters that ``optimizer`` moves, in its order."""
    return [p for group in optimizer.param_groups for p in group["params"]]


def moving_average(model: DualEncoder, decay: float) -> torch.optim.swa_utils.AveragedModel:
    """A copy of ``model`` whose weights follow as an exponential moving average.

    The running statistics of batch norm are taken over as they are: they are averages already.
    """
    from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

    average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(decay))
    average.requires_grad_(False)
    return average.eval()


def train_mode(modules: Iterable[nn.Module], frozen: Iterable[nn.Module]) -> None:
    """Put ``modules`` into training mode, but what is frozen into evaluation mode."""
    for module in modules:
        module.train()
    for part in frozen:
        part.eval()
