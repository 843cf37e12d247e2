"""A run whose end nobody saw: the same command finds its work done, another finds it in the way."""

import gzip
import os
import shutil

import pytest

from medclip_debias.cli import run
from medclip_debias.config import PrepareSettings
from medclip_debias.data.prepare import prepare, prepare_part
from medclip_debias.errors import UserError
from tests.data.set_files import set_files

SMALL = PrepareSettings(size=32)


@pytest.mark.parametrize("kind", ["whole", "part", "merge"])
def test_the_same_command_finds_its_work_done_and_clears_up(kind, tiny_tree, tmp_path, capsys):
    source, out, partial = str(tiny_tree.root), tmp_path / "o", tmp_path / "o.partial"
    command = ["prepare", source, str(out), "--size", "32", "--workers", "1", "--json"]
    if kind == "part":
        command += ["--shard", "1/2"]
    elif kind == "merge":
        parts = [tmp_path / "parts" / name for name in "12"]
        for number, part in enumerate(parts, 1):
            prepare_part(tiny_tree.root, part, SMALL, f"{number}/2", workers=1)
        command = ["merge", *map(str, parts), str(out), "--json"]
    assert run(command) == 0
    first = capsys.readouterr().out
    inodes = {path.name: path.stat().st_ino for path in out.iterdir()}
    (partial / "old").mkdir(parents=True)  # what a kill behind the last rename leaves
    for name in ("lock", "recipe.json"):
        (partial / name).write_text("")
    assert run(command) == 0
    assert capsys.readouterr().out == first
    assert {path.name: path.stat().st_ino for path in out.iterdir()} == inodes
    assert not partial.exists()
    (partial / "set").mkdir(parents=True)  # the work of another run
    assert run(command) == 0
    assert (partial / "set").is_dir()


def table(name, old, new):
    """A function that changes a row of a table of the tree."""

    def change(tree):
        path = next(tree.root.glob(f"*-{name}.csv.gz"))
        text = gzip.decompress(path.read_bytes()).decode()
        assert old in text
        path.write_bytes(gzip.compress(text.replace(old, new).encode()))

    return change


CHANGES = {
    "an image is gone": lambda tree: tree.image("e").unlink(),
    "an image is of another time": lambda tree: os.utime(tree.image("e"), ns=(1, 1)),
    "a report": lambda tree: tree.report("101").write_text(" FINDINGS: Other.\n"),
    "a label": table("chexpert", "10000001,101,0.0", "10000001,101,1.0"),
    "a split": table("split", "d,103,10000003,validate", "d,103,10000003,train"),
    "a view": table("metadata", "a,10000001,101,AP", "a,10000001,101,PA"),
}


def test_a_finished_set_of_another_command_or_source_is_refused_and_kept(
    tiny_tree, tmp_path, capsys
):
    out = prepare(tiny_tree.root, tmp_path / "o", SMALL, workers=1).folder
    before = set_files(out)

    def refusal(tree, *words):
        assert run(["prepare", str(tree), str(out), "--workers", "1", *words]) == 2
        assert set_files(out) == before
        assert not out.with_name("o.partial").exists()
        return capsys.readouterr().err

    for words in (["--size", "16"], ["--size", "32", "--views", "PA"], ["--shard", "1/1"]):
        refusal(tiny_tree.root, *words)
    kept = shutil.copytree(tiny_tree.root, tmp_path / "kept")  # with its times
    other = shutil.copytree(tiny_tree.root, tmp_path / "other", copy_function=shutil.copyfile)
    refusal(other, "--size", "32")
    for name, change in CHANGES.items():
        change(tiny_tree)
        said = refusal(tiny_tree.root, "--size", "32")
        assert "another source or from this one before it changed" in said, name
        shutil.rmtree(tiny_tree.root)
        shutil.copytree(kept, tiny_tree.root)
    prepare(tiny_tree.root, out, SMALL, workers=1)  # nothing has changed


def test_work_of_hours_outlives_a_disk_that_is_not_mounted(tiny_tree, tmp_path):
    out, chunks = tmp_path / "o", tmp_path / "o.partial" / "chunks"

    def stop(done, total):
        if done >= 6:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        prepare(tiny_tree.root, out, SMALL, workers=1, progress=stop)
    kept = set_files(chunks)
    assert kept
    for place in tiny_tree.root.glob("files/*/*/s*/"):  # reports are there, images are not
        shutil.rmtree(place)
    with pytest.raises(UserError, match="'image file is there' dropped"):
        prepare(tiny_tree.root, out, SMALL, workers=1)
    shutil.rmtree(tiny_tree.root / "files")
    with pytest.raises(UserError):
        prepare(tiny_tree.root, out, SMALL, workers=1)
    assert set_files(chunks) == kept
