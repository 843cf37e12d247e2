"""The whole way on the phantom, one verb after the other: what `make demo` runs.

Every line that starts with `$` is a command that you can type yourself. All run in this one
process, because importing torch eight times would take a minute. Run again, it resumes where it
stopped; `--fresh` starts over.
"""

from __future__ import annotations

import argparse
import json
import shlex
import shutil
import sys
import threading
import time
from pathlib import Path

import psutil

from medclip_debias.cli import run
from medclip_debias.files import write_json

CONFIG = "configs/phantom/demo.yaml"
LANGUAGE_MODEL = ["hidden=64", "heads=2", "layers=2", "vocabulary=1500", "batch_size=64"]
LANGUAGE_MODEL += ["steps=2500", "lr=3e-3"]


def stages(out: Path, studies: int, steps: int | None) -> list[tuple[str, list[str], Path | None]]:
    """Name, command line and (where the stage can be left out) what shows that it was done."""
    tree, prepared, lm = out / "phantom", out / "prepared", out / "language_model"
    overrides = [f"out={out}", f"prepared={prepared}", f"model.text.folder={lm}"]
    overrides += [f"train.steps={steps}"] if steps else []
    return [
        ("phantom", ["phantom", f"{tree}", "--studies", f"{studies}", "--seed", "0"], tree),
        ("prepare", ["prepare", f"{tree}", f"{prepared}", "--size", "72"], prepared),
        ("language_model", ["language-model", f"{prepared}", f"{lm}", *LANGUAGE_MODEL], lm),
        ("score", ["score", f"{prepared}", "--language-model", f"{lm}"], prepared / "scores.json"),
        ("train", ["train", CONFIG, *overrides], None),
        ("evaluate", ["evaluate", f"{out / 'model'}", f"{prepared}", "--out", f"{out}"], None),
        ("report", ["report", f"{out}"], None),
    ]


class PeakMemory(threading.Thread):
    """Largest memory of this process and its children, twice a second.

    Shared pages count once: proportional set size, where the system tells it.
    """

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.bytes = 0

    def run(self) -> None:
        """Sample until the process ends."""
        me = psutil.Process()
        while True:
            total = 0
            for process in [me, *me.children(recursive=True)]:
                try:
                    full = process.memory_full_info()
                    total += getattr(full, "pss", full.rss)
                except psutil.Error:
                    continue
            self.bytes = max(self.bytes, total)
            time.sleep(0.5)


def main() -> None:
    """Run every stage, and leave results.json and report.html."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("runs/demo"))
    parser.add_argument("--studies", type=int, default=6000)
    parser.add_argument("--steps", type=int, help="training steps; default the config's")
    parser.add_argument("--fresh", action="store_true", help="remove what is there first")
    options = parser.parse_args()
    if options.fresh:
        shutil.rmtree(options.out, ignore_errors=True)
    memory = PeakMemory()
    memory.start()
    results, timing = options.out / "results.json", {}
    for name, words, product in stages(options.out, options.studies, options.steps):
        if product is not None and product.exists():
            print(f"# {product} is there already")
            continue
        if name == "report":
            _add(results, timing, memory)  # so that the report shows them
        print(f"\n$ medclip-debias {shlex.join(words)}", flush=True)
        began = time.perf_counter()
        code = run(words)
        if code:
            sys.exit(code)
        timing[name] = time.perf_counter() - began
    timing["total"] = sum(timing.values())
    _add(results, timing, memory)
    print(f"\n{timing['total']:.0f} s, at most {memory.bytes / 2**30:.1f} GiB of memory")
    print(f"Open {(options.out / 'report.html').resolve()}")


def _add(results: Path, timing: dict[str, float], memory: PeakMemory) -> None:
    content = json.loads(results.read_text(encoding="utf-8"))
    content["timing"] = content.get("timing", {}) | timing
    content["resources"] = {"peak_memory_mib": memory.bytes / 2**20, "cores": psutil.cpu_count()}
    write_json(results, content)


if __name__ == "__main__":
    main()
