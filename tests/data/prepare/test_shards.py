"""Parts made apart and joined: the same bytes as one run, or a sentence that says what is wrong."""

import json
import shutil

import numpy as np
import pytest

from medclip_debias.cli import run
from medclip_debias.config import PrepareSettings
from medclip_debias.data.prepare import prepare, prepare_part
from medclip_debias.data.prepare.shards import merge, parse
from medclip_debias.errors import UserError

SMALL = PrepareSettings(size=32)


def content(folder):
    return {p.name: p.read_bytes() for p in folder.iterdir() if p.name != "items.key"}


def make_parts(tree, folder, count):
    parts = [folder / f"part{i}" for i in range(1, count + 1)]
    for number, part in enumerate(parts, start=1):
        prepare_part(tree, part, SMALL, f"{number}/{count}", workers=1)
    return parts


@pytest.fixture
def parts(tiny_tree, tmp_path):
    return make_parts(tiny_tree.root, tmp_path, 3)


@pytest.mark.parametrize("count", [1, 2, 5])
def test_merged_parts_are_one_run_to_the_byte(small_phantom, small_prepared, tmp_path, count):
    parts = make_parts(small_phantom, tmp_path, count)
    merged = merge(parts[::-1], tmp_path / "merged")
    assert content(merged.folder) == content(small_prepared)


def test_also_with_unusable_files_and_more_parts_than_studies(tiny_tree, tmp_path):
    tiny_tree.image("a").write_bytes(b"damaged")
    tiny_tree.report("103").write_text("")
    parts = make_parts(tiny_tree.root, tmp_path, 7)
    merged = merge(parts, tmp_path / "merged")
    whole = prepare(tiny_tree.root, tmp_path / "whole", SMALL, workers=1)
    assert content(merged.folder) == content(whole.folder)
    assert merged.meta["counts"]["rejected"] == 2


def test_a_copy_of_the_source_on_another_machine_gives_parts_that_fit(tiny_tree, tmp_path):
    copy = shutil.copytree(tiny_tree.root, tmp_path / "copy", copy_function=shutil.copyfile)
    first, second = tmp_path / "1", tmp_path / "2"
    prepare_part(tiny_tree.root, first, SMALL, "1/2", workers=1)
    prepare_part(copy, second, SMALL, "2/2", workers=1)
    merged = merge([first, second], tmp_path / "merged")
    whole = prepare(tiny_tree.root, tmp_path / "whole", SMALL, workers=1)
    assert merged.content_hash == whole.content_hash
    assert merged.meta["manifest_hash"] == whole.meta["manifest_hash"]


class TestWrongParts:
    def check(self, capsys, parts, out, *sentences):
        assert run(["merge", *map(str, parts), str(out)]) == 2
        error = capsys.readouterr().err
        assert all(sentence in error for sentence in sentences)
        assert error.count("\n") == 1
        assert not out.exists()

    def test_a_missing_one(self, parts, tmp_path, capsys):
        self.check(capsys, parts[::2], tmp_path / "o", "part 2/3 is missing", "--shard 2/3")

    def test_the_same_twice(self, parts, tmp_path, capsys):
        twice = shutil.copytree(parts[0], tmp_path / "again")
        self.check(capsys, [*parts, twice], tmp_path / "o", f"{twice}: is part 1/3, as is")

    def test_the_same_folder_twice(self, parts, tmp_path, capsys):
        self.check(capsys, [*parts, parts[1]], tmp_path / "o", "is part 2/3, as is")

    def test_one_with_other_settings(self, parts, tiny_tree, tmp_path, capsys):
        foreign = tmp_path / "foreign"
        prepare_part(tiny_tree.root, foreign, PrepareSettings(size=16), "2/3", workers=1)
        named = [parts[0], foreign, parts[2]]
        self.check(capsys, named, tmp_path / "o", f"{foreign}: does not belong with {parts[0]}")

    def test_one_of_another_source(self, parts, tiny_tree, tmp_path, capsys):
        tiny_tree.image("e").unlink()
        foreign = tmp_path / "foreign"
        prepare_part(tiny_tree.root, foreign, SMALL, "2/3", workers=1)
        named = [parts[0], foreign, parts[2]]
        self.check(capsys, named, tmp_path / "o", f"{foreign}: does not belong with {parts[0]}")

    def test_what_is_no_part(self, parts, tmp_path, capsys):
        self.check(capsys, [*parts, tmp_path], tmp_path / "o", "it has no part.json")

    def test_one_with_damaged_rows(self, parts, tmp_path, capsys):
        rows = next(parts[1].glob("chunks/images-*.bin"))
        rows.write_bytes(bytes(len(rows.read_bytes())))
        self.check(capsys, parts, tmp_path / "o", f"{rows}, row 0: is not what was prepared")

    def test_one_with_a_short_chunk(self, parts, tmp_path, capsys):
        chunk = next(parts[1].glob("chunks/reports-*.json"))
        chunk.write_bytes(chunk.read_bytes()[:-5])
        self.check(capsys, parts, tmp_path / "o", f"{chunk}: is not what was prepared")

    @pytest.mark.parametrize(
        "name", ["chunks/reports-*.json", "chunks/images-*.json", "chunks/*.bin", "part.json"]
    )
    def test_one_with_a_single_bit_that_flipped(self, parts, tmp_path, name):
        """Wherever it is: words, labels, ids and sizes as much as pixels."""
        path = next(parts[0].glob(name))
        whole = path.read_bytes()
        rng = np.random.default_rng(3)
        for place in rng.integers(len(whole), size=24):
            changed = bytearray(whole)
            changed[place] ^= 1 << rng.integers(8)
            path.write_bytes(changed)
            with pytest.raises(UserError, match=str(parts[0])):
                merge(parts, tmp_path / "o")
        path.write_bytes(whole)
        assert len(merge(parts, tmp_path / "o")) == 4

    def test_one_with_a_file_that_is_longer_or_gone(self, parts, tmp_path, capsys):
        rows = next(parts[1].glob("chunks/images-*.bin"))
        rows.write_bytes(rows.read_bytes() + b"x")
        self.check(capsys, parts, tmp_path / "o", f"{rows}: is not what was prepared")
        rows.unlink()
        self.check(capsys, parts, tmp_path / "o", f"{rows}: is not what was prepared")

    def test_one_with_a_damaged_description(self, parts, tmp_path, capsys):
        path = parts[1] / "part.json"
        path.write_text(json.dumps({"format_version": 1}))
        self.check(capsys, parts, tmp_path / "o", f"{path}: is damaged")


@pytest.mark.parametrize("text", ["0/3", "4/3", "1", "a/b", "1/0", "-1/3", "1/3/5"])
def test_a_shard_that_is_none_is_refused(text):
    with pytest.raises(UserError, match="give i/n with 1 <= i <= n"):
        parse(text)


def test_update_of_a_part_is_refused(tiny_tree, tmp_path, capsys):
    words = ["prepare", str(tiny_tree.root), str(tmp_path / "o"), "--shard", "1/2", "--update"]
    assert run(words) == 2
    assert "--update and --shard do not go together" in capsys.readouterr().err
