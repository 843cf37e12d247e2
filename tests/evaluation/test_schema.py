"""results.json as documented: what evaluate writes is declared, and damage is one sentence."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from medclip_debias.errors import UserError
from medclip_debias.evaluation.evaluate import evaluate
from medclip_debias.evaluation.schema import FORMAT, Results, json_schema, read_results
from medclip_debias.files import code_hash

DOCS = Path(__file__).parents[2] / "docs"
LEAST = {
    "format": 2,
    "split": "test",
    "data_hash": "a",
    "model_hash": "b",
    "seed": 0,
    "skipped": {"zero_shot": "no labels", "grounding": "none", "retrieval": "none"},
}


@pytest.fixture(scope="module")
def written(small_prepared, small_model, tmp_path_factory):
    out = tmp_path_factory.mktemp("results")
    evaluate(small_model, small_prepared.folder, out, bootstrap=10, heatmaps=0)
    return out / "results.json"


def test_what_evaluate_writes_is_declared_and_reads_back(written):
    content = read_results(written)
    assert content == json.loads(written.read_text())
    results = Results.model_validate(content)
    assert not results.model_extra
    assert results.format == FORMAT
    assert results.code_hash == code_hash()
    assert results.self_test.status == "passed"
    assert results.zero_shot.classes["Edema"].auc == content["zero_shot"]["classes"]["Edema"]["auc"]


def keys(value, free=("options", "prompts", "model", "data", "versions")):
    """All keys of nested mappings; of parts whose keys are free, only their own."""
    if isinstance(value, list):
        for item in value:
            yield from keys(item)
    if isinstance(value, dict):
        for key, item in value.items():
            yield key
            if key not in free:
                yield from keys(item)


def test_every_key_is_documented(written):
    page = (DOCS / "results.md").read_text(encoding="utf-8")
    named = set(re.findall(r"`([A-Za-z0-9_.]+)`", page))
    named |= {word.rpartition(".")[2] for word in named}
    content = json.loads(written.read_text())
    named_by_data = ("zero_shot", "grounding", "segmentation", "progression")
    for part in named_by_data:  # groups are named by the data, not by the format
        for division in ("classes", "refused", "categories", "sentence_frequency", "sentences"):
            found = content[part].get(division)
            if found:
                content[part][division] = [*found.values()]
    content["zero_shot"].pop("multiclass")
    numbered = re.compile(
        r"(recall_at|precision_at|box_(recall|precision|f1)|average_precision|recall_loss)_[\d.]+"
    )
    missing = {key for key in keys(content) if not numbered.fullmatch(key)} - named
    assert missing == set()


def test_the_page_names_every_part_of_the_schema():
    stored = json_schema()
    named = set(re.findall(r"`([a-z0-9_]+)`", (DOCS / "results.md").read_text(encoding="utf-8")))
    assert set(json.loads(stored)["properties"]) <= named


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("{", "cannot be read as JSON"),
        ("[]", "is not a JSON object"),
        (json.dumps(LEAST | {"format": 1}), "results of format 1, but this version reads format 2"),
        (json.dumps({k: v for k, v in LEAST.items() if k != "data_hash"}), "at 'data_hash'"),
        (json.dumps(LEAST | {"seed": "x"}), "at 'seed'"),
        (json.dumps(LEAST | {"zero_shot": {"mean_auc": 0.5}}), r"at 'zero_shot\.accuracy'"),
        (json.dumps(LEAST | {"retrieval": {"recall": "high"}}), r"at 'retrieval\.recall'"),
    ],
)
def test_damage_is_named_in_one_sentence(tmp_path, text, sentence):
    path = tmp_path / "results.json"
    path.write_text(text)
    with pytest.raises(UserError, match=sentence) as caught:
        read_results(path)
    assert str(caught.value).startswith(str(path))
    assert "\n" not in str(caught.value)


def test_the_code_hash_follows_the_files_of_the_package(tmp_path, monkeypatch):
    of_files = code_hash.__wrapped__  # a process asks once
    from medclip_debias import files

    package = tmp_path / "package"
    package.mkdir()
    (package / "files.py").write_text("x = 1\n")
    monkeypatch.setattr(files, "__file__", str(package / "files.py"))
    first = of_files()
    (package / "notes.txt").write_text("no code")
    assert of_files() == first
    (package / "files.py").write_text("x = 2\n")
    second = of_files()
    (package / "files.py").rename(package / "other.py")
    assert len({first, second, of_files()}) == 3
