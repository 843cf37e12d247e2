"""Gradients of one step, the same however its batch is cut up.

A contrastive loss needs all embeddings of the batch at once; the activations behind them need
most of the memory. With ``accumulate`` k > 1 the step therefore runs in two passes (GradCache,
Gao et al. 2021): every micro-batch is encoded without a graph; similarities, the objective and
the gradients at the embeddings are computed once for the batch of all processes; then each
micro-batch is encoded again, with the same random numbers, and its embeddings' gradients are
propagated back. The sum is the gradient of the whole batch, exactly. With k = 1 there is one
ordinary pass.

Encoders run on blocks of ``norm_batch`` consecutive studies of the whole batch, each with random
numbers of its own number; without it a block is all that a process encodes at a time.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from medclip_debias.data.loader import Batch
from medclip_debias.errors import ReportedWarning
from medclip_debias.losses.batch import ContrastiveBatch
from medclip_debias.losses.distributed import Ranks, gather_batch, gather_views
from medclip_debias.losses.objective import Objective
from medclip_debias.losses.sharded import (
    ShardedBatch,
    shard_batch,
    shard_views,
    whole_batch_reason,
)
from medclip_debias.models.batch_norm import StepBatchNorm2d
from medclip_debias.models.dual_encoder import DualEncoder
from medclip_debias.models.features import ImageFeatures
from medclip_debias.models.starting import TrainableModel
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


class Embeddings(NamedTuple):
    """What images are scored by, and sentences ``[T, D]``; or two views, each ``[n, D]``.

    Images are `ImageFeatures.stored`: their regions ``[I, N, D]``, or the whole as the only one.
    """

    first: Tensor
    second: Tensor


@dataclass(frozen=True)
class Block:
    """What the encoders see at a time.

    Attributes:
        batch: images and sentences.
        ids: its tokenised sentences.
        seed: of dropout.
        masked: its sentences for the masked-language-model term.
    """

    batch: Batch
    ids: list[list[int]]
    seed: int
    masked: MaskedSentences | None


@dataclass(frozen=True, eq=False)
class CachedGradients:
    """Computes the gradients of one step; see the module.

    Attributes:
        settings: of the run, of which ``accumulate``, ``norm_batch`` and ``channels_last`` say how
            the encoders see the batch.
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
        micro = self._blocks(batch, words)
        masked_tokens = self._masked_tokens(micro)
        scaler = self.precision.scaler
        if len(micro) == 1:
            with self._remembering():
                embeddings, masked = self._encode(micro[0], masked_tokens)
            loss, metrics = self._loss(embeddings, batch, words)
            scaler.scale(self._with_masked(loss, masked)).backward()
            masked = None if masked is None else masked.detach()
            return self._metrics(loss, masked, metrics)

        with torch.no_grad(), self._remembering():
            parts = [self._encode(blocks, None)[0] for blocks in micro]
        leaves = Embeddings(
            *(torch.cat(side).requires_grad_() for side in zip(*parts, strict=True))
        )
        loss, metrics = self._loss(leaves, batch, words)
        scaler.scale(loss).backward()
        gradients = [
            leaf.grad.split([len(part[side]) for part in parts])
            for side, leaf in enumerate(leaves)
            if leaf.grad is not None
        ]
        sum_masked: Tensor | None = None
        for blocks, *gradient in zip(micro, *gradients, strict=True):
            embeddings, masked = self._encode(blocks, masked_tokens)
            ends = [x for x in embeddings if x.requires_grad]
            starts = [g for x, g in zip(embeddings, gradient, strict=True) if x.requires_grad]
            if masked is not None and masked.requires_grad:
                ends.append(scaler.scale(self._with_masked(None, masked)))
                starts.append(torch.ones_like(masked))
            if masked is not None:
                plain = masked.detach()
                sum_masked = plain if sum_masked is None else sum_masked + plain
            if ends:
                torch.autograd.backward(ends, starts)
        return self._metrics(loss, sum_masked, metrics)

    # ---------------------------------------------------------------------- cutting up

    def _blocks(self, batch: Batch, words: Sequence[int]) -> list[list[Block]]:
        """The blocks of each micro-batch, with seeds by their number in the whole batch."""
        micro = batch.split(self.settings.accumulate) if self.settings.accumulate > 1 else [batch]
        count = 1
        if self.settings.norm_batch:
            studies = micro[0].studies[: len(micro[0].studies) // (2 if batch.two_view else 1)]
            count = len(torch.unique_consecutive(studies)) // self.settings.norm_batch
        parts = [part.split(count) if count > 1 else [part] for part in micro]
        first = self.ranks.rank * len(parts) * count
        return [
            [
                self._block(block, step_seed([*words, first + place * count + number]))
                for number, block in enumerate(blocks)
            ]
            for place, blocks in enumerate(parts)
        ]

    def _block(self, batch: Batch, seed: int) -> Block:
        ids = [self.tokens[number] for number in batch.texts.tolist()]
        masked = None
        if self.masked_lm is not None:
            masked = self.masked_lm.mask(self.model, ids, np.random.default_rng([_MASK, seed]))
        return Block(batch, ids, seed, masked)

    def _masked_tokens(self, micro: list[list[Block]]) -> float | None:
        """Number of masked tokens in the batch of all processes."""
        if self.masked_lm is None:
            return None
        blocks = (block for part in micro for block in part)
        count = sum(len(block.masked.targets) for block in blocks if block.masked is not None)
        return total(count, self.ranks, self.model.device)

    # ------------------------------------------------------------------------ encoding

    def _encode(
        self, blocks: list[Block], masked_tokens: float | None
    ) -> tuple[Embeddings, Tensor | None]:
        """Embeddings of one micro-batch, and its part of the masked-language-model loss.

        Args:
            blocks: of the micro-batch.
            masked_tokens: in the whole batch; None leaves that loss out.
        """
        results = [self._encode_block(block, masked_tokens) for block in blocks]
        sides = zip(*(embeddings for embeddings, _ in results), strict=True)
        embeddings = Embeddings(*(_joined(side) for side in sides))
        masked = [loss for _, loss in results if loss is not None]
        return embeddings, torch.stack(masked).sum() if len(masked) > 1 else next(
            iter(masked), None
        )

    def _encode_block(
        self, block: Block, masked_tokens: float | None
    ) -> tuple[Embeddings, Tensor | None]:
        model = self.model
        torch.manual_seed(block.seed)
        with self.precision.autocast():
            features = self._features(block.batch)
            if block.batch.two_view:
                return Embeddings(*features.pooled.chunk(2)), None
            if self.stored is None or self.stored.texts is None:
                sentences = model.encode_ids(block.ids)
            else:
                assert isinstance(model, DualEncoder)  # as `stored` says
                sentences = self.stored.sentences(model, block.batch.texts)
            masked = None
            if self.masked_lm is not None and block.masked is not None and masked_tokens:
                mean = self.masked_lm(model, block.masked)
                masked = mean * (len(block.masked.targets) / masked_tokens)
        return Embeddings(features.stored, sentences), masked

    def _features(self, batch: Batch) -> ImageFeatures:
        """Unit vectors of images, or of their stored features."""
        model, last = self.model, self.settings.channels_last
        pixels = batch.images_on(model.device)
        if self.stored is not None and self.stored.images is not None:
            assert isinstance(model, DualEncoder)  # as `stored` says
            return ImageFeatures(self.stored.regions(model, pixels))
        images = model.normalise(pixels)
        if last:
            images = images.contiguous(memory_format=torch.channels_last)
        return model.encode_images(images)

    @contextmanager
    def _remembering(self) -> Iterator[None]:
        for norm in self.norms:
            norm.remember = True
        try:
            yield
        finally:
            for norm in self.norms:
                norm.remember = False

    # ------------------------------------------------------------------------ the loss

    def _loss(
        self, embeddings: Embeddings, batch: Batch, words: Sequence[int]
    ) -> tuple[Tensor, dict[str, Tensor]]:
        scale = self.model.similarity.scale
        done = words[-1] / self.settings.steps
        batch_of_all = self._gathered(embeddings, batch, scale, step_seed(words), done)
        output = self.objective(batch_of_all)
        loss = output.loss
        if isinstance(batch_of_all, ShardedBatch):
            loss = batch_of_all.loss_of(output)
        return loss, {"scale": scale.detach(), **output.diagnostics}

    def _gathered(
        self, embeddings: Embeddings, batch: Batch, scale: Tensor, seed: int, done: float
    ) -> ContrastiveBatch:
        fields = self.fields.of(batch, seed, done)
        first, second = embeddings
        if batch.two_view:
            views = shard_views if self.sharded else gather_views
            return views(first, second, scale, self.ranks, **fields)
        owners = batch.owners.to(first.device)
        score = self.model.similarity
        gather = shard_batch if self.sharded else gather_batch
        return gather(first, second, score, scale, self.ranks, image_of_sentence=owners, **fields)

    def _with_masked(self, loss: Tensor | None, masked: Tensor | None) -> Tensor:
        """The loss plus the term's share, such that the mean over the processes is its total."""
        if masked is None or self.masked_lm is None:
            assert loss is not None
            return loss
        world = self.ranks.world
        term = self.masked_lm.settings.weight * (masked if world == 1 else masked * world)
        return term if loss is None else loss + term

    def _metrics(
        self, loss: Tensor, masked: Tensor | None, metrics: dict[str, Tensor]
    ) -> dict[str, Tensor]:
        loss = loss.detach()
        if masked is not None and self.masked_lm is not None:
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
    if settings.task == "two_view":
        images = texts = 2 * settings.batch_size
    if settings.shard_loss == "auto" and images * texts < SHARD_FROM:
        return False
    reason = whole_batch_reason(objective)
    if reason is not None and settings.shard_loss == "on":
        warnings.warn(
            ReportedWarning(
                f"{where}: setting 'train.shard_loss' is on, but every process computes the loss "
                f"of the whole batch, for {reason}."
            ),
            stacklevel=2,
        )
    return reason is None


def step_seed(words: Sequence[int]) -> int:
    """One number from the words of a seed; block 0 has that of its step."""
    return int(np.random.SeedSequence(list(words)).generate_state(1)[0])


def _joined(parts: Sequence[Tensor]) -> Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(list(parts))
