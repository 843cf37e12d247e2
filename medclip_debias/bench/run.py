"""The benchmark itself: every model on every card whose archive is there.

An archive is prepared once a preprocessing, an image encoded once a model, whatever number of cards
judge it; what is done is found again by the hashes of card, model and images. Whatever cannot be
run is named with the reason, and the rest goes on.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field, replace
from itertools import product
from pathlib import Path
from typing import Any

from medclip_debias.bench.card import Card
from medclip_debias.bench.images import Archives, CardInputs
from medclip_debias.bench.record import (
    CACHE,
    Record,
    check_model,
    keep_model,
    named_models,
    record_of,
)
from medclip_debias.bench.scoring import CardRun
from medclip_debias.bench.vectors import CachedVectors
from medclip_debias.config import PrepareSettings
from medclip_debias.data.executor import map_pieces
from medclip_debias.errors import UserError
from medclip_debias.evaluation.protocol import Draw
from medclip_debias.files import check_out, write_text
from medclip_debias.models.finite import NotFiniteError
from medclip_debias.models.load import expected_images
from medclip_debias.training.lock import locked

Say = Callable[[str], None]
Bars = Callable[[str], AbstractContextManager[Callable[..., None]]]
"""Opens a progress bar for a kind of thing; it is called with how many are done, and of all."""


def silent(_: str) -> AbstractContextManager[Callable[..., None]]:
    """No progress bar."""
    return nullcontext(lambda *_: None)


@dataclass(frozen=True)
class How:
    """How the benchmark is run.

    Attributes:
        draw: of the intervals.
        device: where models run; ``auto`` takes a GPU when there is one.
        batch_size: images encoded at a time.
        workers: processes that prepare; all processors by default.
        again: measure anew what is done, too, from the vectors that are kept.
        cluster: where models are run, one a worker, instead of one after the other here; see
            `medclip_debias.data.executor.map_pieces`.
        bars: progress bars; a cluster draws none.
        say: takes sentences on what happens.
    """

    draw: Draw = field(default_factory=Draw)
    device: str = "auto"
    batch_size: int = 32
    workers: int | None = None
    again: bool = False
    cluster: str | None = None
    bars: Bars = silent
    say: Say | None = None


Key = tuple[str, str]
_SetJob = tuple[CardInputs, PrepareSettings, Path, int | None]


@dataclass
class Outcome:
    """What became of every model on every card.

    Attributes:
        records: by model and card.
        fresh: those of them that were measured now.
        not_run: why others were not; a model's name is blank where no model could.
    """

    records: dict[Key, Record] = field(default_factory=dict)
    fresh: set[Key] = field(default_factory=set)
    not_run: dict[Key, str] = field(default_factory=dict)

    def summary(self) -> dict[str, Any]:
        """As JSON values."""
        return {
            "ran": [
                {
                    "model": model,
                    "card": card,
                    "status": record.status,
                    "measured_now": (model, card) in self.fresh,
                    "metrics": {key: figure.value for key, figure in record.metrics.items()},
                    "missing": record.judged.missing,
                }
                for (model, card), record in self.records.items()
            ],
            "not_run": [
                {"model": model or None, "card": card, "reason": reason}
                for (model, card), reason in self.not_run.items()
            ],
        }


def bench(
    models: Sequence[str], cards: Sequence[Card], root: Path, out: Path, how: How | None = None
) -> Outcome:
    """Run every model on every card.

    Args:
        models: folders, or ``NAME=FOLDER``.
        cards: tasks.
        root: folder below which the archives are.
        out: results; ``out/cache`` keeps prepared sets and vectors, which are not to be shared.
        how: see `How`.
    """
    how = how or How()
    # Absolute: what must not be in results is found in them by its whole path.
    folders = {name: folder.absolute() for name, folder in named_models(models).items()}
    root, out = root.absolute(), out.absolute()
    archives, outcome = Archives(root), Outcome()
    tasks: list[CardInputs] = []
    for card in cards:
        try:
            tasks.append(CardInputs.of(card, archives.of(card)))
        except UserError as error:
            outcome.not_run["", card.full_name] = str(error)
    if not tasks:
        return outcome
    with _held(out):
        there = how
        if how.cluster is not None:
            there = replace(how, bars=silent, say=None)
            _prepare_sets(list(folders.values()), tasks, out, how)
        jobs = [(name, folder, out, there, tasks) for name, folder in folders.items()]
        for part, lines in map_pieces(_run_model, jobs, cluster=how.cluster):
            outcome.records |= part.records
            outcome.fresh |= part.fresh
            outcome.not_run |= part.not_run
            for line in lines if how.say else ():
                how.say(line)  # type: ignore[misc]
    return outcome


@contextmanager
def _held(out: Path) -> Iterator[None]:
    """Hold a folder of results; its cache is nothing to publish, and says so to git."""
    check_out(out)
    with locked(out / CACHE, "another 'bench'{} works"):
        write_text(out / CACHE / ".gitignore", "*\n")
        yield


def _prepare_sets(
    folders: Sequence[Path], tasks: Sequence[CardInputs], out: Path, how: How
) -> None:
    """Prepare every set once, on a cluster: models there share them."""
    jobs: dict[str, _SetJob] = {}
    for folder, task in product(folders, tasks):
        with suppress(UserError):  # the model's own run names it
            squares = expected_images(folder).prepare
            jobs[task.set_key(squares)] = task, squares, out / CACHE, how.workers
    with how.bars("Sets") as bar:
        made = map_pieces(_prepare, list(jobs.values()), cluster=how.cluster)
        for number, _ in enumerate(made, start=1):
            bar(number, len(jobs))


def _prepare(job: _SetJob) -> None:
    task, squares, cache, workers = job
    with suppress(UserError):  # the model's own run names it
        task.prepared(squares, cache, workers)


# ------------------------------------------------------------------------------- one model


def _run_model(
    job: tuple[str, Path, Path, How, Sequence[CardInputs]],
) -> tuple[Outcome, list[str]]:
    """One model on its cards; what was said, too, where nobody listened."""
    from medclip_debias.models.interface import need_vectors
    from medclip_debias.models.load import load_model

    name, folder, out, how, tasks = job
    lines: list[str] = []
    log = _Log(name, len(tasks), how.say or lines.append)
    with log.naming(tasks):
        model = load_model(folder, how.device)
        need_vectors(model, "bench", several=True)
    if log.outcome.not_run:
        return log.outcome, lines
    model_record, squares = record_of(name, model), model.preprocessing.prepare
    check_model(out, model_record)
    sets: dict[str, list[CardInputs]] = {}
    for task in tasks:
        sets.setdefault(task.set_key(squares), []).append(task)
    for of_set in sets.values():
        data = None
        with log.naming(of_set), how.bars("Reports, images") as bar:
            data = of_set[0].prepared(squares, out / CACHE, how.workers, bar, log.say)
        if data is None:
            continue
        runs = []
        for task in of_set:
            with log.naming([task]):
                run = CardRun(name, folder, model, task, task.images(data))
                record = None if how.again else run.finished(out, how.draw)
                if record is None:
                    run.plan()
                    runs.append(run)
                else:
                    log.ran(task.card, record, fresh=False)
        vectors = CachedVectors(out / CACHE / "features", model, data, how.batch_size)
        # Those that look at regions first: what the others need of an image is then there, too.
        for run in sorted(runs, key=lambda run: not run.reads_regions):
            with log.naming([run.inputs]):
                with how.bars(f"Images ({name})") as bar:
                    record = run.write(out, vectors, how.draw, bar)
                keep_model(out, model_record)
                log.ran(run.card, record, fresh=True)
    return log.outcome, lines


class _Log:
    """The outcome of one model: says what became of each card, and how long the rest may take."""

    def __init__(self, name: str, total: int, say: Say) -> None:
        self.name, self.say, self.outcome = name, say, Outcome()
        self._total, self._over, self._worked, self._began = total, 0, 0, time.monotonic()

    @contextmanager
    def naming(self, tasks: Sequence[CardInputs]) -> Iterator[None]:
        """Name the cards that cannot be run, and go on."""
        try:
            yield
        except (UserError, NotFiniteError) as error:
            for task in tasks:
                self.outcome.not_run[self.name, task.card.full_name] = str(error)
                self._passed(f"{self.name} on {task.card.full_name}: not run.")

    def ran(self, card: Card, record: Record, *, fresh: bool) -> None:
        """Note a card's record."""
        key = self.name, card.full_name
        self.outcome.records[key] = record
        if fresh:
            self.outcome.fresh.add(key)
            self._worked += 1
        metric, figure = next(iter(record.metrics.items()))
        shown = f"{metric} {figure.value:.3f}" + ("" if fresh else ", unchanged")
        if record.status == "incomplete":
            shown += f"; incomplete, {record.judged.lacks}"
        self._passed(f"{self.name} on {card.full_name}: {shown}.")
        for note in record.notes if fresh else ():
            self.say(f"    {note}")

    def _passed(self, sentence: str) -> None:
        """Count a card that is over; only those with work in them say how long one takes."""
        self._over += 1
        left = ""
        if self._worked and self._over < self._total:
            each = (time.monotonic() - self._began) / self._worked
            left = f", about {each * (self._total - self._over):.0f} s left"
        self.say(f"[{self._over} of {self._total}{left}] {sentence}")
