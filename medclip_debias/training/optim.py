"""What is trained, how fast each part of it, and the moving average of the weights."""

from __future__ import annotations

import math
from collections.abc import Sequence, Set
from typing import Any

import torch
from torch import nn

from medclip_debias.errors import UserError
from medclip_debias.losses.objective import Objective
from medclip_debias.models.lora import add_adapters
from medclip_debias.models.start import TrainableModel
from medclip_debias.models.tower import Tower
from medclip_debias.training.settings import RateSchedule, TrainSettings


def depths(encoder: Tower) -> dict[nn.Parameter, int]:
    """Depth of each parameter: 0 in the stem, k in layer k, one more above the last."""
    layers = encoder.layers
    depth_of = dict.fromkeys(encoder.parameters(), 0)
    for module in encoder.above:
        depth_of |= dict.fromkeys(module.parameters(), len(layers) + 1)
    for depth, layer in enumerate(layers, start=1):
        depth_of |= dict.fromkeys(layer.parameters(), depth)
    return depth_of


def encoders(model: TrainableModel) -> dict[str, Tower]:
    """The two encoders by what settings call them."""
    return {"image": model.image_encoder, "text": model.text_encoder}


def head_parameters(model: TrainableModel) -> set[nn.Parameter]:
    """What maps into the shared space and compares there, also where an encoder holds it."""
    parameters: set[nn.Parameter] = set()
    for head in model.heads:
        parameters |= {head} if isinstance(head, nn.Parameter) else set(head.parameters())
    return parameters


def choose_parts(model: TrainableModel, settings: TrainSettings, where: str) -> list[nn.Module]:
    """Switch off the gradients of what shall keep its weights, and put adapters where asked.

    Returns the modules that are to be in evaluation mode.
    """
    frozen: list[nn.Module] = []
    heads = head_parameters(model)
    training = {head for head in model.heads if isinstance(head, nn.Module)}
    for name, encoder in encoders(model).items():
        depth = frozen_depth(encoder, name, settings, where)
        for parameter, at in depths(encoder).items():
            if at <= depth and parameter not in heads:
                parameter.requires_grad_(False)
        frozen += frozen_part(encoder, depth, training)
        lora = getattr(settings.trainable, name).lora
        if lora and not add_adapters(encoder.layers, lora.rank, lora.alpha, lora.targets):
            raise UserError(
                f"{where}: setting 'train.trainable.{name}.lora' finds no linear map of "
                f"'{lora.targets}' in the {name} encoder; choose other targets, or last_blocks."
            )
    return frozen


def frozen_depth(encoder: Tower, name: str, settings: TrainSettings, where: str) -> int:
    """How many of an encoder's layers keep their weights.

    -1 for nothing, 0 for the stem alone, k for the stem and k layers, one more than there are for
    the whole encoder.
    """
    parts, count = getattr(settings.trainable, name), len(encoder.layers)
    if parts.frozen or parts.lora:
        return count + 1
    if parts.last_blocks is None:
        return -1
    if parts.last_blocks > count:
        raise UserError(
            f"{where}: setting 'train.trainable.{name}.last_blocks' is {parts.last_blocks}, but "
            f"the {name} encoder has {count} layers."
        )
    return count - parts.last_blocks


def frozen_part(
    encoder: Tower, depth: int, training: Set[nn.Module] = frozenset()
) -> list[nn.Module]:
    """The modules of an encoder that `frozen_depth` means, but for those ``training`` anyway."""
    layers = encoder.layers
    if depth < 0:
        return []
    if depth > len(layers):
        inside = {module for module in encoder.modules() if module in training}
        return _stem(encoder, inside) if inside else [encoder]
    return [*_stem(encoder, {*layers, *encoder.above, *training}), *layers[:depth]]


def _stem(module: nn.Module, upper: set[nn.Module]) -> list[nn.Module]:
    """The largest modules below ``module`` that hold none of ``upper``."""
    largest = []
    for child in module.children():
        if child in upper:
            continue
        if any(inner in upper for inner in child.modules()):
            largest += _stem(child, upper)
        else:
            largest.append(child)
    return largest


def parameter_counts(model: TrainableModel) -> dict[str, dict[str, int]]:
    """Numbers that train and numbers that do not, of each encoder and of the rest."""
    counts = {part: {"trained": 0, "frozen": 0} for part in ("image", "text", "heads")}
    heads = head_parameters(model)
    part_of = {p: name for name, encoder in encoders(model).items() for p in encoder.parameters()}
    for parameter in model.parameters():
        part = "heads" if parameter in heads else part_of.get(parameter, "heads")
        counts[part]["trained" if parameter.requires_grad else "frozen"] += parameter.numel()
    return counts


def make_optimizer(
    model: TrainableModel, others: Sequence[nn.Module], settings: TrainSettings
) -> torch.optim.AdamW:
    """AdamW over what is not frozen; biases, norms and the logit scale are not decayed.

    Each group carries its ``lr_factor``, by which the schedule's rate is to be multiplied. The
    ``others`` (objective, masked-language-model term) learn as the heads do, an objective's
    parameters times a factor of its own.
    """
    factors, heads = settings.lr_factors, head_parameters(model)
    factor_of = dict.fromkeys(model.parameters(), factors.heads)
    for name, encoder in encoders(model).items():
        top, factor = len(encoder.layers), getattr(factors, name)
        for parameter, depth in depths(encoder).items():
            if parameter not in heads:
                factor_of[parameter] = factor * factors.layer_decay ** (top - min(depth, top))
    undecayed: set[nn.Parameter] = set()
    for module in others:
        for parameter in module.parameters():  # the term shares an embedding with the encoder
            factor_of.setdefault(parameter, factors.heads)
        if isinstance(module, Objective):
            undecayed |= set(module.parameters())
            factor_of |= dict.fromkeys(module.parameters(), factors.heads * module.lr_factor)
    groups: dict[tuple[bool, float], list[nn.Parameter]] = {}
    for decayed in (True, False):
        for parameter, factor in factor_of.items():
            decays = parameter.ndim > 1 and parameter not in undecayed
            if parameter.requires_grad and decays == decayed:
                groups.setdefault((decayed, factor), []).append(parameter)
    if not groups:
        raise UserError("Every parameter is frozen, so there is nothing to train; unfreeze some.")
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


def set_rate(optimizer: torch.optim.Optimizer, rate: float) -> None:
    """Set every group's learning rate for this step."""
    for group in optimizer.param_groups:
        group["lr"] = rate * group["lr_factor"]


def trained(optimizer: torch.optim.Optimizer) -> list[nn.Parameter]:
    """The parameters that ``optimizer`` moves, in its order."""
    return [p for group in optimizer.param_groups for p in group["params"]]


def moving_average(model: TrainableModel, decay: float) -> torch.optim.swa_utils.AveragedModel:
    """A copy of ``model`` whose weights follow as an exponential moving average.

    The running statistics of batch norm are taken over as they are: they are averages already.
    """
    from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

    average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(decay))
    average.requires_grad_(False)
    return average.eval()


def learning_rate(
    step: int, *, peak: float, warmup: int, steps: int, schedule: RateSchedule = "cosine"
) -> float:
    """Learning rate of ``step`` (0-based).

    Rises linearly and reaches ``peak`` at step ``warmup - 1``, then falls as a half cosine that
    would touch 0 at step ``steps``, or stays (``constant``). A warm-up longer than the run never
    reaches the peak.

    >>> [round(learning_rate(s, peak=1.0, warmup=2, steps=4), 3) for s in range(4)]
    [0.5, 1.0, 1.0, 0.5]
    """
    if step < warmup:
        return peak * (step + 1) / warmup
    if schedule == "constant":
        return peak
    share = (step - warmup) / max(1, steps - warmup)
    return peak * 0.5 * (1 + math.cos(math.pi * min(share, 1.0)))
