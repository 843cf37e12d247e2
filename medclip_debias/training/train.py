"""One training run, from validated settings to a model folder.

The loop is plain PyTorch (autocast, AdamW, ``torch.save``) and not Lightning Fabric: importing
Fabric takes longer here than all other imports of a run together, and everything it would add
to one process is three lines below. Many processes use torch's own DDP under torchrun.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import yaml
from torch import Tensor, nn

from medclip_debias import __version__
from medclip_debias.data.loader import Batch, StepBatches, TrainingStudies, iterate
from medclip_debias.data.prompts import default_prompts
from medclip_debias.data.store import PreparedSet
from medclip_debias.errors import UserError, explained
from medclip_debias.files import write_text
from medclip_debias.language.masked_lm import language_model_hash
from medclip_debias.losses.base import ContrastiveBatch, Objective
from medclip_debias.losses.registry import build_objective, loss_settings
from medclip_debias.models.dual_encoder import DualEncoder, best_device, load_state
from medclip_debias.training.checkpoint import checkpoints, load_checkpoint, save_checkpoint
from medclip_debias.training.fields import BatchFields
from medclip_debias.training.logs import MetricsLog, Window
from medclip_debias.training.masked_lm_term import MaskedLMTerm
from medclip_debias.training.schedule import learning_rate
from medclip_debias.training.settings import RunSettings

# First word of the seed of what is masked, so that it shares no stream with the batches.
_MASK = 3

Progress = Callable[[int, int, float], None]

# Settings that change how fast a run goes or how much it says, but not what it computes.
_FREE = (
    "train.workers",
    "train.log_every",
    "train.checkpoint_every",
    "train.device",
    "train.augment.where",
    "model.similarity.chunk",
    "out",
)


@dataclass(frozen=True)
class RunResult:
    """What a run left behind."""

    model: Path
    steps: int
    loss: float
    images_per_second: float
    resumed_at: int


def train(
    settings: RunSettings,
    *,
    where: str = "the settings",
    fresh: bool = False,
    progress: Progress | None = None,
) -> RunResult:
    """Train a model, resuming where an earlier call with equal settings stopped.

    Args:
        settings: the whole run.
        where: file the settings came from, for messages.
        fresh: start over, dropping the run's checkpoints.
        progress: called with steps done, steps to do, and the running loss.

    Returns:
        The model folder ``out/model`` and figures of the run.

    Raises:
        UserError: the prepared set, language model or scores do not fit, the folder holds a run
            with other settings, or the loss stopped being a number.
    """
    run = _Run(settings, where)
    start = run.open_folder(fresh)
    return run.loop(start, progress)


class _Run:
    """State of one run: model, objective, optimiser, data."""

    def __init__(self, settings: RunSettings, where: str) -> None:
        self.settings = settings
        self.where = where
        self.loss_settings = loss_settings(settings.loss, where)
        self.prepared = PreparedSet.open(settings.prepared)
        if settings.preprocessing.prepare != self.prepared.settings:
            raise UserError(
                f"{where}: setting 'preprocessing.prepare' is "
                f"{settings.preprocessing.prepare.model_dump()}, but {settings.prepared} was "
                f"prepared with {self.prepared.settings.model_dump()}; make them equal."
            )
        self.device = best_device(settings.train.device)
        self.studies = TrainingStudies.of(self.prepared)
        self.batches = StepBatches(
            self.prepared.pixels,
            self.studies,
            batch_size=settings.train.batch_size,
            sentences_per_study=settings.train.sentences_per_study,
            input_size=settings.preprocessing.input_size,
            augment=settings.train.augment,
            seed=settings.train.seed,
        )
        torch.manual_seed(settings.train.seed)
        self.model = DualEncoder.create(settings.model, settings.preprocessing).to(self.device)
        self.objective: Objective = build_objective(self.loss_settings).to(self.device)
        term = self.objective.masked_lm
        self.masked_lm = (
            MaskedLMTerm(term, settings.model.text.folder, self.model) if term else None
        )
        modules = [self.model, self.objective, *([self.masked_lm] if self.masked_lm else [])]
        # The term's output layer is the text encoder's embedding: once is enough.
        self.parameters = list(dict.fromkeys(p for m in modules for p in m.parameters()))
        self.optimizer = _optimizer(self.parameters, settings)
        self.tokens = self.model.tokenizer.encode(
            self.studies.texts, settings.model.text.max_tokens
        )
        self.fields = BatchFields(
            self.objective,
            self.loss_settings,
            prepared=self.prepared,
            studies=self.studies,
            text_folder=settings.model.text.folder,
            max_tokens=settings.model.text.max_tokens,
            device=self.device,
            where=where,
        )
        self.language_model_hash = language_model_hash(settings.model.text.folder)

    # ----------------------------------------------------------------------- the folder

    def open_folder(self, fresh: bool) -> int:
        """Make or check the run's folder; return the step to start at."""
        out = self.settings.out
        if out.is_file():
            raise UserError(f"{out}: is a file; give a folder for the run in 'out'.")
        self.checkpoint_folder = out / "checkpoints"
        mine = self._identity()
        path = out / "settings.yaml"
        if fresh:
            for old in checkpoints(self.checkpoint_folder):
                old.unlink()
        found = checkpoints(self.checkpoint_folder)
        if found and path.is_file():
            _same_run(_flat(yaml.safe_load(path.read_text())), _flat(mine), out)
        write_text(path, yaml.safe_dump(mine, sort_keys=False))
        if not found:
            return 0
        return self._restore(found[-1])

    def _identity(self) -> dict[str, Any]:
        content = self.settings.model_dump(mode="json")
        content["loss"] = self.loss_settings.model_dump(mode="json")
        content["provenance"] = {
            "medclip_debias": __version__,
            "data_hash": self.prepared.content_hash,
            "language_model_hash": self.language_model_hash,
        }
        return content

    def _restore(self, path: Path) -> int:
        state = load_checkpoint(path)
        load_state(self.model, state["model"], str(path))
        # Not load_state: tables of per-sample state take the size that they had.
        with explained(f"{path}: its objective's state does not fit", RuntimeError):
            self.objective.load_state_dict(state["objective"])
        if self.masked_lm is not None:
            load_state(self.masked_lm, state.get("masked_lm", {}), str(path))
        self.optimizer.load_state_dict(state["optimizer"])
        return int(state["step"])

    def _checkpoint(self, step: int) -> None:
        state = {
            "model": self.model.state_dict(),
            "objective": self.objective.state_dict(),
            "optimizer": self.optimizer.state_dict(),
        }
        if self.masked_lm is not None:
            state["masked_lm"] = self.masked_lm.state_dict()
        save_checkpoint(self.checkpoint_folder, step, state)

    # ------------------------------------------------------------------------- the loop

    def loop(self, start: int, progress: Progress | None) -> RunResult:
        """Train from step ``start`` to the end and write the model folder."""
        s = self.settings.train
        out = self.settings.out
        window, running, began = Window(), math.nan, time.perf_counter()
        mark = began
        self.model.train()
        with MetricsLog(out, start) as log:
            batches = iterate(self.batches, start, s.steps, s.workers)
            for step, batch in enumerate(batches, start=start):
                rate = learning_rate(step, peak=s.lr, warmup=s.warmup_steps, steps=s.steps)
                figures = self._step(step, batch, rate)
                window.add(figures)
                done = step + 1
                if done % s.log_every == 0 or done == s.steps:
                    now, count = time.perf_counter(), window.steps
                    row = window.means()
                    running = row["loss"]
                    speed = count * s.batch_size / (now - mark)
                    mark = now
                    epoch = done / self.batches.steps_per_epoch
                    log.write(
                        {"step": done, "epoch": epoch, "lr": rate}
                        | row
                        | {"images_per_second": speed, "seconds": now - began}
                    )
                if done % s.checkpoint_every == 0 or done == s.steps:
                    self._checkpoint(done)
                if progress:
                    progress(done, s.steps, running)
        if start >= s.steps:
            running = _last_loss(out / "metrics.csv")
        self._save_model()
        seconds = time.perf_counter() - began
        speed = (s.steps - start) * s.batch_size / seconds if s.steps > start else 0.0
        return RunResult(out / "model", s.steps, running, speed, start)

    def _step(self, step: int, batch: Batch, rate: float) -> dict[str, Tensor]:
        s = self.settings.train
        # Dropout depends on the seed and the step alone, as the batch does.
        seed = int(np.random.SeedSequence([s.seed, step]).generate_state(1)[0])
        torch.manual_seed(seed)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        ids = [self.tokens[number] for number in batch.texts.tolist()]
        images = self.model.normalise(batch.images_on(self.device))
        half = torch.autocast(self.device.type, torch.bfloat16)
        with half if s.precision == "bf16" else nullcontext():
            similarity, scale = self.model(images, ids)
            masked = None
            if self.masked_lm is not None:
                masked = self.masked_lm(self.model, ids, np.random.default_rng([_MASK, seed]))
        given = self.fields.of(batch, seed)
        try:
            contrast = ContrastiveBatch(similarity, scale, batch.owners.to(self.device), **given)
            output = self.objective(contrast)
        except FloatingPointError as error:
            raise UserError(
                f"step {step}: {error}; lower train.lr, set train.clip_norm, or train in fp32."
            ) from error
        loss, figures = output.loss, dict(output.diagnostics)
        if masked is not None and self.masked_lm is not None:
            figures |= {"contrastive_loss": loss, "masked_lm_loss": masked}
            loss = loss + self.masked_lm.settings.weight * masked
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        limit = s.clip_norm or math.inf
        norm = nn.utils.clip_grad_norm_(self.parameters, limit)
        self.optimizer.step()
        return {
            "loss": loss,
            "scale": scale,
            **figures,
            "gradient_norm": norm,
        }

    def _save_model(self) -> None:
        self.model.prompts = default_prompts()
        self.model.provenance = self._identity() | {"studies": len(self.studies)}
        self.model.eval()
        self.model.save(self.settings.out / "model")


def _optimizer(parameters: Sequence[nn.Parameter], settings: RunSettings) -> torch.optim.AdamW:
    """AdamW; biases, norms and the logit scale are not decayed."""
    decayed = [p for p in parameters if p.ndim > 1]
    others = [p for p in parameters if p.ndim <= 1]
    groups = [
        {"params": decayed, "weight_decay": settings.train.weight_decay},
        {"params": others, "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=settings.train.lr)


def _flat(content: Any, prefix: str = "") -> dict[str, Any]:
    if not isinstance(content, dict):
        return {prefix: content}
    result: dict[str, Any] = {}
    for key, value in content.items():
        result |= _flat(value, f"{prefix}.{key}" if prefix else str(key))
    return result


def _same_run(old: dict[str, Any], new: dict[str, Any], out: Path) -> None:
    """A checkpoint must not continue under other settings."""
    differ = sorted(k for k in old | new if old.get(k) != new.get(k) and k not in _FREE)
    if differ:
        raise UserError(
            f"{out}: holds a run with other settings ({', '.join(differ[:4])}); "
            "give another 'out', or --fresh to start over."
        )


def _last_loss(path: Path) -> float:
    import csv

    if not path.is_file():
        return math.nan
    with path.open(newline="", encoding="utf-8") as stream:
        rows = list(csv.DictReader(stream))
    return float(rows[-1]["loss"]) if rows else math.nan
