"""What a run is made of: data, model, objective and optimiser of one of its processes."""

from __future__ import annotations

import hashlib
import logging
import os
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from medclip_debias.config import ModelSettings, StartSettings
from medclip_debias.data.joint import open_prepared
from medclip_debias.data.loader import StepBatches, TrainingStudies
from medclip_debias.errors import ReportedWarning, UserError
from medclip_debias.grounding.preparation import differences
from medclip_debias.language.masked_lm import mask_tokens
from medclip_debias.losses.biovil import MaskedLMSettings
from medclip_debias.losses.distributed import Ranks
from medclip_debias.losses.objective import Objective, build_objective, loss_settings
from medclip_debias.losses.siglip import carry_bias
from medclip_debias.models.batch_norm import StepBatchNorm2d, use_step_batch_norm
from medclip_debias.models.device import best_device
from medclip_debias.models.dual_encoder import DualEncoder
from medclip_debias.models.start import Start, TrainableModel, start_training
from medclip_debias.models.text_encoder import load_masked_lm
from medclip_debias.training.boxes import BoxTerm
from medclip_debias.training.fields import OF_SENTENCES, BatchFields, RunData, excludes_own_study
from medclip_debias.training.optim import (
    choose_parts,
    make_optimizer,
    moving_average,
    parameter_counts,
    trained,
)
from medclip_debias.training.settings import RunSettings, TrainSettings

Progress = Callable[[int, int], None]

_log = logging.getLogger(__name__)
_HALF = {"bf16": torch.bfloat16, "fp16": torch.float16}


class Precision:
    """Autocast for the encoders, and the scaling of the loss, which does nothing but for fp16."""

    def __init__(self, name: str, device: torch.device) -> None:
        self.half = _HALF.get(name)
        self.device = device
        self.scaler = torch.amp.GradScaler(device.type, enabled=name == "fp16")

    def autocast(self) -> AbstractContextManager[object]:
        """Context in which the encoders run.

        A new one each time: weights cast without a graph must not be reused with one.
        """
        return torch.autocast(self.device.type, self.half) if self.half else nullcontext()


def arrange(model: TrainableModel, settings: TrainSettings) -> None:
    """Memory layout, activation checkpoints and compilation of the encoders, in place."""
    if settings.channels_last:
        model.image_encoder.to(memory_format=torch.channels_last)
    if settings.checkpoint_text:
        # The random state is kept, so that dropout is the same in the second pass.
        bert: Any = getattr(model.text_encoder, "bert", None)
        if bert is None:
            raise UserError(
                "train.checkpoint_text is set, but CLIP's text tower keeps its activations; leave "
                "it out."
            )
        bert.config.use_cache = False
        # transformers 5 gave it a new name on the way.
        enable = getattr(bert, "activation_checkpointing_enable", None)
        (enable or bert.gradient_checkpointing_enable)({"use_reentrant": False})
    if settings.compile:
        # torch's own random numbers, so that dropout is the same with and without a graph.
        options = {"fallback_random": True}
        model.image_encoder.compile(options=options)
        model.text_encoder.compile(dynamic=True, options=options)


def be_deterministic() -> None:
    """Choose algorithms whose result never varies, or fail where there is none."""
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(True)
    torch.backends.cudnn.benchmark = False


_NO_MEMORY = ("out of memory", "can't allocate memory", "not enough memory", "bad_alloc")


@contextmanager
def advice(compiled: bool) -> Iterator[None]:
    """Turn a failed allocation, or a failed compilation, into a sentence of advice."""
    try:
        yield
    except (torch.OutOfMemoryError, MemoryError, RuntimeError) as error:
        words = str(error).lower()
        short = isinstance(error, (torch.OutOfMemoryError, MemoryError))
        if short or any(text in words for text in _NO_MEMORY):
            raise UserError(
                "The memory does not suffice for this batch: raise train.accumulate, set "
                "train.checkpoint_text=true, use train.precision=bf16, or lower train.batch_size "
                "(which changes the loss)."
            ) from None
        if compiled and type(error).__module__.startswith(("torch._dynamo", "torch._inductor")):
            raise UserError(
                "train.compile is set, but the encoders cannot be compiled here (it takes a C++ "
                "compiler on a CPU, and Triton on a GPU); leave it out."
            ) from error
        raise


class MaskedSentences(NamedTuple):
    """Sentences with tokens to predict."""

    inputs: Tensor  # [T, L] token ids after masking
    mask: Tensor  # [T, L] 1 where there is a token
    places: Tensor  # [T, L] bool, the tokens to predict
    targets: Tensor  # [P] their true ids


class MaskedLMTerm(nn.Module):
    """``weight`` times the cross-entropy of masked tokens under the text encoder being trained.

    The prediction head starts from the language model's folder; its output layer is the
    encoder's own word embedding, as in BERT.
    """

    def __init__(self, settings: MaskedLMSettings, folder: Path, model: DualEncoder) -> None:
        super().__init__()
        self.settings = settings
        self.head: nn.Module = load_masked_lm(folder).cls.to(model.device).train()
        self.head.predictions.decoder.weight = (
            model.text_encoder.bert.embeddings.word_embeddings.weight
        )

    def mask(
        self, model: TrainableModel, ids: Sequence[Sequence[int]], rng: np.random.Generator
    ) -> MaskedSentences:
        """Choose what is to be predicted."""
        assert isinstance(model, DualEncoder)  # as the one given at the start
        padded, mask = model.tokenizer.pad(ids)
        share = self.settings.mask_share
        inputs, places, targets = mask_tokens(padded, mask, model.tokenizer, share, rng)
        return MaskedSentences(inputs, mask, places, targets)

    def forward(self, model: TrainableModel, sentences: MaskedSentences) -> Tensor:
        """Mean cross-entropy, in nats a masked token, before ``weight``."""
        assert isinstance(model, DualEncoder)
        device = model.device
        hidden = model.text_encoder.bert(
            input_ids=sentences.inputs.to(device), attention_mask=sentences.mask.to(device)
        ).last_hidden_state
        predicted = self.head(hidden[sentences.places.to(device)]).float()
        return F.cross_entropy(predicted, sentences.targets.to(device))


class Run:
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
        tokens: the run's distinct sentences, tokenised.
        fields: what the objective reads beside the similarities.
        norms: batch norms whose running statistics move once a step.
        optimizer: AdamW.
        counts: numbers of each part that train and that do not.
        boxes: phrases whose boxes teach maps, or None.
        average: exponential moving average of the model, or None.

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
        self.settings, self.where, self.say, self.progress = settings, where, say, progress
        self.ranks = ranks or Ranks()
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
        expected = {"preprocessing": self.model.preprocessing}
        self.settings = self.settings.model_copy(update=expected)

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
                f"{self.where}: setting 'train.views_per_study' is"
                f" {train.views_per_study}, but the loss takes the other images of a study as "
                "negatives of its sentences; add "
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
        missing = sorted(self.objective.requires & OF_SENTENCES)
        if train.task == "two_view" and (missing or self.objective.masked_lm):
            reads = ", ".join(missing) or "sentences, for its masked-language-model term"
            raise UserError(
                f"{self.where}: setting 'train.task' is 'two_view', which has no sentences, but "
                f"the objective reads {reads}; change 'loss', or train on image_text."
            )
        self.masked_lm: MaskedLMTerm | None = None
        self.masked_weight = 0.0
        if self.objective.masked_lm is not None:
            folder = settings.model.text_folder
            if folder is None or not isinstance(self.model, DualEncoder):
                raise UserError(
                    f"{self.where}: the loss adds masked language modelling, whose head no model "
                    "folder holds; with model.start_from choose a loss without it."
                )
            self.masked_lm = MaskedLMTerm(self.objective.masked_lm, folder, self.model)
            self.masked_weight = self.objective.masked_lm.weight
        self._others = [part for part in (self.objective, self.masked_lm) if part is not None]
        self.frozen = choose_parts(self.model, train, self.where)
        self.counts = parameter_counts(self.model)
        self.norms: list[StepBatchNorm2d] = []
        several = self.ranks.world > 1
        if several or train.accumulate > 1 or train.boxes:  # one pass is not the whole batch
            self.norms = use_step_batch_norm(self.model.image_encoder, synchronised=several)
        # After the batch norms: the copy must have their buffers, for it takes them over in order.
        self.average = moving_average(self.model, train.ema) if train.ema else None
        self.optimizer = make_optimizer(self.model, self._others, train)
        self.parameters = trained(self.optimizer)
        self.precision = Precision(train.precision, self.device)
        arrange(self.model, train)
        data = RunData(
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
        self.tokens = self.model.token_ids(self.studies.texts)
        self.boxes: BoxTerm | None = None
        if train.boxes:
            if self.model.outputs.map_kind != "cosine":
                raise UserError(
                    f"{self.where}: 'train.boxes' teaches maps of cosines, and this model's are"
                    " shares of attention; leave it out, or choose another aggregator."
                )
            self.boxes = BoxTerm(
                self.prepared, self.settings, self.ranks, self.model.grid, self.where
            )
        self.fields = BatchFields(data)

    def train_mode(self) -> None:
        """Put everything into training mode; what is frozen stays in evaluation mode."""
        for module in (self.model, *self._others):
            module.train()
        for part in self.frozen:
            part.eval()

    @property
    def result(self) -> TrainableModel:
        """The model that is validated and saved: the moving average where there is one."""
        return self.model if self.average is None else cast(TrainableModel, self.average.module)

    def batch_hash(self, step: int) -> str:
        """12 hex digits that name the studies of the batch of ``step``, whatever their order.

        The first digits of the SHA-256 over their sorted ids, one a line.
        """
        column = self.prepared.images["study_id"]
        members = self.batches.members(step)
        ids = sorted(str(column.iloc[int(self.studies.rows[m][0])]) for m in members)
        return hashlib.sha256("\n".join(ids).encode()).hexdigest()[:12]
