"""Settings of a training run."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from medclip_debias.config import AugmentSettings, ModelSettings, Preprocessing, Settings


class TrainSettings(Settings):
    """The loop: AdamW, linear warm-up, cosine decay to 0 at ``steps``."""

    steps: int = Field(1000, ge=1)
    batch_size: int = Field(64, ge=2)
    sentences_per_study: int = Field(1, ge=1)
    lr: float = Field(1e-5, gt=0, le=1)
    weight_decay: float = Field(0.01, ge=0)
    warmup_steps: int = Field(2000, ge=0)
    clip_norm: float | None = Field(1.0, gt=0)
    precision: Literal["fp32", "bf16"] = "fp32"
    device: str = "auto"
    seed: int = Field(0, ge=0)
    log_every: int = Field(20, ge=1)
    checkpoint_every: int = Field(500, ge=1)
    workers: int = Field(2, ge=0)
    augment: AugmentSettings = AugmentSettings()


class RunSettings(Settings):
    """One training run. ``loss`` is validated by the objective named in ``loss.kind``."""

    prepared: Path
    out: Path
    model: ModelSettings
    preprocessing: Preprocessing = Preprocessing()
    loss: dict[str, Any] = Field(default_factory=lambda: {"kind": "debiased"})
    train: TrainSettings = TrainSettings()
