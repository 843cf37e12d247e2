"""The benchmark itself: every model on every card whose archive is there.

An archive is prepared once a preprocessing, an image encoded once a model, whatever number of cards
judge it; what is done is found again by the hashes of card, model and images. Whatever cannot be
run is named with the reason, and the rest goes on.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field, replace
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

from medclip_debias.bench.card import Card
from medclip_debias.bench.find import Archives
from medclip_debias.bench.lists import check_list
from medclip_debias.bench.record import (
    CACHE,
    Record,
    check_model,
    keep_model,
    named_models,
    record_of,
)
from medclip_debias.bench.scoring import CardRun, Inputs
from medclip_debias.bench.sets import Recipe, card_images
from medclip_debias.bench.vectors import CachedVectors
from medclip_debias.config import Preprocessing
from medclip_debias.data.executor import map_pieces
from medclip_debias.errors import UserError
from medclip_debias.evaluation.protocol import Draw
from medclip_debias.files import write_text
from medclip_debias.models.finite import NotFiniteError
from medclip_debias.models.load import expected_images
from medclip_debias.training.lock import holder_of, locked

if TYPE_CHECKING:
    from medclip_debias.data.store import PreparedSet
    from medclip_debias.models.interface import ImageTextModel

Say = Callable[[str], None]
Bars = Callable[[str], AbstractContextManager[Callable[..., None]]]
"""Opens a progress bar for a kind of thing; it is called with how many are done, and of all."""


def silent(_: str) -> AbstractContextManager[Callable[..., None]]:
    """No progress bar."""
    return nullcontext(lambda *_: None)


def unsaid(_: str) -> None:
    """Say nothing."""


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
        bars: progress bars.
        say: takes sentences on what happens.
    """

    draw: Draw = field(default_factory=Draw)
    device: str = "auto"
    batch_size: int = 32
    workers: int | None = None
    again: bool = False
    cluster: str | None = None
    bars: Bars = silent
    say: Say = unsaid

    @property
    def there(self) -> How:
        """The same where models are run: a cluster draws no bars, and tells later."""
        return self if self.cluster is None else replace(self, bars=silent, say=unsaid)


@dataclass
class Outcome:
    """What became of every model on every card.

    Attributes:
        records: by model and card.
        fresh: those of them that were measured now.
        not_run: why others were not; a model's name is blank where no model could.
    """

    records: dict[tuple[str, str], Record] = field(default_factory=dict)
    fresh: set[tuple[str, str]] = field(default_factory=set)
    not_run: dict[tuple[str, str], str] = field(default_factory=dict)


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
    archives = Archives(root)
    outcome = Outcome()
    places: dict[str, Path] = {}
    for card in cards:
        try:
            archive = archives.of(card)
            # What is wrong with a card or its list shall be said before hours of work.
            Inputs.of(card, archive)
            Recipe.of(card, archive, Preprocessing())
            check_list(card, archive)
            places[card.full_name] = archive
        except UserError as error:
            outcome.not_run["", card.full_name] = str(error)
    there = [card for card in cards if card.full_name in places]
    if not there:
        return outcome
    with _held(out):
        if how.cluster is not None:
            _make_sets(folders, there, places, out, how)
        jobs = [(name, folder, out, how.there, there, places) for name, folder in folders.items()]
        for part, sentences in map_pieces(_run_model, jobs, cluster=how.cluster):
            outcome.records |= part.records
            outcome.fresh |= part.fresh
            outcome.not_run |= part.not_run
            for sentence in sentences:
                how.say(sentence)
    return outcome


def _make_sets(
    folders: Mapping[str, Path],
    cards: Sequence[Card],
    places: Mapping[str, Path],
    out: Path,
    how: How,
) -> None:
    """Prepare every set once, on a cluster: models there share them."""
    recipes: dict[str, Recipe] = {}
    for folder, card in product(folders.values(), cards):
        with suppress(UserError):  # the model's own run names it
            recipe = Recipe.of(card, places[card.full_name], expected_images(folder))
            recipes[recipe.key] = recipe
    sets = [(recipe, out / CACHE, how.workers) for recipe in recipes.values()]
    with how.bars("Sets") as bar:
        for number, _ in enumerate(map_pieces(_prepare, sets, cluster=how.cluster), start=1):
            bar(number, len(sets))


def _prepare(job: tuple[Recipe, Path, int | None]) -> None:
    recipe, cache, workers = job
    with suppress(UserError):  # the model's own run names it
        recipe.make(cache, workers, None, None)


def _run_model(
    job: tuple[str, Path, Path, How, Sequence[Card], Mapping[str, Path]],
) -> tuple[Outcome, list[str]]:
    """One model on its cards; on a cluster with what was said, here that is said as it happens."""
    name, folder, out, how, cards, places = job
    sentences: list[str] = []
    if how.cluster is not None:
        how = replace(how, say=sentences.append)
    model = _Model(name, folder, out, how, len(cards))
    model.run(cards, places)
    return model.outcome, sentences


@contextmanager
def _held(out: Path) -> Iterator[None]:
    """Hold a folder of results; its cache is nothing to publish, and says so to git."""
    if out.exists() and not out.is_dir():
        raise UserError(f"{out}: is a file; give a folder for results.")
    cache = out / CACHE
    with ExitStack() as stack:
        try:
            stack.enter_context(locked(cache))
        except UserError:
            holder = holder_of(cache)
            if holder is None:
                raise
            raise UserError(
                f"{out}: another 'bench' works in this folder ({holder}); wait for it, or give"
                " another --out."
            ) from None
        write_text(cache / ".gitignore", "*\n")
        yield


class _Model:
    """One model on its cards."""

    def __init__(self, name: str, folder: Path, out: Path, how: How, cards: int) -> None:
        self.name, self.folder, self.out, self.how = name, folder, out, how
        self.outcome, self.clock = Outcome(), _Clock(cards, how.say)

    def run(self, cards: Sequence[Card], places: Mapping[str, Path]) -> None:
        """Run the cards, set by set."""
        from medclip_debias.models.device import best_device
        from medclip_debias.models.interface import need_vectors
        from medclip_debias.models.load import load_model

        try:
            model = load_model(self.folder, best_device(self.how.device))
            need_vectors(model, "bench", several=True)
        except UserError as error:
            for card in cards:
                self._not_run(card, error)
            return
        self.record = record_of(self.name, model)
        check_model(self.out, self.record)
        sets: dict[str, tuple[Recipe, list[Card]]] = {}
        for card in cards:
            with self._naming(card):
                recipe = Recipe.of(card, places[card.full_name], model.preprocessing)
                sets.setdefault(recipe.key, (recipe, []))[1].append(card)
        for recipe, of_set in sets.values():
            self._on_set(model, recipe, of_set)

    def _on_set(self, model: ImageTextModel, recipe: Recipe, cards: Sequence[Card]) -> None:
        cache = self.out / CACHE
        try:
            with self.how.bars("Reports, images") as bar:
                data = recipe.make(cache, self.how.workers, bar, self.how.say)
        except UserError as error:
            for card in cards:
                self._not_run(card, error)
            return
        runs = [run for card in cards if (run := self._planned(model, recipe, card, data))]
        if not runs:
            return
        vectors = CachedVectors(cache / "features", model, data)
        try:
            seconds = self._encode(vectors, runs)
        except (NotFiniteError, UserError) as error:
            for run in runs:
                self._not_run(run.card, error)
            return
        for run in runs:
            with self._naming(run.card):
                record = run.write(self.out, vectors, self.how.draw, {"encode": seconds})
                keep_model(self.out, self.record)
                self._ran(run.card, record, fresh=True)

    def _planned(
        self, model: ImageTextModel, recipe: Recipe, card: Card, data: PreparedSet
    ) -> CardRun | None:
        """What is still to be done of a card."""
        with self._naming(card):
            images = card_images(card, recipe.archive, recipe, data)
            inputs = Inputs.of(card, recipe.archive)
            run = CardRun(self.name, self.folder, model, card, recipe.archive, images, inputs)
            record = None if self.how.again else run.finished(self.out, self.how.draw)
            if record is None:
                run.plan()
                return run
            self._ran(card, record, fresh=False)
        return None

    def _encode(self, vectors: CachedVectors, runs: Sequence[CardRun]) -> float:
        """One pass over what any of the cards needs; the seconds it took."""
        began = time.perf_counter()
        rows: set[int] = set()
        mapped: set[int] = set()
        texts: dict[str, None] = {}
        for run in filter(lambda run: run.reads_vectors, runs):
            rows |= run.planned.rows
            mapped |= run.planned.rows if run.reads_regions else set()
            texts |= dict.fromkeys(run.planned.texts)
        with self.how.bars(f"Images ({self.name})") as bar:
            vectors.encode(
                rows, list(texts), regions=mapped, batch_size=self.how.batch_size, progress=bar
            )
        return time.perf_counter() - began

    @contextmanager
    def _naming(self, card: Card) -> Iterator[None]:
        """Name a card that cannot be run, and go on."""
        try:
            yield
        except (UserError, NotFiniteError) as error:
            self._not_run(card, error)

    def _not_run(self, card: Card, error: Exception) -> None:
        self.outcome.not_run[self.name, card.full_name] = str(error)
        self.clock.passed(f"{self.name} on {card.full_name}: not run.")

    def _ran(self, card: Card, record: Record, *, fresh: bool) -> None:
        key = self.name, card.full_name
        self.outcome.records[key] = record
        if fresh:
            self.outcome.fresh.add(key)
        metric, figure = next(iter(record.metrics.items()))
        shown = f"{metric} {figure.value:.3f}" + ("" if fresh else ", as it was")
        if record.status == "incomplete":
            shown += f"; incomplete, {record.judged.lacks}"
        self.clock.passed(f"{self.name} on {card.full_name}: {shown}.", worked=fresh)
        for note in record.notes if fresh else ():
            self.how.say(f"    {note}")


class _Clock:
    """Says how many of the card runs are over, and how long the others may take."""

    def __init__(self, total: int, say: Say) -> None:
        self._total, self._say = total, say
        self._began, self._over, self._worked = time.monotonic(), 0, 0

    def passed(self, sentence: str, *, worked: bool = False) -> None:
        """Count a card run; only those with work in them say how long one takes."""
        self._over += 1
        self._worked += worked
        left = ""
        if self._worked and self._over < self._total:
            each = (time.monotonic() - self._began) / self._worked
            left = f", about {each * (self._total - self._over):.0f} s left"
        self._say(f"[{self._over} of {self._total}{left}] {sentence}")


def summary(outcome: Outcome) -> dict[str, Any]:
    """The outcome as JSON values."""
    return {
        "ran": [
            {
                "model": model,
                "card": card,
                "status": record.status,
                "measured_now": (model, card) in outcome.fresh,
                "metrics": {key: figure.value for key, figure in record.metrics.items()},
                "missing": record.judged.missing,
            }
            for (model, card), record in outcome.records.items()
        ],
        "not_run": [
            {"model": model or None, "card": card, "reason": reason}
            for (model, card), reason in outcome.not_run.items()
        ],
    }
