"""What the doctor looks at for one run: data, language model, real steps, the whole's cost."""

from __future__ import annotations

import io
import math
import os
import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import torch

from medclip_debias.config import StartSettings
from medclip_debias.data.joint import open_prepared
from medclip_debias.data.layout import TABLES
from medclip_debias.data.store import PreparedSet
from medclip_debias.data.verify import REMEDY, changes
from medclip_debias.doctor.findings import GIB, Examination, Finding, ok, stops, warning
from medclip_debias.errors import UserError
from medclip_debias.language.masked_lm import language_model_hash
from medclip_debias.losses.debiased import LanguageModelEta
from medclip_debias.losses.objective import build_objective, loss_settings
from medclip_debias.models.start import start_training
from medclip_debias.training.checkpoint import KEEP, checkpoints
from medclip_debias.training.fields import setting_of
from medclip_debias.training.lock import holder_of
from medclip_debias.training.settings import RunSettings
from medclip_debias.training.step import Trainer

_STEPS = 3  # the first one loads and allocates; the last is the one that counts
_EVERY = 5.0  # seconds between two words on a long look
_READS, _WRITE = 256, 64 * 2**20


def examine_run(run: RunSettings, where: str, examination: Examination) -> None:
    """Look at everything that ``run`` needs; ``where`` is its file, for messages."""
    look, say = examination.look, examination.say
    opened: list[PreparedSet] = []
    look("data", "Reading all of the prepared set ...", lambda: data(run, opened, say))
    # Of a set that was changed but can be read, a step still shows what else is wrong.
    unread: tuple[str, ...] = () if opened else ("data",)
    look("language model", "Hashing the language model ...", partial(language_model, run))
    after = (*unread, "language model")
    what = "Looking for the scores of the sentences ..."
    look("scores", what, lambda: scores(run, where, opened[0]), after)
    look("run folder", "Looking at the run's folder ...", partial(run_folder, run))
    what = "Reading some rows of the prepared set ..."
    look("disk, prepared set", what, lambda: read_speed(opened[0]), unread)
    what = "Writing a file beside the run's folder ..."
    look("disk, run folder", what, partial(write_speed, run.out), ("run folder",))
    after = (*after, "scores", "GPU")
    look("step", "Building the model ...", partial(steps, run, where, say), after)
    step = examination.findings[-1]
    cost = step.numbers or {}
    # What failed so that there is no step, if there is none.
    cause = () if "seconds" in cost else (str(cost.get("because", "step")),)
    what = "Adding up what the whole run takes ..."
    look("whole run (estimate)", what, partial(estimate, run, cost), cause)
    after = ("run folder", "disk, run folder", *cause)
    look("free disk", "Checking the free space ...", partial(free_disk, run, cost), after)


def data(run: RunSettings, opened: list[PreparedSet], say: Callable[[str], None]) -> Finding:
    """Hash the prepared set again; ``opened`` takes it, if it can be read."""
    prepared = open_prepared(run.prepared)
    for name in TABLES:
        getattr(prepared, name)
    last = time.monotonic()

    def progress(done: int, rows: int) -> None:
        nonlocal last
        if time.monotonic() - last > _EVERY:
            last = time.monotonic()
            say(f"  {done} of {rows} images")

    wrong = changes(prepared, progress)
    opened.append(prepared)
    numbers = {"content_hash": prepared.content_hash, "images": len(prepared), "changed": wrong}
    if wrong:
        return stops("; ".join(wrong), REMEDY, **numbers)
    text = f"{len(prepared)} images, all as prepared, content hash {prepared.content_hash[:12]}"
    return ok(text, **numbers)


def language_model(run: RunSettings) -> Finding:
    """The language model's hash, or that of the model which the run starts from."""
    if isinstance(run.model, StartSettings):
        _, start = start_training(run.model, "the settings")
        return ok("; ".join(start.sentences()))
    name = language_model_hash(run.model.text.folder)
    return ok(f"hash {name}", language_model_hash=name)


def scores(run: RunSettings, where: str, prepared: PreparedSet) -> Finding:
    """Whether the objective reads scores of the sentences, and the set has them."""
    settings = loss_settings(run.loss, where)
    needed = "log_prob" in build_objective(settings).requires
    eta, _ = setting_of(settings, "eta")
    folder = eta.language_model if isinstance(eta, LanguageModelEta) else None
    folder = folder or run.model.text_folder
    if folder is None:
        if needed:
            return stops("no language model is named; set loss.eta.language_model")
        return ok("the objective reads none")
    name = language_model_hash(folder)
    try:
        prepared.scores(name)
    except UserError as error:
        if not needed:
            return ok(f"none of language model {name}; the objective reads none")
        return stops(str(error), f"score {prepared.folder} --language-model {folder}")
    return ok(f"the set's scores come from language model {name}")


def run_folder(run: RunSettings) -> Finding:
    """Whether a run can begin or resume in its folder."""
    out = run.out
    if out.is_file():
        return stops(f"{out} is a file", "give a folder for the run in 'out'")
    holder = holder_of(out)
    if holder is not None:
        remedy = "wait for it, stop it, or give another 'out'"
        return stops(f"another run trains in {out} now ({holder})", remedy)
    there = checkpoints(out / "checkpoints")
    if there:
        text = f"{out} holds a run, whose last checkpoint is {there[-1].name}"
        return ok(text, checkpoint=there[-1].name)
    return ok(f"{out} holds no run yet")


def read_speed(prepared: PreparedSet) -> Finding:
    """Random rows of ``images.bin``, one after the other, from the disk where that is possible."""
    row, rows = prepared.settings.size**2, len(prepared.parts[0])
    count = min(_READS, rows)
    order = np.random.default_rng(0).permutation(rows)[:count]
    handle = os.open(prepared.folder / "images.bin", os.O_RDONLY)
    try:
        # Pages that are in memory would tell nothing about the disk.
        os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
        began = time.perf_counter()
        for place in order:
            os.pread(handle, row, int(place) * row)
        seconds = time.perf_counter() - began
    finally:
        os.close(handle)
    speed = count / seconds
    text = f"{speed:.0f} images a second by one reader, {speed * row / 2**20:.0f} MiB/s"
    return ok(text, images_per_second=speed)


def write_speed(out: Path) -> Finding:
    """Write and sync a file beside the run's folder."""
    folder, block = existing(out), os.urandom(2**20)
    try:
        with tempfile.TemporaryFile(dir=folder) as file:  # without a name: nothing can be left
            began = time.perf_counter()
            for _ in range(_WRITE // len(block)):
                file.write(block)
            file.flush()
            os.fsync(file.fileno())
            speed = _WRITE / (time.perf_counter() - began)
    except OSError as error:
        return stops(
            f"{folder} cannot be written ({error.strerror or type(error).__name__})",
            "give another 'out', or fix its permissions or free space",
        )
    return ok(f"{speed / 2**20:.0f} MiB/s, synced", bytes_per_second=speed)


def existing(folder: Path) -> Path:
    """``folder``, or the nearest folder above it that exists."""
    folder = folder.absolute()
    return next(place for place in (folder, *folder.parents) if place.is_dir())


def steps(run: RunSettings, where: str, say: Callable[[str], None]) -> Finding:
    """Take real steps on real batches; the numbers say what they and the whole run cost."""
    plain = run.train.features.model_copy(update={"cache": False, "text": False})
    uncached = run.train.model_copy(update={"features": plain})
    trainer = Trainer(run.model_copy(update={"train": uncached}), where)
    on_gpu = trainer.device.type == "cuda"
    if on_gpu:
        torch.cuda.reset_peak_memory_stats(trainer.device)
    seconds, reading, loss = math.nan, math.nan, math.nan
    for step in range(_STEPS):
        say(f"Taking step {step + 1} of {_STEPS} ...")
        began = time.perf_counter()
        batch = trainer.batches[step]
        read = time.perf_counter()
        loss = float(trainer.step(step, batch)["loss"])  # waits for the device
        seconds, reading = time.perf_counter() - read, read - began
    peak = torch.cuda.max_memory_allocated(trainer.device) if on_gpu else _resident()
    size, box = run.train.batch_size, io.BytesIO()
    torch.save(trainer.state(), box)
    weights = sum(p.numel() * p.element_size() for p in trainer.model.parameters())
    numbers = {
        "seconds": seconds,
        "read_seconds": reading,
        "peak_bytes": peak,
        "loss": loss,
        "images_per_second": size / seconds,
        "epochs": run.train.steps / trainer.batches.steps_per_epoch,
        "checkpoint_bytes": box.tell(),
        # The last checkpoints, the one being written, the best one's weights, the model folder.
        "disk_bytes": (KEEP + 1) * box.tell() + 2 * weights,
        "feature_bytes": 0,
    }
    kind = "GPU memory" if on_gpu else "memory of this process"
    text = (
        f"loss {loss:.3f}, {seconds:.2f} s a step ({size / seconds:.1f} images a second), "
        f"batch read in {reading:.3f} s, {peak / GIB:.1f} GiB {kind}"
    )
    if run.train.features != plain:
        features = numbers["feature_bytes"] = trainer.features_of(run).planned()
        text += f"; without stored features, of which {features / GIB:.2f} GiB are to be written"
    if reading / max(run.train.workers, 1) > seconds:
        return warning(text, "the loader cannot keep up: raise train.workers", **numbers)
    return ok(text, **numbers)


def estimate(run: RunSettings, cost: dict[str, float]) -> Finding:
    """What the whole run takes."""
    hours = run.train.steps * cost["seconds"] / 3600
    text = (
        f"{run.train.steps} steps ({cost['epochs']:.1f} epochs) take about {hours:.1f} h with one "
        f"process, {cost['peak_bytes'] / GIB:.1f} GiB of memory, "
        f"{cost['disk_bytes'] / GIB:.2f} GiB of disk"
    )
    numbers = {name: cost[name] for name in ("epochs", "checkpoint_bytes", "disk_bytes")}
    free = shutil.disk_usage(existing(run.out)).free
    return ok(text, hours=hours, **numbers, free_bytes=free)


def free_disk(run: RunSettings, cost: dict[str, float]) -> Finding:
    """Whether there is room for checkpoints, and for features, perhaps on another disk."""
    remedy = "free some space, or give another 'out'"
    needs = [("checkpoints", run.out, cost["disk_bytes"], remedy)]
    if features := cost["feature_bytes"]:
        place = run.train.features.folder or open_prepared(run.prepared).folder
        remedy = "free some space, or set train.features.folder, fewer augmentations or dtype fp16"
        needs.append(("features", place, features, remedy))
    texts = []
    on_disk: Counter[int] = Counter()
    for what, place, needed, remedy in needs:
        disk = existing(place)
        free = shutil.disk_usage(disk).free - on_disk[disk.stat().st_dev]
        on_disk[disk.stat().st_dev] += math.ceil(needed)
        texts.append(f"{free / GIB:.1f} GiB free where {what} need {needed / GIB:.2f}")
        if free < needed:
            return stops("; ".join(texts), remedy, disk_bytes=needed, free_bytes=free)
    return ok("; ".join(texts))


def _resident() -> int:
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
