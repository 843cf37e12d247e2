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


PARTS = " ".join(f"({'|'.join(f'w{n}{k}' for k in range(9))})" for n in range(5))


def test_every_label_has_findings_and_every_term_is_read_as_its_finding():
    lexicon = load_lexicon()
    assert {finding.chexpert for finding in lexicon.findings.values()} >= CHEXPERT
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
        ("name: x\nfindings: {a: {is_a: [b]}, b: {is_a: [a]}}", "leads back to"),
        ("name: x\ncues: {negation: [nor]}", "there is no 'negation'"),
        ("name: x\nfindings: {a: {}}\nstructures: {s: {denies: [aa]}}", "did you mean 'a'"),
        ("base: english\nname: x\njoin: {edema: oedema}", "there is no 'oedema'"),
        (f"name: large\nfindings: {{a: {{terms: ['{PARTS} x']}}}}", "more than 20,000"),
        ("base: english\nname: x\njoin: {edema: mass, congestion: edema}", "another"),
    ],
)
def test_a_lexicon_that_does_not_fit_is_refused_in_one_sentence(tmp_path, text, says):
    path = tmp_path / "bad.yaml"
    path.write_text(text)
    with pytest.raises(UserError, match=says):
        RuleParser(load_lexicon(path))
