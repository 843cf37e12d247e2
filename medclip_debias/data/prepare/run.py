"""The life of a preparation: its folder, its end, and what is left of one that was killed.

The work is spread over processes; the result does not depend on their number. A run grows in
``OUT.partial``, which is renamed when whole: ``OUT`` is never half a set, and a run that was
killed makes what is missing (`medclip_debias.data.prepare.chunks`). One that was killed behind
that rename finds its work done when it is called again.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, TypedDict, Unpack

from medclip_debias.config import PrepareSettings, SelectionSettings
from medclip_debias.data.prepare import shards
from medclip_debias.data.prepare.assemble import assemble
from medclip_debias.data.prepare.chunks import Progress, Say, made_by
from medclip_debias.data.prepare.collect import Preparation, recipe
from medclip_debias.data.prepare.previous import check_update
from medclip_debias.data.prepare.reading import Reading
from medclip_debias.data.prepare.workspace import check_free, clear, making
from medclip_debias.data.secret import keep_secret, read_secret
from medclip_debias.data.store import PreparedSet
from medclip_debias.errors import MissingFiles, UserError
from medclip_debias.files import atomic_file


class Options(TypedDict, total=False):
    """What `prepare` and `prepare_part` take alike.

    Attributes:
        selection: which images and studies are taken.
        reading: how the source is read.
        workers: processes; all processors by default.
        cluster: in the place of processes (`medclip_debias.data.executor.map_pieces`); its workers
            see the source and ``out`` under the same paths.
        progress: called with (done, total) as the work proceeds.
        say: called with each sentence on what was found.
    """

    selection: SelectionSettings
    reading: Reading
    workers: int | None
    cluster: str | None
    progress: Progress | None
    say: Say | None


def prepare(
    source_path: Path,
    out: Path,
    settings: PrepareSettings,
    *,
    overwrite: bool = False,
    update: bool = False,
    **options: Unpack[Options],
) -> PreparedSet:
    """Prepare a source; a run that was killed resumes when it is called again.

    Called again when it had finished, it finds that nothing is left to do, whether the one who
    called it saw it finish or not.

    Args:
        source_path: what `medclip_debias.data.sources.detect.detect` takes.
        out: folder to make.
        settings: how files become rows.
        overwrite: replace the prepared set at ``out``.
        update: prepare anew what changed since the set at ``out`` was prepared, keep the rest.
        **options: `Options`.

    Raises:
        UserError: the source is unusable, nothing is left of it, or ``out`` is in the way.
    """
    out, replaced = Path(out), overwrite or update
    run = Preparation(Path(source_path), settings, **options)
    if _finished(run, out, replaced):
        read_secret(out)
        return PreparedSet.open(out)
    with making(out) as work:
        check_free(out, replaced)
        part = run.collect(work, check_update(out, settings) if update else None)
        plan = replace(run.plan, images=[], stamps=[])
        del run  # the source and the selection: half a gigabyte for a large set
        assemble(work.set, [part], plan, work)
        keep_secret(work.set, out)
        work.move_to(out)
    return PreparedSet.open(out)


def prepare_part(
    source_path: Path,
    out: Path,
    settings: PrepareSettings,
    shard: str,
    *,
    overwrite: bool = False,
    update: bool = False,
    **options: Unpack[Options],
) -> dict[str, Any]:
    """Do part ``i/n`` of the work of `prepare`, for `medclip_debias.data.prepare.shards.merge`.

    Returns:
        Counts of what the part holds.

    Raises:
        UserError: the source is unusable, ``out`` is in the way, or ``update`` is given: there is
            nothing to update before the parts are joined.
    """
    out, number = Path(out), shards.parse(shard)
    if update:
        raise UserError(
            "--update and --shard do not go together; run --update on the merged set instead."
        )
    run = Preparation(Path(source_path), settings, number, **options)
    if _finished(run, out, overwrite):
        return shards.counts_of(out)
    with making(out, part=True) as work:
        check_free(out, overwrite)
        part = run.collect(work)
        counts = shards.write_part(work.set, part, number, run.plan)
        work.move_to(out)
    return counts


def _finished(run: Preparation, out: Path, replaced: bool) -> bool:
    """Open the source; tell whether ``out`` is what the same command made of it, finished."""
    known = shards.finished(out)
    asked = recipe(run.settings, run.selection, run.reading) | {"made_by": made_by()}
    if run.shard is not None:
        asked["shard"] = list(run.shard)
    again = not replaced and asked.items() <= known.items()
    again = again and ("shard" in known) == ("shard" in asked)
    if not again:
        check_free(out, replaced)
    with _listing_missing(out):
        run.open()
    if again:
        shards.check_unchanged(out, run.stamp())
        run.pool.tell(
            f"{out}: was finished by an earlier run of this command; nothing is left to do."
        )
        clear(out)
    return again


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
