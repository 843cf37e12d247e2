"""Global contrastive loss with a moving average of each sample's denominator (SogCLR, FastCLIP).

Yuan et al. (2022); GloFND (Balmaseda et al. 2025), equations 1, 3, 5 and appendix B; the schedule
and the temperature variants are those of FastCLIP (Wei et al. 2024)::

    g = mean_n exp((sim_n - sim+) / tau),   u <- (1 - gamma) u + gamma g
    loss = tau log u,   with the gradient tau grad(g) / u
"""

from __future__ import annotations

import math
from typing import Literal

import torch
from pydantic import Field, model_validator
from torch import Tensor, nn

from medclip_debias.bounds import Bounded, within
from medclip_debias.losses.anchors import Anchors, Direction, LossBatch, masked_logsumexp
from medclip_debias.losses.objective import ContrastiveLoss, ContrastiveSettings, Losses, register
from medclip_debias.losses.samples import Groups, PerSide, SampleTable, cosines


class SogCLRSettings(ContrastiveSettings):
    """Settings of `SogCLR`.

    ``gamma``: weight of the new value in the moving average, constant, or brought down to it from 1
    over ``decay_steps`` by a cosine. ``tau``: temperature, or its initial value; ``temperature``:

    - ``constant``: stays (SogCLR; FastCLIP-v1).
    - ``model``: the model's learned scale, without the factor tau (FastCLIP-v0).
    - ``robust``: the model's learned scale, with the factor and the margin ``rho`` (FastCLIP-v3).
    - ``modality``: as ``robust``, with one learned temperature each for text and image anchors, at
      ``tau_lr_factor`` times the run's learning rate; this project's.
    - ``individual``: one for each sample and side, moved by Adam with ``tau_lr`` (iSogCLR; -v2).

    Learned temperatures stay within [``tau_min``, 1].
    """

    kind: Literal["sogclr"] = "sogclr"
    direction: Direction = "symmetric"
    gamma: float = Field(0.9, gt=0, le=1)
    gamma_schedule: Literal["constant", "cosine"] = "constant"
    decay_steps: int | None = Field(None, ge=1)
    temperature: Literal["constant", "model", "robust", "modality", "individual"] = "constant"
    tau: float = Field(0.1, gt=0, le=1)
    tau_min: float = Field(0.01, gt=0, le=1)
    tau_lr: float = Field(1e-3, gt=0)
    tau_lr_factor: float = Field(0.25, gt=0)
    rho: float = Field(6.5, ge=0)
    samples: int | None = Field(None, ge=1)

    @model_validator(mode="after")
    def _decays_over_a_number_of_steps(self) -> SogCLRSettings:
        if self.gamma_schedule == "cosine" and self.decay_steps is None:
            raise ValueError("gamma_schedule 'cosine' needs decay_steps")
        if self.tau < self.tau_min:
            raise ValueError(f"tau {self.tau} is below tau_min {self.tau_min}")
        return self


# FastCLIP's: keeps g / u finite where every negative is far away.
_LOG_EPS = math.log(1e-14)
_GRADIENT_LIMIT = 5.0


@register(
    "sogclr",
    SogCLRSettings,
    reads={"sample_ids"},
    formula="tau log u, gradient tau grad(g) / u; g = mean_n exp((sim_n - sim+) / tau), "
    "u <- (1 - gamma) u + gamma g",
    paper="SogCLR, Yuan et al. (2022); FastCLIP, Wei et al. (2024)",
)
class SogCLR(ContrastiveLoss, Bounded):
    """``tau log u``, with the gradient ``tau grad(g) / u``.

    ``g = mean_n exp((sim_n - sim+) / tau)`` over the negatives that the policies keep,
    ``u <- (1 - gamma) u + gamma g`` for the anchor's sample (``u = g`` at its first visit), held as
    its logarithm. The value estimates the global objective; only its gradient is the batch's. With
    ``robust``, ``modality`` and ``individual`` it is ``tau (log u + rho)``, differentiated in tau
    too. In evaluation mode nothing moves. The state takes 8 bytes a sample for each side that has
    anchors, 20 with ``individual``. docs/methods.md has the differences from the public code.

    Example:
        >>> from medclip_debias.losses import ContrastiveBatch
        >>> loss = SogCLR(SogCLRSettings(tau=0.5))
        >>> batch = ContrastiveBatch(torch.eye(3), torch.tensor(2.0), sample_ids=torch.arange(3))
        >>> loss(batch).loss
        tensor(-1.)
    """

    settings: SogCLRSettings

    def __init__(self, settings: SogCLRSettings | None = None) -> None:
        super().__init__(settings)
        s = self.settings
        columns: dict[str, float | int] = {"log_u": 0.0, "visits": 0}
        if s.temperature == "individual":
            columns |= {"tau": s.tau, "m": 0.0, "v": 0.0}
        self.tables = PerSide(lambda: SampleTable(columns, s.samples))
        if s.temperature == "modality":
            initial = torch.tensor(math.log(s.tau))
            self.log_tau = nn.ParameterDict(
                {side: nn.Parameter(initial.clone()) for side in ("text", "image", "view")}
            )

    @property
    def lr_factor(self) -> float:
        """Of the learned temperatures."""
        return float(self.settings.tau_lr_factor)

    @torch.no_grad()
    def keep_in_bounds(self) -> None:
        """Put the temperatures of ``modality`` back within [``tau_min``, 1]."""
        if self.settings.temperature == "modality":
            for log_tau in self.log_tau.values():
                log_tau.clamp_(math.log(self.settings.tau_min), 0.0)

    def gamma(self, step: int) -> float:
        """Weight of the new value in the moving average at one step."""
        s = self.settings
        if s.gamma_schedule == "constant" or s.decay_steps is None:
            return s.gamma
        done = min(step / s.decay_steps, 1.0)
        return s.gamma + (1 - s.gamma) * 0.5 * (1 + math.cos(math.pi * done))

    def per_anchor(self, anchors: Anchors, batch: LossBatch) -> Losses:
        """See the class."""
        table, ids = self.tables.of(anchors, batch)
        tau = self._temperature(table, anchors, ids, batch)
        similarity = cosines(anchors, batch)
        positive = similarity.gather(1, anchors.positive_column[:, None])
        relative = (similarity - positive) / tau[:, None]
        valid = anchors.negatives.any(dim=1)
        mass = torch.where(valid, anchors.mass, 1.0)
        weighted = anchors.weighted_logits(relative)
        log_g = masked_logsumexp(weighted, anchors.negatives) - mass.log()
        gamma = self.gamma(int(table.steps))
        log_u = self._average(table, ids, log_g.detach(), valid, gamma)
        # exp(log g - log u) is g / u, at most the number of anchors of a sample over gamma.
        ratio = (log_g - torch.logaddexp(log_u, torch.full_like(log_u, _LOG_EPS))).exp()
        gradient_only = ratio - ratio.detach()
        match self.settings.temperature:
            case "constant":
                loss = tau * (log_u + gradient_only)
            case "model":
                loss = log_u + gradient_only
            case _:
                # d/dtau of tau (log g + rho), where log u stands in for log g.
                loss = tau * (log_u + self.settings.rho) + tau.detach() * gradient_only
        if self.settings.temperature == "individual" and self.training:
            with torch.no_grad():
                # d/dtau = log u + rho - (g / u) mean_n p_n d_n, with d_n = (sim_n - sim+) / tau
                # and p_n its share of g, cut to 5 as in the published code.
                hidden = torch.where(anchors.negatives, weighted, -torch.inf)
                hidden = torch.where(valid[:, None], hidden, 0.0)
                shares = torch.softmax(hidden, dim=1)
                slope = (shares * relative * anchors.negatives).sum(dim=1)
                gradient = log_u + self.settings.rho - ratio * slope
                gradient = gradient.clamp(-_GRADIENT_LIMIT, _GRADIENT_LIMIT)
                groups = Groups(ids, valid)
                step, rows = groups.mean(gradient).float(), groups.samples
                count, rate = table["visits"][rows], self.settings.tau_lr
                moved = table["tau"][rows] - table.adam(rows, step, count, rate, (0.9, 0.999))
                table["tau"][rows] = moved.clamp(self.settings.tau_min, 1.0)
        figures = {
            "gamma": loss.new_full((), gamma),
            "mean_log_u": batch.mean(log_u, valid),
            "temperature": tau,
        }
        return torch.where(valid, loss, torch.zeros_like(loss)), figures

    def _temperature(
        self, table: SampleTable, anchors: Anchors, ids: Tensor, batch: LossBatch
    ) -> Tensor:
        """``[A]`` temperature of each anchor, live where it is learned by the optimiser."""
        s, like = self.settings, anchors.positive
        match s.temperature:
            case "constant":
                return torch.full_like(like, s.tau)
            case "individual":
                return table["tau"][ids].to(like.dtype)
            case "modality":
                tau = within(self.log_tau[anchors.side].exp(), s.tau_min, 1.0)
            case _:
                tau = within(1 / batch.scale, s.tau_min, 1.0)
        return tau.to(like.dtype).expand_as(like)

    @torch.no_grad()
    def _average(
        self, table: SampleTable, ids: Tensor, log_g: Tensor, valid: Tensor, gamma: float
    ) -> Tensor:
        """``log u`` of each anchor, moved first in training mode."""
        stored, visits = table["log_u"], table["visits"]
        if not self.training:
            known = visits[ids] > 0
            return torch.where(known, stored[ids].to(log_g.dtype), log_g)
        groups = Groups(ids, valid)
        rows = groups.samples
        new = groups.log_mean_exp(log_g)
        if gamma < 1:
            old = stored[rows].double() + math.log1p(-gamma)
            moved = torch.logaddexp(old, new + math.log(gamma))
            new = torch.where(visits[rows] > 0, moved, new)
        stored[rows] = new.float()
        visits[rows] += 1
        table.steps += 1
        # From the float64 value where it is exact, so that gamma = 1 is InfoNCE's mean exactly.
        result = log_g.clone()
        result[groups.valid] = new[groups.place].to(log_g.dtype)
        return result
