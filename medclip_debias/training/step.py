"""The step of a run, without its folder.

``Trainer(settings).step(k)`` is step k of the run, for a loop, a benchmark or a check of the
machine alike. What comes out is a function of the settings, the data and the steps taken, and
`Trainer.state` holds all of it.

A contrastive loss needs all embeddings of the batch at once; the activations behind them need
most of the memory. With ``accumulate`` k > 1 the step therefore runs in two passes (GradCache,
Gao et al. 2021): every micro-batch is encoded without a graph; similarities, the objective and
the gradients at the embeddings are computed once for the batch of all processes; then each
micro-batch is encoded again, with the same random numbers, and its embeddings' gradients are
propagated back. The sum is the gradient of the whole batch, exactly. With k = 1 there is one
ordinary pass.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from medclip_debias.bounds import keep_in_bounds
from medclip_debias.data.loader import Batch
from medclip_debias.errors import ReportedWarning, UserError, explained
from medclip_debias.evaluation.protocols.laterality import mirrored
from medclip_debias.losses.batch import ContrastiveBatch
from medclip_debias.losses.distributed import Ranks, gather_batch, gather_views, whole_batch_reason
from medclip_debias.losses.objective import Objective
from medclip_debias.models.batch_norm import remembering
from medclip_debias.models.checkpoint import load_strictly
from medclip_debias.models.features import ImageFeatures
from medclip_debias.training.boxes import BoxTerm, box_loss
from medclip_debias.training.distributed import average_gradients, total
from medclip_debias.training.feature_cache import Features
from medclip_debias.training.optim import learning_rate, set_rate
from medclip_debias.training.run import MaskedSentences, Progress, Run, advice
from medclip_debias.training.settings import RunSettings, TrainSettings

SHARD_FROM = 2**22
"""Similarities of a batch (2048 images with a sentence each) from which `shares_loss` says yes."""

# First words of seeds, so that what is masked, and dropout where boxes teach, share no stream with
# the batches.
_MASK, _BOXES = 3, 6

Embeddings = tuple[Tensor, Tensor]
"""What images are scored by (`ImageFeatures.stored`), and sentences ``[T, D]``; or two views."""


class MicroBatch(NamedTuple):
    """What the encoders see at a time: images and sentences, tokenised and perhaps masked."""

    batch: Batch
    ids: list[list[int]]
    seed: int
    masked: MaskedSentences | None


class Trainer(Run):
    """A `Run` that takes steps.

    Attributes:
        stored: features that are read in the place of frozen encoders; None where they compute.
        sharded: each process computes the loss of its own anchors (`shares_loss`).
        asked_to_stop: whether, at the last step, any process asked all to stop.
    """

    def _build(self) -> None:
        super()._build()
        train = self.settings.train
        self.asked_to_stop = False
        self.stored: Features | None = None
        if train.features.cache or train.features.text:
            self.stored = self.features_of(self.settings)
            self.stored.make()
            self.batches.features = self.stored.images
        self.sharded = shares_loss(train, self.objective, self.ranks, self.where)
        self.train_mode()

    def features_of(self, settings: RunSettings) -> Features:
        """The files of features that ``settings`` ask for, which may be others than the run's."""
        for part in self.frozen:
            part.eval()
        return Features(self, settings.train)

    # ------------------------------------------------------------------------- one step

    def rate(self, step: int) -> float:
        """The schedule's learning rate at ``step`` (0-based)."""
        train = self.settings.train
        return learning_rate(
            step,
            peak=train.lr,
            warmup=train.warmup_steps,
            steps=train.steps,
            schedule=train.schedule,
        )

    def step(self, step: int, batch: Batch | None = None, stop: bool = False) -> dict[str, Tensor]:
        """Take one step.

        Args:
            step: its number (0-based), which decides batch, learning rate and random numbers.
            batch: ``self.batches[step]``, if it was read already.
            stop: ask all processes to stop; `asked_to_stop` then says so in all of them.

        Returns:
            Scalars: ``loss``, ``scale``, diagnostics of the objective, and ``gradient_norm``
            unless fp16's scaler left the step out (`left_out`).

        Raises:
            UserError: the loss or its gradient is no number, or the memory does not suffice.
        """
        with advice(self.settings.train.compile):
            return self._step(step, self.batches[step] if batch is None else batch, stop)

    def _step(self, step: int, batch: Batch, stop: bool) -> dict[str, Tensor]:
        set_rate(self.optimizer, self.rate(step))
        self.optimizer.zero_grad(set_to_none=True)
        try:
            metrics = self.backward(batch, step)
            if self.boxes is not None:
                metrics |= self._learn_boxes(self.boxes, step, metrics["loss"])
        except FloatingPointError as error:
            raise self._not_a_number(step, str(error)) from error
        for norm in self.norms:
            norm.finish_step(self.ranks.world)
        self.asked_to_stop = average_gradients(self.parameters, self.ranks, stop)
        scaler = self.precision.scaler
        scaler.unscale_(self.optimizer)
        limit = self.settings.train.clip_norm or math.inf
        norm_of_gradient = nn.utils.clip_grad_norm_(self.parameters, limit)
        figures = torch.stack([metrics["loss"].isfinite(), norm_of_gradient.isfinite()])
        loss_is_finite, gradient_is_finite = figures.tolist()  # the one wait for a GPU
        if not loss_is_finite:
            raise self._not_a_number(step, "the loss is NaN or infinite")
        # With fp16 an overflow is expected now and then: the scaler leaves such a step out and
        # halves its factor, at 1 of which nothing overflows but the gradient itself.
        if not gradient_is_finite and not (scaler.is_enabled() and scaler.get_scale() > 1):
            raise self._not_a_number(step, "the gradient is NaN or infinite")
        scaler.step(self.optimizer)
        scaler.update()
        # Before the average takes them over, so that it stays within the bounds too.
        keep_in_bounds((self.model, self.objective))
        if self.average is not None:
            self.average.update_parameters(self.model)
        return metrics | ({"gradient_norm": norm_of_gradient} if gradient_is_finite else {})

    def left_out(self, steps: int) -> int:
        """How many of so many steps fp16's scaler left out: AdamW counts the others itself."""
        taken = [state["step"] for state in self.optimizer.state.values()]
        return steps - int(torch.stack(taken).max()) if taken else steps

    def _not_a_number(self, step: int, what: str) -> UserError:
        return UserError(
            f"step {step}: {what}; lower train.lr, set train.clip_norm, or train in fp32. "
            f"(The studies of this batch have the hash {self.batch_hash(step)}.)"
        )

    # ------------------------------------------------------------------------ its gradients

    def backward(self, batch: Batch, step: int) -> dict[str, Tensor]:
        """Add the gradients of this process's part; their mean over the processes is the batch's.

        Returns:
            ``loss`` of the batch of all processes, ``scale``, and diagnostics.

        Raises:
            FloatingPointError: similarities are no numbers.
        """
        parts = self._micro_batches(batch, step)
        tokens: float = sum(len(part.masked.targets) for part in parts if part.masked)
        if self.masked_lm is not None:  # masked in the batch of all processes
            tokens = total(tokens, self.ranks, self.model.device)
        scaler, weight = self.precision.scaler, self.masked_weight
        if len(parts) == 1:
            with remembering(self.norms):
                embeddings, masked = self._encode(parts[0], tokens)
            loss, metrics = self._loss(embeddings, batch, step)
            scaler.scale(loss if masked is None else loss + weight * masked).backward()
            return self._metrics(loss, masked, metrics)

        with torch.no_grad(), remembering(self.norms):
            encoded = [self._encode(part)[0] for part in parts]
        leaves = [torch.cat(side).requires_grad_() for side in zip(*encoded, strict=True)]
        loss, metrics = self._loss((leaves[0], leaves[1]), batch, step)
        scaler.scale(loss).backward()
        gradients = [
            leaf.grad.split([len(part[side]) for part in encoded])
            for side, leaf in enumerate(leaves)
            if leaf.grad is not None
        ]
        sum_masked: Tensor | None = None
        for part, *gradient in zip(parts, *gradients, strict=True):
            embeddings, masked = self._encode(part, tokens)
            ends = [x for x in embeddings if x.requires_grad]
            starts = [g for x, g in zip(embeddings, gradient, strict=True) if x.requires_grad]
            if masked is not None:
                if masked.requires_grad:
                    ends.append(scaler.scale(weight * masked))
                    starts.append(torch.ones_like(masked))
                plain = masked.detach()
                sum_masked = plain if sum_masked is None else sum_masked + plain
            if ends:
                torch.autograd.backward(ends, starts)
        return self._metrics(loss, sum_masked, metrics)

    def _learn_boxes(self, boxes: BoxTerm, step: int, loss: Tensor) -> dict[str, Tensor]:
        """Add the gradients of what boxes teach; return their ``box_loss``, and the whole ``loss``.

        In a pass of its own, whose images do not move the running statistics of batch norms.
        """
        batch, train, ranks = boxes.batch(step), self.settings.train, self.ranks
        torch.manual_seed(step_seed([_BOXES, train.seed, step, ranks.rank]))
        device, count, others = self.model.device, len(batch.texts), [*map(mirrored, batch.texts)]
        ids = self.model.token_ids([*batch.texts, *others])
        with self.precision.autocast():
            features = self._encode_images(batch.images.to(device))
            sentences = self.model.encode_ids(ids)
        maps, each = self.model.region_scores(features, sentences), torch.arange(count)
        no_side = torch.tensor([a == b for a, b in zip(batch.texts, others, strict=True)])
        term = boxes.options.weight * box_loss(
            maps[each, each],
            batch.masks.to(device),
            boxes.options.temperature,
            maps[each, count + each].masked_fill(no_side.to(device)[:, None], -torch.inf),
        )
        self.precision.scaler.scale(term).backward()
        term = term.detach()
        if ranks.world > 1:
            term = term.new_full((), total(float(term), ranks, device) / ranks.world)
        return {"box_loss": term / boxes.options.weight, "loss": loss + term}

    def _micro_batches(self, batch: Batch, step: int) -> list[MicroBatch]:
        """The micro-batches, with seeds by their number among those of all processes."""
        k = self.settings.train.accumulate
        parts = []
        for place, part in enumerate(batch.split(k) if k > 1 else [batch]):
            seed = step_seed([self.settings.train.seed, step, self.ranks.rank * k + place])
            ids = [self.tokens[number] for number in part.texts.tolist()]
            masked = None
            if self.masked_lm is not None:
                masked = self.masked_lm.mask(self.model, ids, np.random.default_rng([_MASK, seed]))
            parts.append(MicroBatch(part, ids, seed, masked))
        return parts

    def _encode(
        self, part: MicroBatch, masked_tokens: float = 0
    ) -> tuple[Embeddings, Tensor | None]:
        """Embeddings of one micro-batch, and its masked-language-model loss.

        That loss is its part of the mean over the ``masked_tokens`` of the whole batch, times the
        processes, whose mean is taken; none without them.
        """
        torch.manual_seed(part.seed)
        with self.precision.autocast():
            features = self._image_features(part.batch)
            if part.batch.two_view:
                first, second = features.pooled.chunk(2)
                return (first, second), None
            if self.stored is not None and self.stored.texts is not None:
                sentences = self.stored.sentence_vectors(part.batch.texts)
            else:
                sentences = self.model.encode_ids(part.ids)
            masked = None
            if self.masked_lm is not None and part.masked and masked_tokens:
                share = self.ranks.world * len(part.masked.targets) / masked_tokens
                masked = self.masked_lm(self.model, part.masked) * share
        return (features.stored, sentences), masked

    def _image_features(self, batch: Batch) -> ImageFeatures:
        """Unit vectors of images, or of their stored features."""
        pixels = batch.images_on(self.model.device)
        if self.stored is not None and self.stored.images is not None:
            return ImageFeatures(self.stored.region_vectors(pixels))
        return self._encode_images(pixels)

    def _encode_images(self, pixels: Tensor) -> ImageFeatures:
        images = self.model.normalise(pixels)
        if self.settings.train.channels_last:
            images = images.contiguous(memory_format=torch.channels_last)
        return self.model.encode_images(images)

    def _loss(
        self, embeddings: Embeddings, batch: Batch, step: int
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """The objective of the batch of all processes, and figures for the log."""
        similarity, train, ranks = self.model.similarity, self.settings.train, self.ranks
        scale = similarity.scale
        fields = self.fields.of(batch, step_seed([train.seed, step]), step / train.steps)
        first, second = embeddings
        everyone: ContrastiveBatch
        if batch.two_view:
            everyone = gather_views(first, second, scale, ranks, **fields)
        else:
            fields["image_of_sentence"] = batch.owners.to(first.device, non_blocking=True)
            everyone = gather_batch(
                first, second, similarity, scale, ranks, shard=self.sharded, **fields
            )
        output = self.objective(everyone)
        loss = everyone.loss_of(output.per_anchor)
        return loss, {"scale": scale.detach(), **output.diagnostics}

    def _metrics(
        self, loss: Tensor, masked: Tensor | None, metrics: dict[str, Tensor]
    ) -> dict[str, Tensor]:
        """Figures for the log, with the mean of ``masked`` over the processes."""
        loss = loss.detach()
        if masked is not None:
            masked = masked.detach()
            if self.ranks.world > 1:
                everyone = total(float(masked), self.ranks, masked.device) / self.ranks.world
                masked = masked.new_full((), everyone)
            metrics = metrics | {"contrastive_loss": loss, "masked_lm_loss": masked}
            loss = loss + self.masked_weight * masked
        return {"loss": loss, **metrics}

    # -------------------------------------------------------------------------- its state

    def state(self) -> dict[str, Any]:
        """All that steps change, ready for ``torch.save``."""
        parts: dict[str, Any] = {
            "model": self.model.state_dict(),
            "objective": self.objective.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "scaler": self.precision.scaler.state_dict(),
        }
        if self.masked_lm is not None:
            parts["masked_lm"] = self.masked_lm.state_dict()
        if self.average is not None:
            parts["average"] = self.average.state_dict()
        return parts

    def restore(self, state: dict[str, Any], where: str) -> None:
        """Continue from `state`.

        Raises:
            UserError: it is of another architecture.
        """
        load_strictly(self.model, state["model"], where)
        if self.stored is not None:
            self.stored.check_weights(where)
        # Not load_strictly: tables of per-sample state take the size that they had.
        with explained(f"{where}: its objective's state does not fit", RuntimeError):
            self.objective.load_state_dict(state["objective"])
        if self.masked_lm is not None:
            load_strictly(self.masked_lm, state.get("masked_lm", {}), where)
        if self.average is not None:
            load_strictly(self.average, state.get("average", {}), where)
        with explained(f"{where}: its optimiser's state does not fit", ValueError, KeyError):
            self.optimizer.load_state_dict(state["optimizer"])
            self.precision.scaler.load_state_dict(state["scaler"])


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
            f"the whole batch, since {reason}."
        )
        warnings.warn(ReportedWarning(sentence), stacklevel=2)
    return reason is None


def step_seed(words: Sequence[int]) -> int:
    """One number from the words of a seed; micro-batch 0 has that of its step."""
    return int(np.random.SeedSequence(list(words)).generate_state(1)[0])


def store_features(
    settings: RunSettings, where: str, say: Callable[[str], None], progress: Progress
) -> dict[str, Any]:
    """Write the features that a run reads, as its first start would; nothing of what is there.

    Returns:
        Folder, rows, shape and bytes of each file.

    Raises:
        UserError: the settings ask for none, or as `Trainer`.
    """
    wanted = settings.train.features
    if not (wanted.cache or wanted.text):
        raise UserError(
            f"{where}: asks for no stored features; set train.features.cache=true (with "
            "train.trainable.image=frozen) or train.features.text=true (with "
            "train.trainable.text=frozen)."
        )
    stored = Trainer(settings, where, say=say, progress=progress).stored
    assert stored is not None
    files = {"image": stored.images, "text": stored.texts}
    return {
        what: {
            "folder": str(file.folder),
            "rows": file.rows,
            "shape": " x ".join(map(str, file.shape)),
            "bytes": file.size,
        }
        for what, file in files.items()
        if file is not None
    }
