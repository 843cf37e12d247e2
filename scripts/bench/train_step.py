"""Training steps a second, memory, and who waits for whom: this engine and two other loops.

    python scripts/bench/train_step.py all --threads 2
    python scripts/bench/train_step.py all --device cuda --precision bf16 --batch 256 --size 480
    python scripts/bench/train_step.py soak --steps 10000

Verbs: ``agree`` (the losses of engine and plain loop on one batch), ``speed``, ``memory``,
``wait`` (loader alone, step alone, share of the time that a step waits), ``share`` (of the
measured matrix-multiply peak), ``precision`` (bf16 against fp32, every preset), ``soak``,
``predict`` (8 GPUs, from one), ``all`` (all but soak; precision only with a GPU). Makes its own
phantom in a temporary folder; the text encoder is a BERT of random weights. Writes Markdown.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from common import resident
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode
from train_ways import HALF, Scale, make_data, settings, ways

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


def memory(folder: Path, scale: Scale, steps: int) -> dict[str, int]:
    """Peak memory of each way, each in a process of its own."""
    names = list(ways(Trainer(settings(folder, scale))))
    kind = "peak GPU memory" if scale.device.startswith("cuda") else "growth of resident memory"
    head("Memory", "way", f"{kind}, MiB", "of the plain loop")
    found: dict[str, int] = {}
    for name in names:
        command = [sys.executable, __file__, "case", "--way", name, "--folder", str(folder)]
        given = {**vars(scale), "steps": steps, "threads": torch.get_num_threads()}
        for key, value in given.items():
            option = f"--{key.replace('_', '-')}"
            command += [option] * value if isinstance(value, bool) else [option, str(value)]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            row(name, "failed: " + (done.stderr.strip().splitlines() or ["?"])[-1][:80], "")
            continue
        found[name] = json.loads(done.stdout)["bytes"]
    for name, value in found.items():
        row(name, f"{value / MIB:.0f}", f"{value / (found.get('plain') or math.nan):.2f}")
    return found


def case(folder: Path, scale: Scale, name: str, steps: int) -> None:
    """Steps of one way; prints one JSON line with its peak memory."""
    trainer = Trainer(settings(folder, scale))
    way = ways(trainer)[name]()
    if name != "engine":  # only the weights of the way itself count
        trainer.model.cpu()
    batches = some_batches(trainer, min(steps, trainer.batches.steps_per_epoch))
    on_gpu = trainer.device.type == "cuda"
    if on_gpu:
        torch.cuda.reset_peak_memory_stats(trainer.device)
    before = 0 if on_gpu else fresh_peak()
    for number in range(steps):
        way.step(number, batches[number % len(batches)])
    wait_for(trainer.device)
    peak = torch.cuda.max_memory_allocated(trainer.device) if on_gpu else resident("VmHWM")
    print(json.dumps({"bytes": peak - before}))


def fresh_peak() -> int:
    """Forget the peak so far, which importing or a parent process may have set; bytes now."""
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    return resident("VmRSS")


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


def peak_flops(precision: str, device: torch.device, rounds: int = 5) -> float:
    """Operations a second of a large matrix product, the best of ``rounds``."""
    side = 8192 if device.type == "cuda" else 1536
    kind = HALF.get(precision, torch.float32)
    a, b = (torch.randn(side, side, device=device, dtype=kind) for _ in range(2))
    a @ b
    return 2 * side**3 / min(seconds(lambda: a @ b, device) for _ in range(rounds))


def encoder_flops(trainer: Trainer, batch: Batch) -> int:
    """Operations of both encoders, forward and backward, on one batch.

    The similarity and the loss are left out. Attention is counted in its plain form, the only
    one whose operations torch counts on every device.
    """
    model = trainer.model
    ids = [trainer.cached.tokens[number] for number in batch.texts.tolist()]
    images = model.normalise(batch.images_on(trainer.device))
    counter = FlopCounterMode(display=False)
    with sdpa_kernel(SDPBackend.MATH), counter:
        (model.encode_images(images).regions.sum() + model.encode_ids(ids).sum()).backward()
    model.zero_grad(set_to_none=True)
    return int(counter.get_total_flops())


def share(folder: Path, scale: Scale, steps: int) -> float:
    """Encoder operations a second as a share of the matrix-multiply peak."""
    trainer = Trainer(settings(folder, Scale(**{**vars(scale), "compile": False})))
    batch = trainer.batches[0]
    count = encoder_flops(trainer, batch)
    trainer = Trainer(settings(folder, scale))
    for number in range(2):
        trainer.step(number, batch)
    each = statistics.median(
        seconds(lambda number=number: trainer.step(2 + number, batch), trainer.device)
        for number in range(steps)
    )
    peak = peak_flops(scale.precision, trainer.device)
    head("Share of the matrix-multiply peak", "what", scale.precision)
    row("encoders, forward and backward, GFLOP a step", f"{count / 1e9:.1f}")
    row("encoders' operations in a whole step, GFLOP/s", f"{count / each / 1e9:.1f}")
    row("large matrix product, GFLOP/s", f"{peak / 1e9:.1f}")
    row("share", f"{count / each / peak:.3f}")
    return count / each / peak


# ----------------------------------------------------------------------------- precision


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
    metrics = trainer.cached.backward(trainer.batches[0], [0, 0])
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


def traffic(trainer: Trainer, batch: int, world: int) -> tuple[int, int]:
    """Bytes gathered forward, and bytes summed up backward, in one step of ``world`` processes.

    Forward: all sentences' vectors and all rows of scores. Backward: their gradients, and those
    of all parameters. All in float32 (`losses/distributed.py`, `training/distributed.py`).
    """
    whole = batch * world
    gathered = 4 * (whole * trainer.model.dim + whole * whole)
    summed = gathered + 4 * sum(p.numel() for p in trainer.parameters)
    return gathered, summed


def predict(folder: Path, scale: Scale, steps: int, world: int, bandwidth: float) -> float:
    """Images a second of ``world`` GPUs, predicted from one; returns the efficiency.

    A ring moves ``(n-1)/n`` of what is gathered and ``2 (n-1)/n`` of what is summed up through
    each link; nothing of it is taken to overlap with computing. The scores of a process's images
    with all processes' sentences are measured here.
    """
    trainer = Trainer(settings(folder, scale))
    batch, device = trainer.batches[0], trainer.device
    for number in range(2):
        trainer.step(number, batch)
    each = statistics.median(
        seconds(lambda number=number: trainer.step(2 + number, batch), device)
        for number in range(steps)
    )
    regions, dim = trainer.model.grid.rows * trainer.model.grid.columns, trainer.model.dim
    one, all_of_them = (
        _scores(trainer, scale.batch, scale.batch * n, regions, dim) for n in (1, world)
    )
    gathered, summed = traffic(trainer, scale.batch, world)
    part = (world - 1) / world
    talking = part * (gathered + 2 * summed) / (bandwidth * 1e9)
    predicted = each + max(all_of_them - one, 0.0) + talking
    efficiency = each / predicted
    head(f"PREDICTION for {world} GPUs at {bandwidth:g} GB/s a link (not measured)", "what", "")
    row("measured step of one, s", f"{each:.4f}")
    row("measured: more scores a process, s", f"{all_of_them - one:.4f}")
    row("bytes gathered, MiB", f"{gathered / MIB:.1f}")
    row("bytes summed up, MiB", f"{summed / MIB:.1f}")
    row("predicted time for both, s", f"{talking:.4f}")
    row("predicted images/s", f"{world * scale.batch / predicted:.1f}")
    row("predicted efficiency", f"{efficiency:.3f}")
    return efficiency


def _scores(trainer: Trainer, images: int, texts: int, regions: int, dim: int) -> float:
    """Median seconds of similarity, forward and backward."""
    device = trainer.device
    x = nn.functional.normalize(torch.randn(images, regions, dim, device=device), dim=-1)
    y = nn.functional.normalize(torch.randn(texts, dim, device=device), dim=-1)
    x.requires_grad_()
    y.requires_grad_()

    def work() -> None:
        trainer.model.similarity(x, y).sum().backward()

    work()
    return statistics.median(seconds(work, device) for _ in range(3))


# ------------------------------------------------------------------------- command line


def main(words: list[str] | None = None) -> None:
    """Read the command line, make the data, measure."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    verbs = ("agree", "speed", "memory", "wait", "share", "precision", "soak", "predict", "all")
    parser.add_argument("verb", choices=(*verbs, "case"))
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
    parser.add_argument("--world", type=int, default=8, help="predict: GPUs")
    parser.add_argument("--bandwidth", type=float, default=100.0, help="predict: GB/s of a link")
    parser.add_argument("--way", default="engine", help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help="keep the generated data here, or use it again")
    given = parser.parse_args(words)
    torch.set_num_threads(given.threads)
    scale = Scale(**{name: getattr(given, name) for name in Scale.__dataclass_fields__})
    if given.verb == "case":
        case(given.folder, scale, given.way, given.steps)
        return
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
        "memory": lambda: memory(folder, scale, min(given.steps, 3)),
        "wait": lambda: wait(folder, scale, given.steps),
        "share": lambda: share(folder, scale, given.steps),
        "precision": lambda: precision(folder, scale, given.only),
        "predict": lambda: predict(folder, scale, given.steps, given.world, given.bandwidth),
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
