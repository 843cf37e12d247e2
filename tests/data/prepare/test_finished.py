"""A run whose end nobody saw: the same command finds its work done, another finds it in the way."""

import os
import shutil

import pytest

from medclip_debias.cli import run
from medclip_debias.config import PrepareSettings
from medclip_debias.data.prepare import prepare, prepare_part
from medclip_debias.data.prepare.shards import merge
from medclip_debias.errors import UserError

SMALL = PrepareSettings(size=32)

pytestmark = pytest.mark.usefixtures("undrawn")


def content(folder):
    return {p.name: p.read_bytes() for p in folder.iterdir() if p.name != "items.key"}


def inodes(folder):
    return {path.name: path.stat().st_ino for path in folder.iterdir()}


class TestTheSameCommand:
    @pytest.fixture(params=["whole", "part", "merge"])
    def command(self, request, tiny_tree, tmp_path):
        """Words that make something at ``o`` of `tiny_tree`."""
        source, out = str(tiny_tree.root), str(tmp_path / "o")
        made = ["prepare", source, out, "--size", "32", "--workers", "1"]
        if request.param == "whole":
            return made
        if request.param == "part":
            return [*made, "--shard", "1/2"]
        parts = [tmp_path / "parts" / name for name in "12"]
        for number, part in enumerate(parts, 1):
            prepare_part(tiny_tree.root, part, SMALL, f"{number}/2", workers=1)
        return ["merge", *map(str, parts), out]

    def test_finds_its_work_done(self, command, tmp_path, capsys):
        assert run([*command, "--json"]) == 0
        first = capsys.readouterr().out
        before = inodes(tmp_path / "o")
        assert run([*command, "--json"]) == 0
        assert capsys.readouterr().out == first
        assert inodes(tmp_path / "o") == before

    def test_clears_what_a_kill_behind_the_last_rename_left(self, command, tmp_path):
        assert run(command) == 0
        partial = tmp_path / "o.partial"
        partial.mkdir()
        for name in ("lock", "recipe.json"):
            (partial / name).write_text("")
        (partial / "old").mkdir()  # the set that was overwritten
        assert run(command) == 0
        assert not partial.exists()


def test_the_work_of_another_run_is_left_alone(tiny_tree, tmp_path):
    out = tmp_path / "o"
    prepare(tiny_tree.root, out, SMALL, workers=1)
    place = tmp_path / "o.partial" / "set"
    place.mkdir(parents=True)
    prepare(tiny_tree.root, out, SMALL, workers=1)
    assert place.is_dir()


class TestAnotherCommand:
    @pytest.fixture
    def out(self, tiny_tree, tmp_path):
        return prepare(tiny_tree.root, tmp_path / "o", SMALL, workers=1).folder

    def check(self, source, out, *words, shown="is not empty"):
        before = content(out)
        assert run(["prepare", str(source), str(out), "--workers", "1", *words]) == 2
        assert content(out) == before
        assert not out.with_name("o.partial").exists()

    def test_with_other_settings(self, tiny_tree, out):
        for words in (["--size", "16"], ["--size", "32", "--views", "PA"], ["--split-seed", "1"]):
            self.check(tiny_tree.root, out, *words)

    def test_for_a_part_of_the_set(self, tiny_tree, out):
        self.check(tiny_tree.root, out, "--size", "32", "--shard", "1/1")

    @pytest.mark.parametrize("change", ["image", "time", "report", "label", "split", "view"])
    def test_when_the_source_has_changed(self, tiny_tree, out, change, capsys):
        root = tiny_tree.root
        if change == "image":
            tiny_tree.image("e").unlink()
        elif change == "time":
            os.utime(tiny_tree.image("e"), ns=(1, 1))
        elif change == "report":
            tiny_tree.report("101").write_text(" FINDINGS: Other.\n")
        else:
            import gzip

            name, old, new = {
                "label": ("chexpert", "10000001,101,0.0", "10000001,101,1.0"),
                "split": ("split", "d,103,10000003,validate", "d,103,10000003,train"),
                "view": ("metadata", "a,10000001,101,AP", "a,10000001,101,PA"),
            }[change]
            path = next(root.glob(f"*-{name}.csv.gz"))
            text = gzip.decompress(path.read_bytes()).decode()
            assert old in text
            path.write_bytes(gzip.compress(text.replace(old, new).encode()))
        self.check(root, out, "--size", "32")
        assert "another source or from this one before it changed" in capsys.readouterr().err

    def test_of_another_source(self, tiny_tree, out, tmp_path):
        copy = shutil.copytree(tiny_tree.root, tmp_path / "copy", copy_function=shutil.copyfile)
        self.check(copy, out, "--size", "32")


class TestNothingOfTheUsersIsTouched:
    def test_a_folder_named_old_beside_the_set(self, tiny_tree, tmp_path):
        """``mv out out.old`` is what people do before they prepare anew."""
        out, backup = tmp_path / "o", tmp_path / "o.old"
        prepare(tiny_tree.root, out, SMALL, workers=1)
        before = content(out)
        out.rename(backup)
        prepare(tiny_tree.root, out, SMALL, workers=1)
        assert content(backup) == before
        prepare(tiny_tree.root, out, PrepareSettings(size=16), workers=1, overwrite=True)
        assert content(backup) == before
        assert not (tmp_path / "o.partial").exists()

    def test_work_of_hours_outlives_a_disk_that_is_not_mounted(self, tiny_tree, tmp_path):
        out = tmp_path / "o"

        def stop(done, total):
            if done >= 6:
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            prepare(tiny_tree.root, out, SMALL, workers=1, progress=stop)
        kept = content(tmp_path / "o.partial" / "chunks")
        assert kept
        tiny_tree.root.joinpath("files").rename(tmp_path / "unmounted")
        (tmp_path / "reports").mkdir()
        with pytest.raises(UserError):
            prepare(tiny_tree.root, out, SMALL, workers=1)
        for study in tmp_path.glob("unmounted/*/*/s*.txt"):  # reports are there, images are not
            place = tiny_tree.root / "files" / study.relative_to(tmp_path / "unmounted")
            place.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(study, place)
        with pytest.raises(UserError, match="'image file is there' dropped"):
            prepare(tiny_tree.root, out, SMALL, workers=1)
        assert content(tmp_path / "o.partial" / "chunks") == kept

    def test_merged_parts_of_other_machines_name_the_first(self, tiny_tree, tmp_path):
        """The order in which parts are given does not matter, when repeated either."""
        parts = [tmp_path / "1", tmp_path / "2"]
        copy = shutil.copytree(tiny_tree.root, tmp_path / "copy", copy_function=shutil.copyfile)
        prepare_part(tiny_tree.root, parts[0], SMALL, "1/2", workers=1)
        prepare_part(copy, parts[1], SMALL, "2/2", workers=1)
        first = merge(parts, tmp_path / "o")
        assert merge(parts[::-1], tmp_path / "o").content_hash == first.content_hash
