from __future__ import annotations

import json
import shutil

import pandas as pd
import pytest

from medclip_debias.cli import run
from medclip_debias.data.store import PreparedSet
from medclip_debias.data.text.claims import Claim, RuleParser, load_lexicon
from medclip_debias.data.text.claims.table import FILE, read_claims, sentence_hash
from medclip_debias.errors import UserError
from medclip_debias.phantom.truth import statement_from_json


@pytest.fixture
def folder(prepared_phantom, tmp_path):
    out = tmp_path / "set"
    shutil.copytree(prepared_phantom, out)
    return out


def test_the_verb_stores_the_claims_of_every_sentence(folder, capsys):
    assert run(["claims", str(folder), "--lexicon", "phantom", "--json"]) == 0
    counts = json.loads(capsys.readouterr().out)
    prepared = PreparedSet.open(folder)
    table = read_claims(prepared)
    parser = RuleParser(load_lexicon("phantom"))
    assert table.claims == [parser.parse(text).claims for text in prepared.texts]
    assert counts["sentences"] == len(prepared.texts)
    assert counts["with_claims"] + counts["without_claims"] == counts["sentences"]
    assert counts["claims"] == sum(map(len, table.claims)) == len(pd.read_parquet(folder / FILE))
    assert table.meta["parser"] == "rules-3"
    assert table.lexicon.hash == parser.lexicon.hash
    before = (folder / FILE).read_bytes()
    assert run(["claims", str(folder), "--lexicon", "phantom"]) == 0
    assert (folder / FILE).read_bytes() == before


def test_the_phantoms_findings_are_read_as_its_truth_has_them(phantom_tree):
    types = {"pleural_effusion": "effusion", "central_line": "line", "pacemaker": "pacemaker"}
    types |= {"hiatal_hernia": "hernia", "endotracheal_tube": "tube"}
    types |= {n: n for n in ("pneumonia", "edema", "pneumothorax", "atelectasis", "nodule")}
    types |= {n: n for n in ("cardiomegaly", "scoliosis")}
    parser = RuleParser(load_lexicon("phantom"))
    sentences = pd.read_parquet(phantom_tree / "truth" / "sentences.parquet")
    both = extra = missed = 0
    for text, statement in zip(sentences["text"], sentences["statement"], strict=True):
        truth = {(c.finding, c.present) for c in statement_from_json(statement).clauses}
        claims = parser.parse(text).claims
        read = {(types[c.finding], c.present) for c in claims if c.finding in types}
        both, extra, missed = (
            both + len(truth & read),
            extra + len(read - truth),
            missed + len(truth - read),
        )
    assert both > 500
    assert both / (both + extra) >= 0.98
    assert both / (both + missed) >= 0.98


def test_a_table_of_another_program_takes_the_place_of_the_rules(folder, tmp_path, capsys):
    prepared = PreparedSet.open(folder)
    first, second = prepared.texts[:2]
    frame = pd.DataFrame(
        [
            {"sentence": sentence_hash(first), "finding": "edema", "polarity": "absent"},
            {"sentence": sentence_hash(first), "finding": "edema", "polarity": "absent"},
            {"text": second, "finding": "nodule", "polarity": "present", "side": "left"},
        ]
    )
    for path in (tmp_path / "own.csv", tmp_path / "own.parquet"):
        frame.to_csv(path, index=False) if path.suffix == ".csv" else frame.to_parquet(path)
        assert run(["claims", str(folder), "--table", str(path), "--json"]) == 0
        counts = json.loads(capsys.readouterr().out)
        assert (counts["claims"], counts["repeated_rows"], counts["with_claims"]) == (2, 1, 2)
        table = read_claims(prepared)
        assert table.claims[0] == (Claim("edema", "absent"),)
        assert table.claims[1] == (Claim("nodule", side="left"),)
        assert not any(table.claims[2:])
        assert table.meta["parser"] == f"table {path.name}"


def test_a_table_that_does_not_fit_is_refused_with_its_row(folder, tmp_path, capsys):
    """What else does not fit: tests/helpers/bad_inputs/claim_cases.py."""
    good = {"sentence": sentence_hash(PreparedSet.open(folder).texts[0]), "polarity": "present"}
    rows = [{**good, "finding": "edema"}, {**good, "finding": "oedema"}]
    pd.DataFrame(rows).to_csv(tmp_path / "own.csv", index=False)
    assert run(["claims", str(folder), "--table", str(tmp_path / "own.csv")]) == 2
    said = capsys.readouterr().err
    assert "row 3: the lexicon" in said
    assert "did you mean 'edema'" in said
    assert not (folder / FILE).exists()


def test_claims_that_are_missing_damaged_or_of_another_set_are_refused(folder, capsys):
    prepared = PreparedSet.open(folder)
    with pytest.raises(UserError, match="has no claims yet"):
        read_claims(prepared)
    assert run(["claims", str(folder)]) == 0
    prepared.content_hash = "other"
    with pytest.raises(UserError, match="another state"):
        read_claims(prepared)
    (folder / FILE).write_bytes(b"PAR1")
    with pytest.raises(UserError, match="not a table of claims"):
        read_claims(prepared)
