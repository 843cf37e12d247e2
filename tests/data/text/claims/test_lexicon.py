from __future__ import annotations

import pytest

from medclip_debias.data.text.claims import RuleParser, load_lexicon
from medclip_debias.data.text.claims.lexicon import expanded
from medclip_debias.errors import UserError

CHEXPERT = {
    *("Atelectasis", "Cardiomegaly", "Consolidation", "Edema", "Enlarged Cardiomediastinum"),
    *("Fracture", "Lung Lesion", "Lung Opacity", "Pleural Effusion", "Pleural Other"),
    *("Pneumonia", "Pneumothorax", "Support Devices"),
}


def test_every_label_of_chexpert_has_findings():
    found = {finding.chexpert for finding in load_lexicon().findings.values()}
    assert found >= CHEXPERT


def test_every_term_of_a_finding_is_read_as_that_finding():
    lexicon = load_lexicon()
    parser = RuleParser(lexicon)
    lost = []
    for name, finding in lexicon.findings.items():
        for term in finding.terms:
            text = " ".join(expanded(term)[0])
            claims = parser.parse(text).claims
            related = lexicon.ancestors[name] | lexicon.descendants[name]
            if not any(c.finding in related for c in claims):
                lost.append((name, text, [c.finding for c in claims]))
    assert len(lost) <= 3, lost


def test_what_is_a_kind_of_something_is_also_what_that_is(tmp_path):
    path = tmp_path / "own.yaml"
    path.write_text(
        "base: english\nname: own\nfindings:\n  lobar: {terms: [lobar dullness], is_a: [pneumonia]}"
    )
    lexicon = load_lexicon(path)
    assert lexicon.ancestors["lobar"] == {"lobar", "pneumonia", "opacity"}
    assert "lobar" in lexicon.descendants["opacity"]
    assert lexicon.hash != load_lexicon().hash


def test_a_file_adds_terms_removes_terms_and_joins_findings(tmp_path):
    path = tmp_path / "own.yaml"
    path.write_text(
        "base: english\nname: own\nremove: [infiltrate]\njoin: {congestion: edema}\n"
        "findings:\n  pleural_effusion: {terms: [water on the lung]}\n"
    )
    parser = RuleParser(load_lexicon(path))
    assert [c.finding for c in parser.parse("Water on the lung.").claims] == ["pleural_effusion"]
    assert parser.parse("Infiltrate.").claims == ()
    assert [c.finding for c in parser.parse("Vascular congestion.").claims] == ["edema"]
    assert "congestion" not in parser.lexicon.names


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("name: x\nfindings: {a: {is_a: [b]}}", "there is no 'b'"),
        ("name: x\nfindings: {a: {is_a: [b]}, b: {is_a: [a]}}", "leads back to"),
        ("name: x\nbase: nowhere", "'base' must be"),
        ("name: x\ncues: {negation: [nor]}", "there is no 'negation'"),
        ("name: x\nmodifiers: {side: {middle: [m]}}", "there is no 'middle'"),
        ("name: x\nstatements: {s: {denies: [f]}}", "there is no 'f'"),
        ("name: x\nfindings: {a: {}}\nstructures: {s: {denies: [aa]}}", "did you mean 'a'"),
        ("base: english\nname: x\njoin: {edema: oedema}", "there is no 'oedema'"),
        ("base: english\nname: x\njoin: {edema: mass, congestion: edema}", "another"),
        ("findings: {a: {terms: [b]}}", "name"),
        ("name: x\nfindings: {a: {termes: [b]}}", "unknown setting 'findings.a.termes'"),
    ],
)
def test_a_lexicon_that_does_not_fit_is_refused_in_one_sentence(tmp_path, text, says):
    path = tmp_path / "bad.yaml"
    path.write_text(text)
    with pytest.raises(UserError, match=says):
        load_lexicon(path)


def test_a_lexicon_of_too_many_phrases_is_refused(tmp_path):
    path = tmp_path / "large.yaml"
    parts = " ".join(f"({'|'.join(f'w{n}{k}' for k in range(9))})" for n in range(5))
    path.write_text(f"name: large\nfindings: {{a: {{terms: ['{parts} x']}}}}")
    with pytest.raises(UserError, match="20,000"):
        RuleParser(load_lexicon(path))
