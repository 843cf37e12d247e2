"""A run without its folder: everything that takes one step after another.

``Trainer(settings).step(k)`` is step k of the run, for a loop, a benchmark or a check of the
machine alike. What comes out is a function of the settings, the data and the steps taken, and
`Trainer.state` holds all of it.
"""

from __future__ import annotations

import hashlib
import logging
import math
import warnings
from collections.abc import Callable
from typing import Any, cast

import torch
from torch import Tensor, nn

from medclip_debias.bounds import keep_in_bounds
from medclip_debias.config import ModelSettings, StartSettings
from medclip_debias.data.joint import open_prepared
from medclip_debias.data.loader import Batch, StepBatches, TrainingStudies
from medclip_debias.errors import ReportedWarning, UserError, explained
from medclip_debias.grounding.preparation import differences
from medclip_debias.losses.distributed import Ranks
from medclip_debias.losses.objective import Objective, build_objective, loss_settings
from medclip_debias.losses.siglip import carry_bias
from medclip_debias.models.batch_norm import StepBatchNorm2d, use_step_batch_norm
from medclip_debias.models.checkpoint import load_strictly
from medclip_debias.models.device import best_device
from medclip_debias.models.dual_encoder import DualEncoder
from medclip_debias.models.start import Start, TrainableModel, start_training
from medclip_debias.training.distributed import average_gradients
from medclip_debias.training.feature_cache import FeatureCache, Features, Progress
from medclip_debias.training.fields import OF_SENTENCES, BatchFields, RunData, excludes_own_study
from medclip_debias.training.gradients import CachedGradients, shares_loss
from medclip_debias.training.masked_lm_term import MaskedLMTerm
from medclip_debias.training.optim import (
    choose_parts,
    learning_rate,
    make_optimizer,
    moving_average,
    parameter_counts,
    set_rate,
    trained,
)
from medclip_debias.training.precision import Precision, advice, arrange, be_deterministic
from medclip_debias.training.settings import RunSettings, check_text_features

_log = logging.getLogger(__name__)


class Trainer:
    """Model, objective, optimiser and data of one run, in one of its processes.

    Args:
        settings: the whole run; nothing is written to its ``out``.
        where: file the settings came from, for messages.
        ranks: which process this is.
        device: where to compute; by default what the settings say.
        say: called with a sentence about what takes long or much room; by default it is logged.
        progress: called with rows of stored features done and to do, while they are written.

    Attributes:
        model: being trained.
        start: the model that it was before, None where the run builds a new one.
        batches: item k is this process's share of the batch of step k.
        optimizer: AdamW.
        counts: numbers of each part that train and that do not.
        average: exponential moving average of the model, or None.
        asked_to_stop: whether, at the last step, any process asked all to stop.

    Raises:
        UserError: the prepared set, language model or scores do not fit the settings, or the
            memory does not suffice.
    """

    model: TrainableModel

    def __init__(
        self,
        settings: RunSettings,
        where: str = "the settings",
        ranks: Ranks | None = None,
        device: torch.device | None = None,
        say: Callable[[str], None] = _log.info,
        progress: Progress | None = None,
    ) -> None:
        train = settings.train
        self.say, self.progress = say, progress
        self.settings, self.where = settings, where
        self.ranks = ranks or Ranks()
        self.asked_to_stop = False
        if train.deterministic:
            be_deterministic()
        self.loss_settings = loss_settings(settings.loss, where)
        self.prepared = open_prepared(settings.prepared)
        self.start: Start | None = None
        if isinstance(settings.model, StartSettings):
            self._begin(settings.model)
        self._check_settings()
        self.device = device or best_device(train.device)
        two_view = train.task == "two_view"
        self.studies = TrainingStudies.of(self.prepared, text=not two_view)
        self.batches = StepBatches(
            self.prepared.pixels,
            self.studies,
            batch_size=train.batch_size,
            sentences_per_study=train.sentences_per_study,
            input_size=self.settings.preprocessing.input_size,
            augment=train.augment,
            seed=train.seed,
            views_per_study=train.views_per_study,
            two_view=two_view,
            rank=self.ranks.rank,
            world=self.ranks.world,
            augmentations=train.features.augmentations,
        )
        with advice(train.compile):
            self._build()

    def _begin(self, model: StartSettings) -> None:
        """Read the model that the run starts from; what it expects of images is taken over."""
        self.model, self.start = start_training(model, self.where)
        if differ := differences(self.model.preprocessing, self.prepared):
            raise UserError(
                f"{self.where}: {self.prepared.folder} was prepared otherwise than "
                f"{model.start_from} expects ({', '.join(differ)}); prepare it again with "
                f"medclip-debias prepare SOURCE OUT --for {model.start_from}."
            )
        self._check_features(self.settings)
        expected = {"preprocessing": self.model.preprocessing}
        self.settings = self.settings.model_copy(update=expected)

    def _check_features(self, settings: RunSettings) -> None:
        """See that features can be kept of the start, which settings alone do not say."""
        wanted = settings.train.features
        if (wanted.cache or wanted.text) and not isinstance(self.model, DualEncoder):
            raise UserError(
                f"{self.where}: 'train.features.cache' and 'train.features.text' keep what encoders"
                " of this project give, and 'model.start_from' is another group's model; set both "
                "to false."
            )
        if wanted.text:
            try:
                check_text_features(self.model.similarity.settings)
            except ValueError as error:
                raise UserError(f"{self.where}: {error}.") from error

    def _check_settings(self) -> None:
        settings, train = self.settings, self.settings.train
        if settings.preprocessing.prepare != self.prepared.settings:
            raise UserError(
                f"{self.where}: setting 'preprocessing.prepare' is "
                f"{settings.preprocessing.prepare.model_dump()}, but {self.prepared.folder} was "
                f"prepared with {self.prepared.settings.model_dump()}; make them equal."
            )
        parts = self.ranks.world * train.accumulate
        if train.batch_size % parts:
            raise UserError(
                f"{self.where}: setting 'train.batch_size' is {train.batch_size}, which "
                f"{self.ranks.world} processes, each with {train.accumulate} micro-batches, "
                f"cannot share evenly; make it a multiple of {parts}."
            )
        if train.views_per_study > 1 and not excludes_own_study(self.loss_settings):
            sentence = (
                f"{self.where}: setting 'train.views_per_study' is {train.views_per_study}, but "
                "the loss takes the other images of a study for negatives of its sentences; add "
                "{kind: mask_same_study} to its negatives, or choose 'positives: study' "
                "(debiased) or multi_positive."
            )
            warnings.warn(ReportedWarning(sentence), stacklevel=2)

    def _build(self) -> None:
        settings, train = self.settings, self.settings.train
        torch.manual_seed(train.seed)
        if isinstance(settings.model, ModelSettings):
            self.model = DualEncoder.create(settings.model, settings.preprocessing)
        self.model = self.model.to(self.device)
        self.objective: Objective = build_objective(self.loss_settings).to(self.device)
        if self.start is not None and self.start.bias is not None:
            carry_bias(self.objective, self.start.bias)
        self.objective.begin(
            samples=len(self.studies), steps_per_epoch=self.batches.steps_per_epoch
        )
        self._check_task()
        self.masked_lm = self._masked_lm()
        self._others: list[nn.Module] = [self.objective]
        if self.masked_lm is not None:
            self._others.append(self.masked_lm)
        self.frozen = choose_parts(self.model, train, self.where)
        self.counts = parameter_counts(self.model)
        self.norms: list[StepBatchNorm2d] = []
        if self.ranks.world > 1 or train.accumulate > 1:  # one pass is not the whole batch
            several = self.ranks.world > 1
            self.norms = use_step_batch_norm(self.model.image_encoder, synchronised=several)
        # After the batch norms: the copy must have their buffers, for it takes them over in order.
        self.average = moving_average(self.model, train.ema) if train.ema else None
        self.optimizer = make_optimizer(self.model, self._others, train)
        self.parameters = trained(self.optimizer)
        self.precision = Precision(train.precision, self.device)
        arrange(self.model, train)
        run = RunData(
            self.objective,
            self.loss_settings,
            prepared=self.prepared,
            studies=self.studies,
            text_folder=settings.model.text_folder,
            max_tokens=self.model.max_tokens,
            device=self.device,
            where=self.where,
            model=self.model,
            several_views=train.views_per_study > 1,
        )
        tokens = self.model.token_ids(self.studies.texts)
        self.cached = CachedGradients(
            train,
            model=self.model,
            objective=self.objective,
            masked_lm=self.masked_lm,
            fields=BatchFields(run),
            tokens=tokens,
            norms=self.norms,
            precision=self.precision,
            ranks=self.ranks,
            stored=self._stored(tokens),
            sharded=shares_loss(train, self.objective, self.ranks, self.where),
        )
        self.train_mode()

    def _check_task(self) -> None:
        missing = sorted(self.objective.requires & OF_SENTENCES)
        if self.settings.train.task == "two_view" and (missing or self.objective.masked_lm):
            reads = ", ".join(missing) or "sentences, for its masked-language-model term"
            raise UserError(
                f"{self.where}: setting 'train.task' is 'two_view', which has no sentences, but "
                f"the objective reads {reads}; change 'loss', or train on image_text."
            )

    def _masked_lm(self) -> MaskedLMTerm | None:
        term, folder = self.objective.masked_lm, self.settings.model.text_folder
        if term is None:
            return None
        if folder is None or not isinstance(self.model, DualEncoder):
            raise UserError(
                f"{self.where}: the loss adds masked language modelling, whose head no model "
                "folder holds; with model.start_from choose a loss without it."
            )
        return MaskedLMTerm(term, folder, self.model)

    def _stored(self, tokens: list[list[int]]) -> FeatureCache | None:
        """Features of frozen encoders, written first where they are missing."""
        wanted, self._features = self.settings.train.features, None
        if not (wanted.cache or wanted.text):
            return None
        self._features = self.features_of(self.settings, tokens)
        cache = self._features.ready()
        self.batches.features = cache.images
        return cache

    def features_of(self, settings: RunSettings, tokens: list[list[int]]) -> Features:
        """The files of features that ``settings`` ask for, which may be others than the run's."""
        for part in self.frozen:
            part.eval()
        self._check_features(settings)
        assert isinstance(self.model, DualEncoder)  # `_check_features` refuses others
        # That of the start is in the trainer's settings alone.
        settings = settings.model_copy(update={"preprocessing": self.settings.preprocessing})
        run = (settings, self.model, self.prepared, self.batches, tokens)
        return Features(*run, self.ranks, self.say, self.progress)

    def train_mode(self) -> None:
        """Put everything into training mode; what is frozen stays in evaluation mode."""
        for module in (self.model, *self._others):
            module.train()
        for part in self.frozen:
            part.eval()

    @property
    def result(self) -> TrainableModel:
        """The model that is validated and saved: the moving average where there is one."""
        if self.average is None:
            return self.model
        return cast("TrainableModel", self.average.module)

    # ------------------------------------------------------------------------- one step

    def rate(self, step: int) -> float:
        """The schedule's learning rate at ``step`` (0-based)."""
        train = self.settings.train
        warmup, steps = train.warmup_steps, train.steps
        return learning_rate(
            step, peak=train.lr, warmup=warmup, steps=steps, schedule=train.schedule
        )

    def step(self, step: int, batch: Batch | None = None, stop: bool = False) -> dict[str, Tensor]:
        """Take one step.

        Args:
            step: its number (0-based), which decides batch, learning rate and random numbers.
            batch: ``self.batches[step]``, if it was read already.
            stop: ask all processes to stop; `asked_to_stop` then says so in all of them.

        Returns:
            Scalars: ``loss``, ``scale``, diagnostics of the objective, ``gradient_norm``.

        Raises:
            UserError: the loss or its gradient is no number, or the memory does not suffice.
        """
        with advice(self.settings.train.compile):
            return self._step(step, self.batches[step] if batch is None else batch, stop)

    def _step(self, step: int, batch: Batch, stop: bool) -> dict[str, Tensor]:
        set_rate(self.optimizer, self.rate(step))
        self.optimizer.zero_grad(set_to_none=True)
        try:
            metrics = self.cached.backward(batch, [self.settings.train.seed, step])
        except FloatingPointError as error:
            raise self._not_a_number(step, str(error)) from error
        for norm in self.norms:
            norm.finish_step(self.ranks.world)
        self.asked_to_stop = average_gradients(self.parameters, self.ranks, stop)
        scaler = self.precision.scaler
        scaler.unscale_(self.optimizer)
        limit = self.settings.train.clip_norm or math.inf
        norm_of_gradient = nn.utils.clip_grad_norm_(self.parameters, limit)
        if not torch.isfinite(metrics["loss"]):
            raise self._not_a_number(step, "the loss is no number")
        # With fp16 an overflow is expected now and then: the scaler leaves such a step out.
        if not (scaler.is_enabled() or torch.isfinite(norm_of_gradient)):
            raise self._not_a_number(step, "the gradient is no number")
        scaler.step(self.optimizer)
        scaler.update()
        # Before the average takes them over, so that it stays within the bounds too.
        keep_in_bounds((self.model, self.objective))
        if self.average is not None:
            self.average.update_parameters(self.model)
        return {**metrics, "gradient_norm": norm_of_gradient}

    def _not_a_number(self, step: int, what: str) -> UserError:
        return UserError(
            f"step {step}: {what}; lower train.lr, set train.clip_norm, or train in fp32. "
            f"(The studies of this batch have the hash {self.batch_hash(step)}.)"
        )

    def batch_hash(self, step: int) -> str:
        """12 hex digits that name the studies of the batch of ``step``, whatever their order.

        The first digits of the SHA-256 over their sorted ids, one a line.
        """
        column = self.prepared.images["study_id"]
        members = self.batches.members(step)
        ids = sorted(str(column.iloc[int(self.studies.rows[m][0])]) for m in members)
        return hashlib.sha256("\n".join(ids).encode()).hexdigest()[:12]

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
        if self._features is not None:
            self._features.check_weights(where)
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
    stored = Trainer(settings, where, say=say, progress=progress).cached.stored
    assert stored is not None
    files = {"image": stored.images, "text": stored.texts}
    return {
        what: {
            "folder": str(file.folder),
            "rows": file.layout.rows,
            "shape": " x ".join(map(str, file.layout.shape)),
            "bytes": file.layout.size,
        }
        for what, file in files.items()
        if file is not None
    }
