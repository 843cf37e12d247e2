"""Run one verb after the other in this process, and keep their times and memory.

Every line that starts with `$` is a command that you can type yourself. All run in one process,
because importing torch eight times would take a minute. Run again, it goes on where it stopped.
What the verb `demo` and scripts/openi.py share.
"""

from __future__ import annotations

import shlex
import shutil
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import typer

from medclip_debias.cli.common import must_know
from medclip_debias.errors import UserError
from medclip_debias.files import check_out, is_there, read_json, read_json_or_none, write_json

MADE_BY = "stages.json"
"""File of a run: the words that made each product."""
Verb = Callable[[list[str]], int]


@dataclass(frozen=True)
class Stage:
    """One stage: a verb's words, or ``call`` shown as them; skipped where ``product`` exists."""

    name: str
    words: Sequence[object] | Callable[[], Sequence[object]]
    product: Path | None = None
    call: Callable[[], object] | None = None


class PeakMemory(threading.Thread):
    """Largest memory of this process and its children in a ``with``; shared pages count once."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.bytes = 0
        self._ended = threading.Event()

    def __enter__(self) -> Self:
        """Begin to sample."""
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Sample no more: a thread left behind would count the pages as long as the process is."""
        self._ended.set()
        self.join()

    def run(self) -> None:
        """Sample until the end."""
        import psutil

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
            if self._ended.wait(0.5):
                return


def start_over(out: Path, mark: str = "*prepared*") -> None:
    """Remove an earlier run of the stages, which holds ``mark``; any other folder is refused."""
    check_out(out, mark, "earlier run")
    shutil.rmtree(out, ignore_errors=True)


def run_stages(stages: Sequence[Stage], out: Path, verb: Verb) -> None:
    """Run the stages whose products are missing, and leave their times in ``results.json``.

    Raises:
        UserError: a product is there that other words have made.
    """
    results = out / "results.json"
    made: dict[str, str] = read_json_or_none(out / MADE_BY) or {}
    timing: dict[str, float] = {}
    with PeakMemory() as memory:
        for stage in stages:
            words = [*map(str, stage.words() if callable(stage.words) else stage.words)]
            line = f"{'' if stage.call else 'medclip-debias '}{shlex.join(words)}"
            if stage.product is not None and stage.product.exists():
                now = _with_whole_paths(words)
                if (before := made.get(stage.name, now)) != now:
                    raise UserError(
                        f"{stage.product}: `{before}` made it, and not `{now}`; give another --out,"
                        " or --fresh to start over."
                    )
                typer.echo(f"# {stage.product} is there already")
                continue
            if stage.name == "report":
                _add(results, timing, memory)  # so that the report shows them
            typer.echo(f"\n$ {line}")
            began, code = time.perf_counter(), 0
            try:
                if stage.call is None:
                    code = verb(words)
                else:
                    stage.call()
            except UserError as error:
                must_know(f"medclip-debias: {error}")
                code = 2
            if code:
                sys.exit(code)
            timing[stage.name] = time.perf_counter() - began
            if stage.product is not None:
                made[stage.name] = _with_whole_paths(words)
                write_json(out / MADE_BY, made)
        timing["total"] = sum(timing.values())
        _add(results, timing, memory)
    typer.echo(f"\n{timing['total']:.0f} s, at most {memory.bytes / 2**30:.1f} GiB of memory")
    typer.echo(f"Open {(out / 'report.html').resolve()}")


def _with_whole_paths(words: Sequence[str]) -> str:
    """The words of a stage, alike from wherever files and folders are named."""
    return shlex.join(str(Path(word).resolve()) if is_there(word) else word for word in words)


def _add(results: Path, timing: dict[str, float], memory: PeakMemory) -> None:
    import psutil

    from medclip_debias.evaluation.table import Results

    content = Results(read_json(results, "run 'evaluate' again"))
    content["timing"] = content.get("timing", {}) | timing
    content["resources"] = {"peak_memory_mib": memory.bytes / 2**20, "cores": psutil.cpu_count()}
    content.write(results)
