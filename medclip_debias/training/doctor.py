"""What is looked at before a long run: the machine, and for a run its data, a step and its cost.

Each thing is told when it has been looked at. A fault is told once: what cannot be looked at
because of it is `SKIPPED`, and names it.

Nothing here prints report text or ids, and nothing is left behind in the run's folder.
"""

from __future__ import annotations

import os
import platform
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np

from medclip_debias import __version__
from medclip_debias.config import load_settings
from medclip_debias.errors import UserError
from medclip_debias.training.settings import RunSettings

OK, WARNING, STOPS, SKIPPED = "ok", "warning", "failed", "not checked"
_NAME_WIDTH, _STATE_WIDTH = 20, 11  # of the longest; lines are printed before the last is known
GIB = 2**30
_READS, _WRITE = 256, 64 * 2**20

Say = Callable[[str], None]
Tell = Callable[["Finding"], None]


@dataclass(frozen=True)
class Finding:
    """One line of the table.

    Attributes:
        name: what was looked at.
        state: `OK`, `WARNING`, `STOPS` for what would stop the run, or `SKIPPED` for what could
            not be looked at because something else failed.
        told: what was found.
        remedy: what to do; empty where all is well.
        figures: the numbers behind ``told``, for --json.
    """

    name: str
    state: str
    told: str
    remedy: str = ""
    figures: dict[str, Any] | None = None

    def as_dict(self) -> dict[str, Any]:
        """For --json."""
        return asdict(self)


class Examination:
    """Looks at one thing after another.

    Args:
        say: told what is being looked at now.
        tell: told each finding when there is one.

    Attributes:
        findings: all so far.
    """

    def __init__(self, say: Say | None = None, tell: Tell | None = None) -> None:
        self.say: Say = say or (lambda _: None)
        self._tell: Tell = tell or (lambda _: None)
        self.findings: list[Finding] = []

    def add(self, *findings: Finding) -> None:
        """Take findings down, and tell them."""
        for finding in findings:
            self.findings.append(finding)
            self._tell(finding)

    def look(
        self,
        name: str,
        what: str,
        how: Callable[[], Finding | Sequence[Finding]],
        after: Sequence[str] = (),
    ) -> None:
        """Look at one thing, unless what it needs failed.

        Args:
            name: of the finding.
            what: sentence on what is being looked at.
            how: looks; may raise for a thing that stops the run.
            after: names of findings that it needs.
        """
        broken = [need for need in after if self.failed(need)]
        if broken:
            told = f"because '{broken[0]}' failed"
            self.add(Finding(name, SKIPPED, told, figures={"because": broken[0]}))
            return
        self.say(what)
        found = guarded(name, how)
        self.add(*([found] if isinstance(found, Finding) else found))

    def failed(self, name: str) -> bool:
        """Whether the finding of that name would stop the run."""
        return any(one.name == name and one.state == STOPS for one in self.findings)


def examine(
    config: Path | None,
    overrides: Sequence[str],
    say: Say | None = None,
    tell: Tell | None = None,
) -> list[Finding]:
    """Look at the machine and, with a config, at everything that the run needs.

    Args:
        config: YAML file of the run, or None.
        overrides: ``key.path=value`` words.
        say: told what is being looked at now.
        tell: told each finding when there is one.

    Raises:
        UserError: the settings themselves are wrong.
    """
    from medclip_debias.losses.objective import loss_settings

    if config is None and overrides:
        raise UserError(f"'{overrides[0]}' is a setting of a run; name the run's file before it.")
    run = None if config is None else load_settings(RunSettings, config, overrides)
    if run is not None:
        loss_settings(run.loss, str(config))
    found = Examination(say, tell)
    found.say("Looking at the machine ...")
    found.add(versions())
    found.add(codecs())
    found.add(*gpus(None if run is None else run.train.device))
    found.add(shared_memory(None if run is None else run.train.workers))
    found.look("all-reduce", "Adding up numbers among processes ...", all_reduce)
    if run is not None:
        from medclip_debias.training.doctor_run import examine_run

        examine_run(run, str(config), found)
    return found.findings


def guarded(
    name: str, look: Callable[[], Finding | Sequence[Finding]]
) -> Finding | Sequence[Finding]:
    """A look that itself fails is a failed finding and not the end of the others."""
    try:
        return look()
    except UserError as error:
        return Finding(name, STOPS, str(error))  # the sentence says what to do
    except (OSError, RuntimeError) as error:
        return Finding(name, STOPS, f"{type(error).__name__}", "mend this before the run")


def lines(finding: Finding) -> str:
    """A finding as aligned lines; what to do stands below what it is about."""
    text = f"{finding.name:<{_NAME_WIDTH}}  {finding.state:<{_STATE_WIDTH}}  {finding.told}"
    if finding.remedy:
        text += f"\n{'':<{_NAME_WIDTH}}  {'':<{_STATE_WIDTH}}  -> {finding.remedy}"
    return text


def summary(findings: Sequence[Finding]) -> str:
    """How many findings there are of each kind that matters."""
    counts = Counter(finding.state for finding in findings)
    text = f"{counts[WARNING]} warnings, {counts[STOPS]} that would stop the run"
    return text + (f", {counts[SKIPPED]} not checked" if counts[SKIPPED] else "")


# ----------------------------------------------------------------------------- the machine


def versions() -> Finding:
    """Programs and libraries whose version decides what works."""
    import torch

    found: dict[str, str] = {
        "medclip-debias": __version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "CUDA": str(torch.version.cuda),
        "cuDNN": str(torch.backends.cudnn.version()) if torch.version.cuda else "none",
        "NCCL": _nccl(),
    }
    for name in ("transformers", "numpy"):
        found[name] = version(name)
    return Finding(
        "versions", OK, ", ".join(f"{name} {value}" for name, value in found.items()), figures=found
    )


def _nccl() -> str:
    import torch

    if not torch.distributed.is_nccl_available():
        return "none"
    try:
        numbers: tuple[int, ...] = torch.cuda.nccl.version()
    except (AttributeError, RuntimeError, ImportError):
        return "unknown"
    return ".".join(map(str, numbers))


_CODECS = {
    "pylibjpeg": "JPEG lossless and 12-bit",
    "pylibjpeg-libjpeg": "JPEG lossless and 12-bit",
    "pylibjpeg-openjpeg": "JPEG 2000",
    "pyjpegls": "JPEG-LS",
}


def codecs() -> Finding:
    """Decoders of compressed DICOM files (only `prepare` needs them)."""
    missing = []
    for name in _CODECS:
        try:
            version(name)
        except PackageNotFoundError:
            missing.append(name)
    if not missing:
        return Finding("codecs", OK, "JPEG, JPEG lossless, JPEG 2000, JPEG-LS")
    lacking = ", ".join(dict.fromkeys(_CODECS[name] for name in missing))
    return Finding(
        "codecs",
        WARNING,
        f"no decoder of {lacking}: such files would be rejected by 'prepare'",
        "install medclip-debias[codecs]",
        {"missing": missing},
    )


def gpus(wanted: str | None) -> list[Finding]:
    """One line a GPU; without one, whether the run asks for it.

    Args:
        wanted: ``train.device``, or None without a run.
    """
    import torch

    if not torch.cuda.is_available():
        remedy = "check the driver (nvidia-smi) and, in a container, --gpus all"
        if wanted and wanted.startswith("cuda"):
            return [Finding("GPU", STOPS, f"none, but train.device is '{wanted}'", remedy)]
        return [Finding("GPU", WARNING, "none: everything runs on the CPU", remedy)]
    findings = []
    for number in range(torch.cuda.device_count()):
        about = torch.cuda.get_device_properties(number)
        free, whole = torch.cuda.mem_get_info(number)
        half = torch.cuda.is_bf16_supported(including_emulation=False)
        told = (
            f"{about.name}, {whole / GIB:.0f} GiB ({free / GIB:.0f} free), "
            f"capability {about.major}.{about.minor}, bf16 {'yes' if half else 'no'}"
        )
        busy = free < 0.9 * whole
        findings.append(
            Finding(
                f"GPU {number}",
                WARNING if busy else OK,
                told,
                "another program uses it (nvidia-smi)" if busy else "",
                {"memory": whole, "free": free, "bf16": half},
            )
        )
    return findings


def shared_memory(workers: int | None, folder: Path = Path("/dev/shm")) -> Finding:
    """Room for the batches that the loader's processes hand over."""
    if not folder.is_dir():
        return Finding("shared memory", WARNING, f"{folder} is missing", "set train.workers=0")
    size = shutil.disk_usage(folder).total
    figures = {"bytes": size}
    told = f"{folder} has {size / GIB:.2f} GiB"
    if size < GIB and workers != 0:
        remedy = "start the container with --shm-size=8g, or set train.workers=0"
        return Finding("shared memory", WARNING, told, remedy, figures)
    return Finding("shared memory", OK, told, figures=figures)


_REDUCE = """
import sys, torch, torch.distributed as dist
from datetime import timedelta
rank, world, backend, path = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4]
device = torch.device("cuda", rank) if backend == "nccl" else torch.device("cpu")
if device.type == "cuda":
    torch.cuda.set_device(device)
dist.init_process_group(backend, init_method="file://" + path, rank=rank, world_size=world,
                        timeout=timedelta(seconds=60))
value = torch.full((1 << 16,), float(rank + 1), device=device)
dist.all_reduce(value)
ok = bool((value == world * (world + 1) / 2).all())
dist.destroy_process_group()
sys.exit(0 if ok else 3)
"""


def all_reduce() -> Finding:
    """Sum numbers among processes: NCCL over all visible GPUs, or gloo between two processes."""
    import subprocess

    import torch

    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    backend, world = ("nccl", count) if count else ("gloo", 2)
    began = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        # Whole processes and not forks: NCCL must not meet a CUDA context of its parent.
        children = [
            subprocess.Popen(
                [sys.executable, "-c", _REDUCE, str(rank), str(world), backend, f"{folder}/store"],
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env=os.environ | {"OMP_NUM_THREADS": "1"},
            )
            for rank in range(world)
        ]
        try:
            codes = [child.wait(timeout=120) for child in children]
        except subprocess.TimeoutExpired:
            codes = [124]
        finally:
            for child in children:
                if child.poll() is None:
                    child.kill()
                    child.wait()
    name = f"{backend} all-reduce"
    seconds = time.perf_counter() - began
    if any(codes):
        return Finding(
            name,
            STOPS if count > 1 else WARNING,
            f"{world} processes did not add up (exit codes {codes})",
            "NCCL_DEBUG=INFO says why; NCCL_P2P_DISABLE=1 helps where GPUs cannot reach each other",
        )
    told = f"{world} processes agree ({seconds:.0f} s with their start)"
    return Finding(name, OK, told, figures={"processes": world, "seconds": seconds})


# --------------------------------------------------------------------------------- disks


def read_speed(pixels: Path, row: int, rows: int) -> Finding:
    """Random rows of ``images.bin``, one after the other, from the disk where that can be had."""
    count = min(_READS, rows)
    order = np.random.default_rng(0).permutation(rows)[:count]
    handle = os.open(pixels, os.O_RDONLY)
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
    told = f"{speed:.0f} images a second by one reader, {speed * row / 2**20:.0f} MiB/s"
    return Finding("disk, prepared set", OK, told, figures={"images_per_second": speed})


def write_speed(out: Path) -> Finding:
    """Write and sync a file beside the run's folder."""
    folder = existing(out)
    block = os.urandom(2**20)
    try:
        with tempfile.TemporaryFile(dir=folder) as file:  # without a name: nothing can be left
            began = time.perf_counter()
            for _ in range(_WRITE // len(block)):
                file.write(block)
            file.flush()
            os.fsync(file.fileno())
            speed = _WRITE / (time.perf_counter() - began)
    except OSError as error:
        reason = error.strerror or type(error).__name__
        return Finding(
            "disk, run folder",
            STOPS,
            f"{folder} cannot be written ({reason})",
            "give another 'out', or mend its permissions or free space",
        )
    told = f"{speed / 2**20:.0f} MiB/s, synced"
    return Finding("disk, run folder", OK, told, figures={"bytes_per_second": speed})


def existing(folder: Path) -> Path:
    """``folder``, or the nearest folder above it that exists."""
    folder = folder.absolute()
    while not folder.is_dir():
        folder = folder.parent
    return folder
