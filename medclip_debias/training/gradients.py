"""Gradients of one step, whose batch may be cut up.

A contrastive loss needs all embeddings of the batch at once; the activations behind them need
most of the memory. With ``accumulate`` k > 1 the step therefore runs in two passes (GradCache,
Gao et al. 2021): every micro-batch is encoded without a graph; similarities, the objective and
the gradients at the embeddings are computed once for the batch of all processes; then each
micro-batch is encoded again, with the same random numbers, and its embeddings' gradients are
propagated back. The sum is the gradient of the whole batch, exactly. With k = 1 there is one
ordinary pass.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from medclip_debias.data.loader import Batch
from medclip_debias.errors import ReportedWarning
from medclip_debias.losses.batch import ContrastiveBatch
from medclip_debias.losses.distributed import Ranks, gather_batch, gather_views
from medclip_debias.losses.objective import Objective
from medclip_debias.losses.sharded import ShardedBatch, shard_batch, whole_batch_reason
from medclip_debias.models.batch_norm import StepBatchNorm2d, remembering
from medclip_debias.models.dual_encoder import DualEncoder
from medclip_debias.models.features import ImageFeatures
from medclip_debias.models.start import TrainableModel
from medclip_debias.training.distributed import total
from medclip_debias.training.feature_cache import FeatureCache
from medclip_debias.training.fields import BatchFields
from medclip_debias.training.masked_lm_term import MaskedLMTerm, MaskedSentences
from medclip_debias.training.precision import Precision
from medclip_debias.training.settings import TrainSettings

# First word of the seed of what is masked, so that it shares no stream with the batches.
_MASK = 3

SHARD_FROM = 2**22
"""Similarities of a batch (2048 images with a sentence each) from which `shares_loss` says yes."""

Embeddings = tuple[Tensor, Tensor]
"""What images are scored by (`ImageFeatures.stored`), and sentences ``[T, D]``; or two views."""


@dataclass(frozen=True)
class MicroBatch:
    """What the encoders see at a time: images and sentences, tokenised and perhaps masked."""

    batch: Batch
    ids: list[list[int]]
    seed: int
    masked: MaskedSentences | None


@dataclass(frozen=True, eq=False)
class CachedGradients:
    """Computes the gradients of one step; see the module.

    Attributes:
        settings: of the run.
        model: in training mode.
        objective: of the whole batch.
        masked_lm: the objective's masked-language-model term, if it has one.
        fields: what the objective reads.
        tokens: tokenised sentences of the run.
        norms: batch norms whose running statistics move once a step.
        precision: of the encoders.
        ranks: which process this is.
        stored: what is read in the place of the frozen encoders of a `DualEncoder`; None where they
            compute.
        sharded: each process computes the loss of its own anchors (`shares_loss`).
    """

    settings: TrainSettings
    model: TrainableModel
    objective: Objective
    masked_lm: MaskedLMTerm | None
    fields: BatchFields
    tokens: Sequence[list[int]]
    norms: Sequence[StepBatchNorm2d]
    precision: Precision
    ranks: Ranks
    stored: FeatureCache | None = None
    sharded: bool = False

    def backward(self, batch: Batch, words: Sequence[int]) -> dict[str, Tensor]:
        """Add the gradients of this process's part; their mean over the processes is the batch's.

        Args:
            batch: this process's share.
            words: seed of the step: of the run, and the number of the step.

        Returns:
            ``loss`` of the batch of all processes, ``scale``, and diagnostics.

        Raises:
            FloatingPointError: similarities are no numbers.
        """
        parts = self._micro_batches(batch, words)
        masked_tokens = None  # in the batch of all processes
        if self.masked_lm is not None:
            count = sum(len(part.masked.targets) for part in parts if part.masked is not None)
            masked_tokens = total(count, self.ranks, self.model.device)
        scaler = self.precision.scaler
        if len(parts) == 1:
            with remembering(self.norms):
                embeddings, masked = self._encode(parts[0], masked_tokens)
            loss, metrics = self._loss(embeddings, batch, words)
            sum_loss = loss if masked is None else loss + self._masked_share(masked)
            scaler.scale(sum_loss).backward()
            return self._metrics(loss, masked, metrics)

        with torch.no_grad(), remembering(self.norms):
            encoded = [self._encode(part, None)[0] for part in parts]
        leaves = [torch.cat(side).requires_grad_() for side in zip(*encoded, strict=True)]
        loss, metrics = self._loss((leaves[0], leaves[1]), batch, words)
        scaler.scale(loss).backward()
        gradients = [
            leaf.grad.split([len(part[side]) for part in encoded])
            for side, leaf in enumerate(leaves)
            if leaf.grad is not None
        ]
        sum_masked: Tensor | None = None
        for part, *gradient in zip(parts, *gradients, strict=True):
            embeddings, masked = self._encode(part, masked_tokens)
            ends = [x for x in embeddings if x.requires_grad]
            starts = [g for x, g in zip(embeddings, gradient, strict=True) if x.requires_grad]
            if masked is not None:
                if masked.requires_grad:
                    ends.append(scaler.scale(self._masked_share(masked)))
                    starts.append(torch.ones_like(masked))
                plain = masked.detach()
                sum_masked = plain if sum_masked is None else sum_masked + plain
            if ends:
                torch.autograd.backward(ends, starts)
        return self._metrics(loss, sum_masked, metrics)

    def _micro_batches(self, batch: Batch, words: Sequence[int]) -> list[MicroBatch]:
        """The micro-batches, with seeds by their number among those of all processes."""
        k = self.settings.accumulate
        parts = []
        for place, part in enumerate(batch.split(k) if k > 1 else [batch]):
            seed = step_seed([*words, self.ranks.rank * k + place])
            ids = [self.tokens[number] for number in part.texts.tolist()]
            masked = None
            if self.masked_lm is not None:
                masked = self.masked_lm.mask(self.model, ids, np.random.default_rng([_MASK, seed]))
            parts.append(MicroBatch(part, ids, seed, masked))
        return parts

    def _encode(
        self, part: MicroBatch, masked_tokens: float | None
    ) -> tuple[Embeddings, Tensor | None]:
        """Embeddings of one micro-batch, and its part of the masked-language-model loss.

        ``masked_tokens``: in the whole batch; None leaves that loss out.
        """
        model = self.model
        torch.manual_seed(part.seed)
        with self.precision.autocast():
            features = self._features(part.batch)
            if part.batch.two_view:
                first, second = features.pooled.chunk(2)
                return (first, second), None
            if self.stored is None or self.stored.texts is None:
                sentences = model.encode_ids(part.ids)
            else:
                assert isinstance(model, DualEncoder)  # as `stored` says
                sentences = self.stored.sentences(model, part.batch.texts)
            masked = None
            if self.masked_lm is not None and part.masked is not None and masked_tokens:
                mean = self.masked_lm(model, part.masked)
                masked = mean * (len(part.masked.targets) / masked_tokens)
        return (features.stored, sentences), masked

    def _features(self, batch: Batch) -> ImageFeatures:
        """Unit vectors of images, or of their stored features."""
        model = self.model
        pixels = batch.images_on(model.device)
        if self.stored is not None and self.stored.images is not None:
            assert isinstance(model, DualEncoder)  # as `stored` says
            return ImageFeatures(self.stored.regions(model, pixels))
        images = model.normalise(pixels)
        if self.settings.channels_last:
            images = images.contiguous(memory_format=torch.channels_last)
        return model.encode_images(images)

    def _loss(
        self, embeddings: Embeddings, batch: Batch, words: Sequence[int]
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """The objective of the batch of all processes, and figures for the log."""
        scale, ranks = self.model.similarity.scale, self.ranks
        fields = self.fields.of(batch, step_seed(words), words[-1] / self.settings.steps)
        first, second = embeddings
        everyone: ContrastiveBatch
        if batch.two_view:
            everyone = gather_views(first, second, scale, ranks, **fields)
        else:
            fields["image_of_sentence"] = batch.owners.to(first.device)
            gather = shard_batch if self.sharded else gather_batch
            everyone = gather(first, second, self.model.similarity, scale, ranks, **fields)
        output = self.objective(everyone)
        loss = everyone.loss_of(output) if isinstance(everyone, ShardedBatch) else output.loss
        return loss, {"scale": scale.detach(), **output.diagnostics}

    def _masked_share(self, masked: Tensor) -> Tensor:
        """The weighted term of this process; the mean over the processes is its total."""
        assert self.masked_lm is not None
        world = self.ranks.world
        return self.masked_lm.settings.weight * (masked if world == 1 else masked * world)

    def _metrics(
        self, loss: Tensor, masked: Tensor | None, metrics: dict[str, Tensor]
    ) -> dict[str, Tensor]:
        loss = loss.detach()
        if masked is not None and self.masked_lm is not None:
            masked = masked.detach()
            if self.ranks.world > 1:
                masked = masked.new_tensor(total(float(masked), self.ranks, masked.device))
            metrics = metrics | {"contrastive_loss": loss, "masked_lm_loss": masked}
            loss = loss + self.masked_lm.settings.weight * masked
        return {"loss": loss, **metrics}


def shares_loss(settings: TrainSettings, objective: Objective, ranks: Ranks, where: str) -> bool:
    """Whether each process is to compute the loss of its own anchors alone.

    ``auto`` does so from `SHARD_FROM` similarities a batch on, where the objective allows it;
    ``on`` warns where it does not.
    """
    if ranks.world == 1 or settings.shard_loss == "off":
        return False
    images = settings.batch_size * settings.views_per_study
    texts = settings.batch_size * settings.sentences_per_study
    if settings.shard_loss == "auto" and images * texts < SHARD_FROM:
        return False
    reason = whole_batch_reason(objective)
    if settings.task == "two_view":
        reason = "two views are compared with all others"
    if reason is not None and settings.shard_loss == "on":
        sentence = (
            f"{where}: setting 'train.shard_loss' is on, but every process computes the loss of "
            f"the whole batch, for {reason}."
        )
        warnings.warn(ReportedWarning(sentence), stacklevel=2)
    return reason is None


def step_seed(words: Sequence[int]) -> int:
    """One number from the words of a seed; micro-batch 0 has that of its step."""
    return int(np.random.SeedSequence(list(words)).generate_state(1)[0])
