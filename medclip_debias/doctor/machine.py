"""What the doctor looks at on any machine: versions, decoders, GPUs, memory, processes."""

from __future__ import annotations

import os
import platform
import sys
import sysconfig
import tempfile
import time
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path

from medclip_debias import __version__
from medclip_debias.doctor.findings import GIB, OK, STOPS, WARNING, Finding, ok, warning


def versions() -> Finding:
    """Programs and libraries whose version decides what works."""
    import torch

    found = {
        "medclip-debias": __version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "CUDA": str(torch.version.cuda),
        "cuDNN": str(torch.backends.cudnn.version()) if torch.version.cuda else "none",
        "NCCL": _nccl(),
        **{name: version(name) for name in ("transformers", "numpy")},
    }
    text = ", ".join(f"{name} {value}" for name, value in found.items())
    return ok(text, **found)


def _nccl() -> str:
    import torch

    if not torch.distributed.is_nccl_available():
        return "none"
    try:
        numbers: tuple[int, ...] = torch.cuda.nccl.version()
    except (AttributeError, RuntimeError, ImportError):
        return "unknown"
    return ".".join(map(str, numbers))


def compiled() -> Finding:
    """Whether modules that are imported here are kept compiled; torch and its like come first."""
    import torch  # noqa: F401

    specs = [getattr(module, "__spec__", None) for module in list(sys.modules.values())]
    places = {
        spec.cached: spec.origin
        for spec in specs
        if spec is not None and spec.cached and (spec.origin or "").endswith(".py")
    }
    lacking = [origin for cached, origin in places.items() if not Path(cached).exists()]
    numbers = {"modules": len(places), "not_compiled": len(lacking)}
    if len(lacking) <= len(places) / 10:  # as those that a test or an editor changed
        return ok(f"{len(places)} imported", **numbers)
    return warning(
        f"{len(lacking)} of {len(places)} imported modules are not kept compiled: every start "
        "compiles them again, which is half of its time",
        "unset PYTHONDONTWRITEBYTECODE, or compile them once: python -m compileall -q "
        + sysconfig.get_path("purelib"),
        **numbers,
    )


def codecs() -> Finding:
    """Decoders of compressed DICOM files (only `prepare` needs them)."""
    from medclip_debias.data.images.decoders import undecodable

    missing = undecodable()
    if not missing:
        return ok("JPEG, JPEG lossless, JPEG 2000, JPEG-LS, HTJ2K, RLE")
    return warning(
        f"no decoder of {', '.join(missing)}: such files would be rejected by 'prepare'",
        "pip install 'medclip-debias[codecs]'",
        missing=missing,
    )


def gpus(wanted: str | None) -> list[Finding]:
    """One line a GPU; without one, whether the run (its ``train.device``) asks for it."""
    import torch

    if not torch.cuda.is_available():
        remedy = "check the driver (nvidia-smi) and, in a container, --gpus all"
        if wanted and wanted.startswith("cuda"):
            return [Finding("GPU", STOPS, f"none, but train.device is '{wanted}'", remedy)]
        return [Finding("GPU", WARNING, "none: everything runs on the CPU", remedy)]
    findings = []
    for number in range(torch.cuda.device_count()):
        about = torch.cuda.get_device_properties(number)
        free, memory = torch.cuda.mem_get_info(number)
        half = torch.cuda.is_bf16_supported(including_emulation=False)
        text = (
            f"{about.name}, {memory / GIB:.0f} GiB ({free / GIB:.0f} free), "
            f"capability {about.major}.{about.minor}, bf16 {'yes' if half else 'no'}"
        )
        numbers = {"memory": memory, "free": free, "bf16": half}
        if free < 0.9 * memory:
            finding = warning(text, "another program uses it (nvidia-smi)", **numbers)
        else:
            finding = ok(text, **numbers)
        findings.append(replace(finding, name=f"GPU {number}"))
    return findings


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
    text = f"{world} processes agree ({seconds:.0f} s with their start)"
    return Finding(name, OK, text, numbers={"processes": world, "seconds": seconds})
