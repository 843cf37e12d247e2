"""What the doctor looks at for one run: data, language model, real steps, the whole's cost."""

from __future__ import annotations

import io
import math
import shutil
import time
from typing import Any

import torch

from medclip_debias.data.store import TABLES, PreparedSet, content_hash
from medclip_debias.errors import UserError
from medclip_debias.language.masked_lm import language_model_hash
from medclip_debias.training.checkpoint import KEEP
from medclip_debias.training.doctor import (
    GIB,
    OK,
    STOPS,
    WARNING,
    Finding,
    Say,
    existing,
    guarded,
    read_speed,
    write_speed,
)
from medclip_debias.training.run import Trainer
from medclip_debias.training.settings import RunSettings

_STEPS = 3  # the first one loads and allocates; the last is the one that counts


def examine_run(run: RunSettings, where: str, say: Say) -> list[Finding]:
    """Look at everything that ``run`` needs; ``where`` is its file, for messages."""
    say("Reading the data ...")
    findings = [
        guarded("data", lambda: data(run)),
        guarded("language model", lambda: language_model(run)),
        guarded("disk, prepared set", lambda: _reading(run)),
        guarded("disk, run folder", lambda: write_speed(run.out)),
    ]
    say(f"Taking {_STEPS} steps ...")
    try:
        findings += steps(run, where)
    except UserError as error:
        findings.append(Finding("step", STOPS, str(error), "the run would end with this sentence"))
    return findings


def data(run: RunSettings) -> Finding:
    """Hash the prepared set again and compare with what it says of itself."""
    prepared = PreparedSet.open(run.prepared)
    tables = {name: getattr(prepared, name) for name in TABLES}
    kind = str(prepared.meta.get("kind", ""))
    found = content_hash(run.prepared, tables, prepared.settings, kind)
    figures = {"content_hash": found, "images": len(prepared)}
    told = f"{len(prepared)} images, content hash {found[:12]}"
    if found != prepared.content_hash:
        return Finding(
            "data",
            STOPS,
            f"{told}, but meta.json says {prepared.content_hash[:12]}: changed or damaged",
            "copy the set again, or run 'prepare' again",
            figures,
        )
    return Finding("data", OK, told + ", as in meta.json", figures=figures)


def language_model(run: RunSettings) -> Finding:
    """The language model's hash, and whether the set's scores come from it."""
    prepared = PreparedSet.open(run.prepared)
    name = language_model_hash(run.model.text.folder)
    figures: dict[str, Any] = {"language_model_hash": name}
    told = f"hash {name}"
    try:
        prepared.scores(name)
    except UserError as error:
        return Finding(
            "language model",
            WARNING,
            f"{told}; no scores of it",
            f"only objectives that read them need them: {error}",
            figures,
        )
    return Finding("language model", OK, f"{told}; the set's scores come from it", figures=figures)


def _reading(run: RunSettings) -> Finding:
    prepared = PreparedSet.open(run.prepared)
    return read_speed(run.prepared / "images.bin", prepared.settings.size**2, len(prepared))


def steps(run: RunSettings, where: str) -> list[Finding]:
    """Take real steps on real batches; what they cost, and what the whole run will."""
    trainer = Trainer(run, where)
    on_gpu = trainer.device.type == "cuda"
    if on_gpu:
        torch.cuda.reset_peak_memory_stats(trainer.device)
    seconds, reading, loss = math.nan, math.nan, math.nan
    for step in range(_STEPS):
        began = time.perf_counter()
        batch = trainer.batches[step]
        read = time.perf_counter()
        figures = trainer.step(step, batch)
        loss = float(figures["loss"])  # waits for the device
        seconds, reading = time.perf_counter() - read, read - began
    peak = torch.cuda.max_memory_allocated(trainer.device) if on_gpu else _resident()
    size = run.train.batch_size
    measured = {
        "seconds": seconds,
        "read_seconds": reading,
        "peak_bytes": peak,
        "loss": loss,
        "images_per_second": size / seconds,
    }
    kind = "GPU memory" if on_gpu else "memory of this process"
    told = (
        f"loss {loss:.3f}, {seconds:.2f} s a step ({size / seconds:.1f} images a second), "
        f"batch read in {reading:.3f} s, {peak / GIB:.1f} GiB {kind}"
    )
    starved = reading / max(run.train.workers, 1) > seconds
    remedy = "the loader cannot keep up: raise train.workers" if starved else ""
    first = Finding("step", WARNING if starved else OK, told, remedy, measured)
    return [first, *_whole(run, trainer, seconds, peak)]


def _whole(run: RunSettings, trainer: Trainer, seconds: float, peak: int) -> list[Finding]:
    box = io.BytesIO()
    torch.save(trainer.state(), box)
    checkpoint = box.tell()
    weights = sum(p.numel() * p.element_size() for p in trainer.model.parameters())
    # The last ones, the one that is being written, the best one's weights, and the model folder.
    needed = (KEEP + 1) * checkpoint + 2 * weights
    free = shutil.disk_usage(existing(run.out)).free
    hours = run.train.steps * seconds / 3600
    epochs = run.train.steps / trainer.batches.steps_per_epoch
    figures = {
        "hours": hours,
        "epochs": epochs,
        "checkpoint_bytes": checkpoint,
        "disk_bytes": needed,
        "free_bytes": free,
    }
    told = (
        f"{run.train.steps} steps ({epochs:.1f} epochs) take about {hours:.1f} h with one process, "
        f"{peak / GIB:.1f} GiB of memory, {needed / GIB:.2f} GiB of disk"
    )
    findings = [Finding("whole run (estimate)", OK, told, figures=figures)]
    space = f"{free / GIB:.1f} GiB free where checkpoints need {needed / GIB:.2f}"
    if free < needed:
        remedy = "free some space, or give another 'out'"
        findings.append(Finding("free disk", STOPS, space, remedy, figures))
    else:
        findings.append(Finding("free disk", OK, space))
    return findings


def _resident() -> int:
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
