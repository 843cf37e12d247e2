"""The life of a preparation: its folder, its end, and what is left of one that was killed.

The work is spread over processes; the result does not depend on their number. A run grows in
``OUT.partial``, which is renamed when whole: ``OUT`` is never half a set, and a run that was
killed makes what is missing (`medclip_debias.data.prepare.chunks`).
"""

from __future__ import annotations

import csv
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from medclip_debias.config import PrepareSettings, SelectionSettings
from medclip_debias.data import store
from medclip_debias.data.parallel import cpus
from medclip_debias.data.prepare import shards
from medclip_debias.data.prepare.assemble import assemble
from medclip_debias.data.prepare.collect import Preparation, Progress, Say
from medclip_debias.data.prepare.finished import asked, check_unchanged, has_the_recipe
from medclip_debias.data.prepare.previous import Previous
from medclip_debias.data.prepare.reading import Reading
from medclip_debias.data.prepare.workspace import check_free, clear, making
from medclip_debias.data.secret import keep_secret, read_secret
from medclip_debias.errors import MissingFiles, UserError
from medclip_debias.files import atomic_file


def prepare(
    source_path: Path,
    out: Path,
    settings: PrepareSettings,
    *,
    selection: SelectionSettings | None = None,
    reading: Reading | None = None,
    workers: int | None = None,
    progress: Progress | None = None,
    say: Say | None = None,
    overwrite: bool = False,
    update: bool = False,
) -> store.PreparedSet:
    """Prepare a source; a run that was killed resumes when it is called again.

    Called again when it had finished, it finds that nothing is left to do, whether the one who
    called it saw it finish or not.

    Args:
        source_path: what `medclip_debias.data.sources.detect.detect` takes.
        out: folder to make.
        settings: how files become rows.
        selection: which images and studies are taken.
        reading: how the source is read.
        workers: processes; all processors by default.
        progress: called with (done, total) as the work proceeds.
        say: called with each sentence on what was found.
        overwrite: replace the prepared set at ``out``.
        update: prepare anew what changed since the set at ``out`` was prepared, keep the rest.

    Raises:
        UserError: the source is unusable, nothing is left of it, or ``out`` is in the way.
    """
    out = Path(out)
    replaced = overwrite or update
    recipe = asked(settings, selection, reading)
    again = not replaced and has_the_recipe(out, recipe)
    if not again:
        check_free(out, replaced)
    with _listing_missing(out):
        run = _opened(source_path, settings, selection, reading, workers, progress, say)
    if again:
        check_unchanged(out, run.stamp())
        run.tell(f"{out}: was finished by an earlier run of this command; nothing is left to do.")
        clear(out)
        read_secret(out)
        return store.PreparedSet.open(out)
    with making(out) as work:
        check_free(out, replaced)
        part = run.start(work, earlier=_earlier(out, run) if update else None)
        about = run.about
        del run  # the source and the selection: half a gigabyte for a large set
        assemble(work.set, [part], about, work)
        keep_secret(work.set, out)
        work.move_to(out)
    return store.PreparedSet.open(out)


def prepare_part(
    source_path: Path,
    out: Path,
    settings: PrepareSettings,
    shard: str,
    *,
    selection: SelectionSettings | None = None,
    reading: Reading | None = None,
    workers: int | None = None,
    progress: Progress | None = None,
    say: Say | None = None,
    overwrite: bool = False,
    update: bool = False,
) -> dict[str, Any]:
    """Do one of n parts of the work of `prepare`, for `medclip_debias.data.prepare.shards.merge`.

    Args:
        source_path: as for `prepare`, as are the others but ``shard``.
        out: folder to make.
        settings: how files become rows.
        shard: ``i/n``: the i-th of n parts.
        selection: which images and studies are taken.
        reading: how the source is read.
        workers: processes.
        progress: called with (done, total).
        say: called with each sentence on what was found.
        overwrite: replace the part at ``out``.
        update: is refused: there is nothing to update before the parts are joined.

    Returns:
        Counts of what the part holds.

    Raises:
        UserError: the source is unusable, or ``out`` is in the way.
    """
    out = Path(out)
    number = shards.parse(shard)
    if update:
        raise UserError(
            "--update and --shard do not go together; run --update on the merged set instead."
        )
    recipe = asked(settings, selection, reading) | {"shard": list(number)}
    again = not overwrite and has_the_recipe(out, recipe)
    if not again:
        check_free(out, overwrite)
    with _listing_missing(out):
        run = _opened(source_path, settings, selection, reading, workers, progress, say)
    if again:
        check_unchanged(out, run.stamp(number))
        run.tell(f"{out}: was finished by an earlier run of this command; nothing is left to do.")
        clear(out)
        return shards.counts_of(out)
    with making(out, part=True) as work:
        check_free(out, overwrite)
        part = run.start(work, shard=number)
        counts = shards.write_part(work.set, part, number, run.about, run.plan.listing())
        work.move_to(out)
    return counts


def _opened(
    path: Path,
    settings: PrepareSettings,
    selection: SelectionSettings | None,
    reading: Reading | None,
    workers: int | None,
    progress: Progress | None,
    say: Say | None,
) -> Preparation:
    how = reading or Reading()
    return Preparation(
        source=how.source(Path(path)),
        source_path=Path(path),
        settings=settings,
        selection=selection or SelectionSettings(),
        reading=how,
        workers=workers or cpus(),
        progress=progress,
        say=say,
    )


def _earlier(out: Path, run: Preparation) -> Previous:
    earlier = Previous(out, run.settings, run.reading.options())
    if not earlier.usable:
        run.tell(f"{out}: was written by another version; everything is read again.")
    return earlier


@contextmanager
def _listing_missing(out: Path) -> Iterator[None]:
    """Write the files that a source misses to a list beside ``out``, and name it."""
    try:
        yield
    except MissingFiles as error:
        path = out.with_name(out.name + ".missing.csv")
        try:
            with (
                atomic_file(path) as temporary,
                temporary.open("w", encoding="utf-8", newline="") as file,
            ):
                csv.writer(file).writerows([("row", "path"), *error.files])
        except OSError:
            raise error from None
        raise UserError(f"{error} All are listed in {path}.") from None
