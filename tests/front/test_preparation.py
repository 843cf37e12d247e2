"""`md.prepare`: plain keywords are the options of the command."""

from __future__ import annotations

import inspect
import json

import pytest
import typer

import medclip_debias as md
from medclip_debias.cli import app, run
from medclip_debias.errors import UserError
from medclip_debias.front.preparation import PrepareOptions


def test_keywords_make_the_very_set_that_the_command_makes(tiny_tree, tmp_path):
    options = {"size": 32, "clip": (1, 99), "views": ["AP"], "labels": "chexpert", "kind": "auto"}
    options |= {"language": "en", "report_set": {"min_words": 2}, "split_seed": 3, "fit": "crop"}
    said = []
    data = md.prepare(str(tiny_tree.root), tmp_path / "a", workers=1, say=said.append, **options)
    words = "--size 32 --clip 1 99 --views AP --language en --report-set min_words=2"
    words += " --split-seed 3 --fit crop --workers 1"
    assert run(["prepare", str(tiny_tree.root), str(tmp_path / "b"), *words.split()]) == 0
    metas = [json.loads((tmp_path / name / "meta.json").read_text()) for name in "ab"]
    assert metas[0]["manifest_hash"] == metas[1]["manifest_hash"]
    assert metas[0]["content_hash"] == metas[1]["content_hash"] == data.content_hash
    assert metas[0]["options"] == metas[1]["options"]
    assert data.funnel[0]["kept"] > 0
    assert said
    with pytest.raises(UserError, match=r"report_set\.min_word"):
        md.prepare(tiny_tree.root, tmp_path / "c", report_set={"min_word": 2})
    with pytest.raises(UserError, match="labeller"):
        md.prepare(tiny_tree.root, tmp_path / "c", labels="mine")
    assert not (tmp_path / "c").exists()


def test_every_option_of_the_command_is_a_keyword():
    command = typer.main.get_command(app).get_command(None, "prepare")
    options = {one.name for one in command.params}
    # What it prints, and parts for `merge`, which Python does not have.
    of_the_command = {"_sources", "as_json", "help", "quiet", "shard"}
    keywords = {*inspect.signature(md.prepare).parameters, *PrepareOptions.__annotations__}
    assert options - of_the_command <= keywords
