"""The life of a preparation: a whole set, one part of it, or parts that are joined.

The work is spread over processes; the result does not depend on their number. A run grows in
``OUT.partial``, which is renamed when whole: ``OUT`` is never half a set, and a run that was
killed makes what is missing (`medclip_debias.data.prepare.chunks`). One that was killed behind
that rename finds its work done when it is called again.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypedDict, Unpack

from medclip_debias.config import PrepareSettings, SelectionSettings
from medclip_debias.data.prepare import shards
from medclip_debias.data.prepare.assemble import assemble, write_csv
from medclip_debias.data.prepare.chunks import Progress, Say
from medclip_debias.data.prepare.collect import Preparation
from medclip_debias.data.prepare.previous import check_update
from medclip_debias.data.prepare.reading import Reading
from medclip_debias.data.prepare.workspace import PART, check_free, clear, making
from medclip_debias.data.secret import keep_secret, read_secret
from medclip_debias.data.store import PreparedSet
from medclip_debias.errors import MissingFiles, UserError
from medclip_debias.files import atomic_file, read_json_or_none


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
    """
    out = Path(out)
    run = Preparation(Path(source_path), settings, **options)
    if not _is_finished(run, out, overwrite or update):
        with making(out, overwrite or update) as work:
            part, plan = run.collect(work, check_update(out, settings) if update else None)
            assemble(work.set, [part], plan, work)
            keep_secret(work.set, out)
    read_secret(out)
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
    """Do part ``i/n`` of the work of `prepare`, for `merge`.

    Returns:
        Counts of what the part holds.
    """
    out, number = Path(out), shards.parse(shard)
    if update:
        raise UserError(
            "--update and --shard do not go together; run --update on the merged set instead."
        )
    run = Preparation(Path(source_path), settings, number, **options)
    if not _is_finished(run, out, overwrite):
        with making(out, overwrite, part=True) as work:
            shards.write_part(work.set, *run.collect(work), number)
    counts: dict[str, Any] = shards.read_part(out)["counts"]
    return counts


def merge(parts: Sequence[Path], out: Path, *, overwrite: bool = False) -> PreparedSet:
    """Join all parts to one prepared set: the same bytes as one run of `prepare`."""
    out, folders = Path(out), [Path(folder) for folder in parts]
    again = _repeats(out, {}, overwrite)
    plan, contents = shards.read_parts(folders)
    if again:
        _check_unchanged(out, plan.source_stamp(sum(part.heads for part in contents)))
    else:
        with making(out, overwrite) as work:
            work.follow({"merge": [str(folder.resolve()) for folder in folders]})
            assemble(work.set, contents, plan)
            keep_secret(work.set, out)
    read_secret(out)
    return PreparedSet.open(out)


def _is_finished(run: Preparation, out: Path, replaced: bool) -> bool:
    """Open the source; tell whether ``out`` is what the same command made of it, finished."""
    shard = {} if run.shard is None else {"shard": list(run.shard)}
    again = _repeats(out, run.asked() | shard, replaced)
    with _listing_missing(out):
        run.open()
    if again:
        _check_unchanged(out, run.stamp())
        run.pool.tell(
            f"{out}: was finished by an earlier run of this command; nothing is left to do."
        )
    return again


def _known(out: Path) -> dict[str, Any]:
    """Return what a finished set (or part of one) says of the command that wrote it."""
    contents = (read_json_or_none(out / name) for name in ("meta.json", PART))
    return next((c for c in contents if isinstance(c, dict) and "source_stamp" in c), {})


def _repeats(out: Path, asked: dict[str, Any], replaced: bool) -> bool:
    """Tell whether ``out`` was asked for in the same way; stop where it is something else."""
    known = _known(out)
    again = bool(known) and not replaced and ("shard" in known) == ("shard" in asked)
    if again and asked.items() <= known.items():
        return True
    check_free(out, replaced)
    return False


def _check_unchanged(out: Path, stamp: str) -> None:
    """Stop when ``out`` was prepared from another source, or its source is another by now."""
    if _known(out)["source_stamp"] != stamp:
        raise UserError(
            f"{out}: is not empty, and was prepared from another source or from this one before it"
            " changed; give another folder or --overwrite (--update adds what is new)."
        )
    clear(out)


@contextmanager
def _listing_missing(out: Path) -> Iterator[None]:
    """Write the files that a source misses to a list beside ``out``, and name it."""
    try:
        yield
    except MissingFiles as error:
        path = out.with_name(out.name + ".missing.csv")
        try:
            with atomic_file(path) as temporary:
                write_csv(temporary, ("row", "path"), error.files)
        except OSError:
            raise error from None
        raise UserError(f"{error} All are listed in {path}.") from None
