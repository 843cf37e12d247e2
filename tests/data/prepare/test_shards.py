"""Parts made apart and joined: the same bytes as one run, or a sentence that says what is wrong."""

import shutil

import numpy as np
import pytest

from medclip_debias.cli import run
from medclip_debias.config import PrepareSettings
from medclip_debias.data.prepare import merge, prepare, prepare_part
from medclip_debias.data.prepare.shards import parse
from medclip_debias.errors import UserError
from tests.data.set_files import set_files

SMALL = PrepareSettings(size=32)


def make_parts(tree, folder, count):
    parts = [folder / f"part{i}" for i in range(1, count + 1)]
    for number, part in enumerate(parts, start=1):
        prepare_part(tree, part, SMALL, f"{number}/{count}", workers=1)
    return parts


@pytest.fixture
def parts(tiny_tree, tmp_path):
    return make_parts(tiny_tree.root, tmp_path, 3)


def test_merged_parts_are_one_run_to_the_byte(small_phantom, small_prepared, tmp_path):
    merged = merge(make_parts(small_phantom, tmp_path, 4)[::-1], tmp_path / "merged")
    assert set_files(merged.folder) == set_files(small_prepared)


def test_also_with_unusable_files_copies_on_other_machines_and_more_parts_than_studies(
    tiny_tree, tmp_path
):
    tiny_tree.image("a").write_bytes(b"damaged")
    tiny_tree.report("103").write_text("")
    copy = shutil.copytree(tiny_tree.root, tmp_path / "copy", copy_function=shutil.copyfile)
    parts = [*make_parts(tiny_tree.root, tmp_path, 7)[:4], *make_parts(copy, tmp_path / "c", 7)[4:]]
    merged = merge(parts, tmp_path / "merged")
    whole = prepare(tiny_tree.root, tmp_path / "whole", SMALL, workers=1)
    assert merged.content_hash == whole.content_hash
    assert merged.meta["manifest_hash"] == whole.meta["manifest_hash"]
    assert merged.meta["counts"]["rejected"] == 2
    again = merge(parts[::-1], tmp_path / "merged")  # repeated, it finds its work done
    assert set_files(again.folder) == set_files(merged.folder)


def test_parts_that_do_not_make_one_set_are_refused(parts, tiny_tree, tmp_path, capsys):
    first, second, third = parts
    twice = shutil.copytree(first, tmp_path / "twice")
    other_size, other_source = tmp_path / "size", tmp_path / "source"
    prepare_part(tiny_tree.root, other_size, PrepareSettings(size=16), "2/3", workers=1)
    tiny_tree.image("e").unlink()
    prepare_part(tiny_tree.root, other_source, SMALL, "2/3", workers=1)
    for folders, sentence in (
        ([first, third], "part 2/3 is missing"),
        ([*parts, twice], f"{twice}: is part 1/3, as is"),
        ([*parts, second], "is part 2/3, as is"),
        ([first, other_size, third], f"{other_size}: does not belong with {first}"),
        ([first, other_source, third], f"{other_source}: does not belong with {first}"),
        ([*parts, tmp_path], "it has no part.json"),
    ):
        assert run(["merge", *map(str, folders), str(tmp_path / "o")]) == 2
        error = capsys.readouterr().err
        assert sentence in error
        assert error.count("\n") == 1
        assert not (tmp_path / "o").exists()


def test_a_part_that_changed_is_refused_by_name(parts, tmp_path):
    """Wherever it is: words, labels, ids and sizes as much as pixels."""
    rng = np.random.default_rng()
    for name in ("chunks/reports-*.json", "chunks/images-*.json", "chunks/*.bin", "part.json"):
        path = next(parts[0].glob(name))
        whole = path.read_bytes()
        damaged = [whole[:-5], whole + b"x", b"{}", bytes(len(whole)), None]
        for place in rng.integers(len(whole), size=8):
            changed = bytearray(whole)
            changed[place] ^= 1 << rng.integers(8)
            damaged.append(bytes(changed))
        for content in damaged:
            path.unlink()
            if content is not None:
                path.write_bytes(content)
            with pytest.raises(UserError, match=str(parts[0])):
                merge(parts, tmp_path / "o")
            path.write_bytes(whole)
    assert len(merge(parts, tmp_path / "o")) == 4


@pytest.mark.parametrize("text", ["0/3", "4/3", "1", "a/b", "1/3/5"])
def test_a_shard_that_is_none_is_refused(text):
    with pytest.raises(UserError, match="give i/n with 1 <= i <= n"):
        parse(text)
