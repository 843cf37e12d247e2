"""Settings of a training run."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, Tag, field_validator, model_validator

from medclip_debias.config import (
    AugmentSettings,
    FeatureSettings,
    ModelSettings,
    Prepared,
    Preprocessing,
    Settings,
    StartSettings,
)
from medclip_debias.evaluation.catalogue import VALIDATION
from medclip_debias.models.lora import Targets

RateSchedule = Literal["cosine", "constant"]
"""Of the learning rate after the warm-up."""


class LoraSettings(Settings):
    """Low-rank adapters on an encoder whose own weights are frozen (Hu et al. 2022).

    ``targets``: the linear maps of ``attention``, or every ``linear`` one of the blocks. Saved
    models hold the merged weights.
    """

    rank: int = Field(8, ge=1, le=4096)
    alpha: float = Field(16.0, gt=0)
    targets: Targets = "attention"


class EncoderParts(Settings):
    """Which part of an encoder trains: at most one of these; by default ``all``.

    ``last_blocks``: its last n transformer blocks (stages of a ResNet, Swin or ConvNeXt) and what
    comes after them; with n the number of blocks, all but the stem or the embeddings.
    """

    frozen: bool = False
    last_blocks: int | None = Field(None, ge=0)
    lora: LoraSettings | None = None

    @model_validator(mode="before")
    @classmethod
    def _words(cls, value: Any) -> Any:
        if isinstance(value, str):
            if value not in ("all", "frozen"):
                raise ValueError("write all, frozen, {last_blocks: n} or {lora: {rank: n}}")
            return {"frozen": value == "frozen"}
        return value

    @model_validator(mode="after")
    def _one(self) -> EncoderParts:
        if self.frozen + (self.last_blocks is not None) + (self.lora is not None) > 1:
            raise ValueError("choose one of frozen, last_blocks and lora")
        return self


class TrainableSettings(Settings):
    """Which parts of the encoders train; projections, similarity and loss always do.

    Each is ``all``, ``frozen``, ``{last_blocks: n}`` or ``{lora: {rank: n}}``. Frozen parts, and an
    encoder with adapters as a whole, are in evaluation mode: no dropout, and batch norm with its
    running statistics.
    """

    image: EncoderParts = EncoderParts()
    text: EncoderParts = EncoderParts()


class LearningRateFactors(Settings):
    """Factors of ``lr``: for each encoder, and (``heads``) for projections, similarity and loss.

    ``layer_decay`` d is a further factor d for each layer below an encoder's last: the L layers of
    a network learn at ``d^0 .. d^(L-1)``, its stem or embeddings at ``d^L``.
    """

    image: float = Field(1.0, gt=0)
    text: float = Field(1.0, gt=0)
    heads: float = Field(1.0, gt=0)
    layer_decay: float = Field(1.0, gt=0, le=1)


class BoxSettings(Settings):
    """Boxes of training phrases that teach maps (`medclip_debias.training.boxes`).

    Attributes:
        weight: of their loss, beside the objective's.
        phrases: in a step, of all processes together.
        temperature: of the softmax over an image's regions; cosines are multiplied by it.
        sides: a finding's name is also said with the side on which all its boxes lie.
    """

    weight: float = Field(0.2, gt=0)
    phrases: int = Field(16, ge=1)
    temperature: float = Field(14.0, gt=0)
    sides: bool = True


class TrainSettings(Settings):
    """The loop: AdamW, linear warm-up, cosine decay to 0 at ``steps`` (or a constant rate).

    Attributes:
        batch_size: studies in a batch, of all processes together.
        accumulate: micro-batches into which each process cuts its share, to save memory.
        schedule: of the learning rate after the warm-up; with ``constant`` a run that is continued
            later equals one of that length.
        views_per_study: maximum number of images of a study in a batch.
        task: ``two_view`` learns from two augmentations of each image, without text.
        boxes: maps also learn from boxes.
        trainable: which parts of the encoders train.
        ema: decay of an exponential moving average of the weights, which is validated and saved
            as the model.
        precision: of the encoders; similarities and losses are always float32.
        channels_last: memory layout of the image encoder.
        compile: compile the encoders with torch.compile.
        fused: AdamW as one kernel; ``auto``: on a GPU.
        checkpoint_text: compute the text encoder's activations twice instead of keeping them.
        shard_loss: each of several processes computes the loss of its own anchors, if the
            objective allows it; ``auto``: for large batches (`medclip_debias.training.step`).
        deterministic: use deterministic algorithms only, also on a GPU.
        validate_every: steps between validations; 0 for none.
        validate_images: maximum number of images and of studies of a validation.
        best_metric: the metric that decides which weights are best, one of
            `medclip_debias.evaluation.catalogue.VALIDATION`.
        patience: end the run after so many validations without a better value.
        keep: whether the model folder holds the ``last`` weights or the ``best``.
        preview: whether TensorBoard shows six radiographs of the validate split with heatmaps and
            sentences; ``auto``: only of generated images (docs/security.md).
        workers: threads that read batches ahead; 0 reads in the main one.
        stall_minutes: longest time of a batch, a step, a validation or a file, after which the
            run ends with exit code 2 and says what it waited for; 0 for no limit.
        wandb: also log to Weights & Biases; ``offline`` writes files only.
    """

    steps: int = Field(1000, ge=1)
    batch_size: int = Field(64, ge=2)
    accumulate: int = Field(1, ge=1)
    sentences_per_study: int = Field(1, ge=1)
    views_per_study: int = Field(1, ge=1)
    task: Literal["image_text", "two_view"] = "image_text"
    lr: float = Field(1e-5, gt=0, le=1)
    lr_factors: LearningRateFactors = LearningRateFactors()
    weight_decay: float = Field(0.01, ge=0)
    adam_eps: float = Field(1e-8, gt=0)
    warmup_steps: int = Field(2000, ge=0)
    schedule: RateSchedule = "cosine"
    clip_norm: float | None = Field(1.0, gt=0)
    ema: float | None = Field(None, gt=0, lt=1)
    trainable: TrainableSettings = TrainableSettings()
    precision: Literal["fp32", "bf16", "fp16"] = "fp32"
    channels_last: bool = True
    compile: bool = False
    fused: bool | Literal["auto"] = "auto"
    checkpoint_text: bool = False
    shard_loss: Literal["auto", "on", "off"] = "auto"
    deterministic: bool = False
    device: str = "auto"
    seed: int = Field(0, ge=0)
    log_every: int = Field(20, ge=1)
    checkpoint_every: int = Field(500, ge=1)
    validate_every: int = Field(0, ge=0)
    validate_images: int = Field(512, ge=2)
    best_metric: str = "recall_at_10"
    patience: int | None = Field(None, ge=1)
    keep: Literal["last", "best"] = "last"
    preview: Literal["auto", "on", "off"] = "auto"
    workers: int = Field(2, ge=0)
    stall_minutes: float = Field(30.0, ge=0, le=10080, allow_inf_nan=False)
    wandb: Literal["off", "offline", "online"] = "off"
    wandb_project: str = "medclip-debias"
    augment: AugmentSettings = AugmentSettings()
    features: FeatureSettings = FeatureSettings()
    boxes: BoxSettings | None = None

    @model_validator(mode="after")
    def _features_fit(self) -> TrainSettings:
        features, augment = self.features, self.augment
        image, text = self.trainable.image, self.trainable.text
        if features.cache and not (image.frozen or image.last_blocks is not None):
            raise ValueError(
                "features.cache keeps what the frozen part of the image encoder gives; set "
                "trainable.image to frozen or to last_blocks"
            )
        if features.text and not text.frozen:
            raise ValueError("features.text needs trainable.text: frozen")
        if features.cache and augment.changes and not features.augmentations:
            raise ValueError(
                "features.cache keeps features of images that do not change; set "
                "features.augmentations to how many augmentations of each image to keep, or "
                "augment to {crop: false, brightness: 0, contrast: 0}"
            )
        if features.augmentations and not augment.changes:
            raise ValueError("features.augmentations is set, but augment changes no image")
        if self.boxes and (self.task == "two_view" or features.cache):
            raise ValueError(
                "boxes teach the maps of sentences on augmented images; leave out 'boxes', or train"
                " on image_text without features.cache"
            )
        if self.task == "two_view" and features.augmentations == 1:
            raise ValueError("task two_view needs features.augmentations 2 or more (or 0)")
        return self

    def rate_in_words(self) -> str:
        """What the learning rate does, as the rest of a sentence."""
        steps, warmup = self.steps, self.warmup_steps
        if warmup > steps:
            return (
                f"rises to {self.lr * steps / warmup:g} in {steps:,} steps and no further: to"
                f" {self.lr:g} it takes {warmup:,} (train.warmup_steps)"
            )
        then = "stays there" if self.schedule == "constant" else "falls to 0 by a cosine"
        return f"rises to {self.lr:g} in {warmup:,} steps and {then}"

    @field_validator("shard_loss", "preview", "wandb", mode="before")
    @classmethod
    def _words_of_yaml(cls, value: Any) -> Any:
        """``on`` and ``off`` are true and false in YAML."""
        return {True: "on", False: "off"}[value] if isinstance(value, bool) else value

    @field_validator("best_metric")
    @classmethod
    def _validated(cls, name: str) -> str:
        known = [metric.name for metric in VALIDATION]
        if name not in known:
            raise ValueError(f"'{name}' is not a metric of a validation; known: {', '.join(known)}")
        return name

    @model_validator(mode="after")
    def _shares(self) -> TrainSettings:
        if self.batch_size % self.accumulate:
            raise ValueError(
                f"accumulate {self.accumulate} does not divide batch_size {self.batch_size}"
            )
        if (self.patience or self.keep == "best") and not self.validate_every:
            raise ValueError("patience and keep: best need validate_every")
        return self


def _begins(model: Any) -> str:
    """Whether a run builds a model or trains one on, by the name of its settings."""
    content = model if isinstance(model, Mapping) else vars(model)
    return "StartSettings" if "start_from" in content else "ModelSettings"


class RunSettings(Settings):
    """One training run. The objective named in ``loss.kind`` validates ``loss``.

    ``prepared`` names a prepared set, or lists several with their weights. ``model`` describes a
    new model, or names with ``start_from`` a trained one, whose ``preprocessing`` then applies.
    """

    prepared: Prepared
    out: Path
    model: Annotated[
        Annotated[ModelSettings, Tag("ModelSettings")]
        | Annotated[StartSettings, Tag("StartSettings")],
        Discriminator(_begins),
    ]
    preprocessing: Preprocessing = Preprocessing()
    loss: dict[str, Any] = Field(default_factory=lambda: {"kind": "debiased"})
    train: TrainSettings = TrainSettings()

    @field_validator("loss", mode="before")
    @classmethod
    def _no_name(cls, loss: Any) -> Any:
        if isinstance(loss, str):
            raise ValueError(
                f"a preset is named as --loss {loss}, or in the file as extends: loss:{loss}"
            )
        return loss

    @model_validator(mode="after")
    def _boxes_teach(self) -> RunSettings:
        several = self.prepared if isinstance(self.prepared, tuple) else ()
        if self.train.boxes is None and any(each.boxes for each in several):
            raise ValueError("files of boxes are named, but train.boxes is not set")
        return self

    @model_validator(mode="after")
    def _prepared_as_the_start(self) -> RunSettings:
        if isinstance(self.model, StartSettings) and "preprocessing" in self.model_fields_set:
            raise ValueError("with model.start_from, preprocessing is the start's; leave it out")
        return self
