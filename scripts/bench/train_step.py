"""Training steps a second, memory, and who waits for whom: this engine and two other loops.

    python scripts/bench/train_step.py all --threads 2
    python scripts/bench/train_step.py all --device cuda --precision bf16 --batch 256 --size 480
    python scripts/bench/train_step.py soak --steps 10000

Verbs: ``agree`` (the losses of engine and plain loop on one batch), ``speed``, ``wait`` (loader
alone, step alone, share of the time that a step waits), ``precision`` (bf16 against fp32, every
preset), ``soak``, ``all`` (all but soak; precision only with a GPU). Makes its own phantom in a
temporary folder; the text encoder is a BERT of random weights. Writes Markdown.
"""

from __future__ import annotations

import argparse
import math
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from train_ways import Scale, make_data, settings, ways

from medclip_debias.data.loader import Batch, iterate
from medclip_debias.errors import UserError
from medclip_debias.losses.presets import presets
from medclip_debias.training.step import Trainer

MIB = 2**20
AGREE, HALF_ERROR = 1e-4, 1e-2
SOAK_EVERY = 1000


def row(*cells: object) -> None:
    """Print one row of a table."""
    print("| " + " | ".join(map(str, cells)) + " |", flush=True)


def head(title: str, *cells: str) -> None:
    """Print a table's title and head."""
    print(f"\n{title}\n")
    row(*cells)
    row("---", *["---:"] * (len(cells) - 1))


def wait_for(device: torch.device) -> None:
    """Until the device has done all that it was given."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def seconds(work: Callable[[], object], device: torch.device) -> float:
    """How long ``work`` takes, with all that it starts on the device."""
    wait_for(device)
    began = time.perf_counter()
    work()
    wait_for(device)
    return time.perf_counter() - began


def some_batches(trainer: Trainer, count: int) -> list[Batch]:
    """The first batches of the run, read in advance."""
    return [trainer.batches[number] for number in range(count)]


# --------------------------------------------------------------------------- correctness


def agree(folder: Path, scale: Scale) -> float:
    """Relative difference of the losses of engine and plain loop, without dropout, in float32."""
    exact = Scale(**{**vars(scale), "precision": "fp32", "compile": False})
    trainer = Trainer(settings(folder, exact, lr=1e-12))
    batch = trainer.batches[0]
    plain = ways(trainer)["plain"]()
    trainer.model.text_encoder.eval()
    plain.model.text_encoder.eval()
    with torch.no_grad():
        theirs = float(plain.loss(batch))
    ours = float(trainer.step(0, batch)["loss"])
    difference = abs(ours - theirs) / abs(theirs)
    verdict = "agree" if difference <= AGREE else "DIFFER"
    print(f"\nLoss of the same batch and weights: engine {ours:.6f}, plain loop {theirs:.6f};")
    print(f"relative difference {difference:.1e}, at most {AGREE:.0e} wanted: they {verdict}.")
    if difference > AGREE:
        raise SystemExit(1)
    return difference


# -------------------------------------------------------------------------- time, memory


def speed(folder: Path, scale: Scale, steps: int, rounds: int) -> dict[str, float]:
    """Median seconds a step of each way; all take turns in each round."""
    trainer = Trainer(settings(folder, scale))
    batches = some_batches(trainer, min(steps, trainer.batches.steps_per_epoch))
    known = {name: make() for name, make in ways(trainer).items()}
    spent: dict[str, list[float]] = {name: [] for name in known}
    done = 0
    for number in range(rounds + 1):
        for name, way in known.items():

            def some(way: Any = way, first: int = done) -> None:
                for place in range(steps):
                    way.step(first + place, batches[place % len(batches)])

            taken = seconds(some, trainer.device) / steps
            if number:  # the first round allocates, chooses algorithms, compiles
                spent[name].append(taken)
        done += steps
    found = {name: statistics.median(values) for name, values in spent.items()}
    head("Steps on batches already read", "way", "s a step", "images/s", "engine against it")
    for name, value in found.items():
        row(name, f"{value:.4f}", f"{scale.batch / value:.1f}", f"{value / found['engine']:.2f}")
    return found


def wait(folder: Path, scale: Scale, steps: int) -> dict[str, float]:
    """Loader alone, step alone, and both together as a run has them."""
    trainer = Trainer(settings(folder, scale))
    device = trainer.device
    batches = some_batches(trainer, min(steps, trainer.batches.steps_per_epoch))
    trainer.step(0, batches[0])
    alone = seconds(lambda: some_batches(trainer, steps), torch.device("cpu")) / steps

    def all_steps() -> None:
        for number in range(steps):
            trainer.step(number, batches[number % len(batches)])

    stepping = seconds(all_steps, device) / steps
    waited = 0.0
    # Two steps more: the first ones start the loader's processes and are not counted.
    reader = iterate(trainer.batches, 0, steps + 2, scale.workers)
    began = math.nan
    for number in range(steps + 2):
        if number == 2:
            wait_for(device)
            began, waited = time.perf_counter(), 0.0
        asked = time.perf_counter()
        batch = next(reader)
        waited += time.perf_counter() - asked
        trainer.step(number, batch)
    wait_for(device)
    both = time.perf_counter() - began
    found = {
        "loader": alone,
        "step": stepping,
        "together": both / steps,
        "share": waited / both,
    }
    head(f"Who waits ({scale.workers} loading processes)", "what", "s a step")
    row("loader alone, in one process", f"{alone:.4f}")
    row("step alone", f"{stepping:.4f}")
    row("together", f"{found['together']:.4f}")
    print(f"\nA step waits {100 * found['share']:.2f}% of the time for data (goal: below 2%).")
    return found


# --------------------------------------------------------------------- share of the peak


def gradient_of(
    folder: Path, scale: Scale, loss: dict[str, Any], precision: str
) -> tuple[float, Tensor]:
    """Loss and gradient (one vector) of the first batch, without dropout."""
    run = settings(folder, scale, loss, precision=precision, deterministic=False)
    trainer = Trainer(run)
    for module in trainer.model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
    trainer.model.text_encoder.eval()
    metrics = trainer.backward(trainer.batches[0], 0)
    parts = [p.grad.flatten().double().cpu() for p in trainer.parameters if p.grad is not None]
    return float(metrics["loss"]), torch.cat(parts)


def precision(folder: Path, scale: Scale, only: list[str]) -> dict[str, tuple[float, ...]]:
    """bf16 against fp32 of the loss of every preset: loss, gradient norm and vector."""
    head("bf16 against fp32", "loss", "loss", "gradient norm", "gradient vector", "within 1e-2")
    found: dict[str, tuple[float, ...]] = {}
    for name, preset in sorted(presets().items()):
        if only and name not in only:
            continue
        try:
            exact, whole = gradient_of(folder, scale, preset.loss, "fp32")
        except UserError:  # as a list of words that no sentence of the phantom holds
            row(name, "-", "-", "-", "left out: the phantom lacks what it reads")
            continue
        half, part = gradient_of(folder, scale, preset.loss, "bf16")
        norm = float(whole.norm())
        errors = (
            abs(half - exact) / max(abs(exact), 1e-12),
            abs(float(part.norm()) - norm) / norm,
            float((part - whole).norm()) / norm,
        )
        found[name] = errors
        good = "yes" if max(errors) <= HALF_ERROR else "no"
        row(name, *(f"{error:.1e}" for error in errors), good)
    return found


# -------------------------------------------------------------------------- soak, predict


def soak(folder: Path, scale: Scale, steps: int, every: int = SOAK_EVERY) -> list[float]:
    """Memory after every ``every`` steps, real loader included; growth since the row before."""
    import psutil

    trainer = Trainer(settings(folder, scale))
    on_gpu = trainer.device.type == "cuda"
    head("Soak", "step", "memory, MiB", "growth", "GPU memory, MiB", "loss")
    taken: list[float] = []
    for number, batch in enumerate(iterate(trainer.batches, 0, steps, scale.workers), start=1):
        metrics = trainer.step(number - 1, batch)
        if number % every and number != steps:
            continue
        taken.append(psutil.Process().memory_info().rss / MIB)
        growth = f"{taken[-1] - taken[-2]:+.1f}" if len(taken) > 1 else ""
        gpu = f"{torch.cuda.memory_allocated(trainer.device) / MIB:.1f}" if on_gpu else ""
        row(number, f"{taken[-1]:.1f}", growth, gpu, f"{float(metrics['loss']):.4f}")
    return taken


# ------------------------------------------------------------------------- command line


def main(words: list[str] | None = None) -> None:
    """Read the command line, make the data, measure."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("verb", choices=("agree", "speed", "wait", "precision", "soak", "all"))
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--precision", choices=("fp32", "bf16", "fp16"), default="fp32")
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--size", type=int, default=224, help="side of the input in pixels")
    parser.add_argument("--arch", default="resnet18")
    parser.add_argument("--hidden", type=int, default=256, help="width of the text encoder")
    parser.add_argument("--layers", type=int, default=4, help="of the text encoder")
    parser.add_argument("--studies", type=int, default=0, help="of the phantom")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument(
        "--channels-last",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="the engine's images, as by default in training; the other ways have none",
    )
    parser.add_argument("--compile", action="store_true", help="the engine's encoders")
    parser.add_argument("--steps", type=int, default=5, help="of a round, or of the soak")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--only", nargs="*", default=[], help="precision: names of presets")
    parser.add_argument("--folder", type=Path, help="keep the generated data here, or use it again")
    given = parser.parse_args(words)
    torch.set_num_threads(given.threads)
    scale = Scale(**{name: getattr(given, name) for name in Scale.__dataclass_fields__})
    with tempfile.TemporaryDirectory() as temporary:
        folder = given.folder or Path(temporary)
        if not (folder / "bert").exists():
            make_data(folder, scale)
        shown = {name: value for name, value in vars(scale).items() if value is not False}
        print(", ".join(f"{name} {value}" for name, value in shown.items()), end="")
        print(f", threads {given.threads}, torch {torch.__version__}")
        measure(given, folder, scale)


def measure(given: argparse.Namespace, folder: Path, scale: Scale) -> None:
    """Do what the verb says."""
    works: dict[str, Callable[[], object]] = {
        "agree": lambda: agree(folder, scale),
        "speed": lambda: speed(folder, scale, given.steps, given.rounds),
        "wait": lambda: wait(folder, scale, given.steps),
        "precision": lambda: precision(folder, scale, given.only),
        "soak": lambda: soak(folder, scale, given.steps),
    }
    if given.verb != "all":
        works[given.verb]()
        return
    for name, work in works.items():
        if name == "soak" or (name == "precision" and not scale.device.startswith("cuda")):
            continue
        work()


if __name__ == "__main__":
    main()
