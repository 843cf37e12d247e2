"""How far a doubt, a denial or a resolution reaches: through a list, and not beyond it."""

from __future__ import annotations

from itertools import permutations, product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from medclip_debias.data.text.claims import RuleParser

PARSER = RuleParser()
NAMES = {
    "atelectasis": "atelectasis",
    "pneumonia": "pneumonia",
    "edema": "edema",
    "scarring": "scarring",
    "infection": "pneumonia",
    "pulmonary edema": "edema",
    "emphysema": "emphysema",
    "small effusion": "pleural_effusion",
    "subsegmental atelectasis": "atelectasis",
}
PLAIN = ["atelectasis", "pneumonia", "edema", "scarring", "emphysema"]
LISTS = [
    "{0}, {1}, {2}",
    "{0}, {1} and {2}",
    "{0}, {1}, and {2}",
    "{0}, {1} or {2}",
    "{0}, {1}, or {2}",
    "{0} and {1} and {2}",
    "{0} or {1} and {2}",
    "{0}/{1}, {2}",
    "{0}, {1}/{2}",
    "{0}, {1} versus {2}",
    "{0}, {1}, and/or {2}",
]
OPENERS = [
    "Differential includes {}.",
    "Differential diagnosis includes {}.",
    "The differential is broad and includes {}.",
    "Differential considerations include {}.",
    "Differential diagnosis: {}.",
    "Differential: {}.",
    "Diagnostic considerations would include {}.",
    "Considerations include {}.",
    "Left base opacity, the differential would include {}.",
    "Findings may represent {}.",
    "This could be due to {}.",
    "This might reflect {}.",
    "Findings may be compatible with {}.",
    "This could be consistent with {}.",
    "Right base opacity, which may represent {}.",
    "Cannot exclude {}.",
    "Concern for {}.",
    "Findings are suspicious for {}.",
]
ADJECTIVES = [
    "Possible {}.",
    "Probable {}.",
    "Questionable {}.",
    "Suspected {}.",
    "There is possible {}.",
    "Left base opacity, possibly {}.",
]
CLOSERS = [
    "{} are possible.",
    "{} cannot be excluded.",
    "{} are not excluded.",
    "{} would be a consideration.",
    "{} are considerations.",
    "{} remain a consideration.",
    "{} are in the differential.",
    "{} should be considered.",
    "{} would be considerations.",
    "{} may be present.",
]
DENIERS = ["{} are not seen.", "{} are absent.", "{} have been excluded."]
RESOLVED = [
    "{} have resolved.",
    "{} have now resolved.",
    "{} have since cleared.",
    "{} have completely resolved.",
    "{} have cleared in the interval.",
    "{} are resolved.",
    "Previously seen {} have resolved.",
]


def read(text):
    """Return ``{finding: (polarity, certainty, change)}`` of a text's claims."""
    claims = PARSER.parse(text).claims
    return {c.finding: (c.polarity, c.certainty, c.change) for c in claims}


def held(text, names):
    claims = read(text)
    return {name: claims.get(NAMES.get(name, name)) for name in names}


UNSURE = ("present", "uncertain", "")
SURE = ("present", "certain", "")


@pytest.mark.parametrize("opener", OPENERS + ADJECTIVES)
def test_a_doubt_before_a_list_holds_for_all_of_it(opener):
    names = ("atelectasis", "pneumonia", "scarring")
    for form in LISTS:
        listed = form.format(*names)
        assert held(opener.format(listed), names) == dict.fromkeys(names, UNSURE), listed


@given(
    st.sampled_from(OPENERS),
    st.sampled_from(LISTS),
    st.sampled_from(list(permutations(PLAIN, 3))),
)
def test_in_any_order_of_what_is_listed(opener, form, names):
    assert held(opener.format(form.format(*names)), names) == dict.fromkeys(names, UNSURE)


@pytest.mark.parametrize("opener", OPENERS)
def test_a_differential_goes_on_behind_a_severity(opener):
    text = opener.format("subsegmental atelectasis, small effusion, scarring")
    names = ("atelectasis", "small effusion", "scarring")
    assert {name: claim[1] for name, claim in held(text, names).items()} == dict.fromkeys(
        names, "uncertain"
    )


@pytest.mark.parametrize(
    "text",
    [
        "Differential includes atelectasis; pneumonia; scarring.",
        "Differential diagnosis includes atelectasis; pneumonia; and scarring.",
        "Considerations include atelectasis; pneumonia; or scarring.",
        "Findings may represent atelectasis; pneumonia; scarring.",
    ],
)
def test_semicolons_of_a_list_end_no_doubt(text):
    names = ("atelectasis", "pneumonia", "scarring")
    assert held(text, names) == dict.fromkeys(names, UNSURE)


@pytest.mark.parametrize("closer", CLOSERS)
def test_a_doubt_behind_a_list_holds_for_all_of_it(closer):
    names = ("atelectasis", "pneumonia", "scarring")
    for form in ("{0}, {1} and {2}", "{0}, {1}, and {2}", "{0}, {1} or {2}", "{0} and {1} or {2}"):
        text = closer.format(form.format(*names))
        assert held(text, names) == dict.fromkeys(names, UNSURE), text


@pytest.mark.parametrize("denier", DENIERS)
def test_a_denial_behind_a_list_holds_for_all_of_it(denier):
    for form in ("{0}, {1} and {2}", "{0}, {1}, or {2}", "{0} and {1}"):
        names = ("atelectasis", "pneumonia", "scarring")[: form.count("{")]
        claims = held(denier.format(form.format(*names)), names)
        assert {claim[0] for claim in claims.values()} == {"absent"}, form


@pytest.mark.parametrize(
    "names",
    [
        ("infiltrates", "pulmonary venous engorgement", "effusions"),
        ("pulmonary venous congestion", "infiltrates", "left effusion"),
        ("consolidation", "atelectasis", "costophrenic angle blunting"),
        ("blunting of the left costophrenic angle", "opacities", "right effusion"),
        ("interstitial edema", "central vascular engorgement", "pleural effusions"),
    ],
)
def test_what_has_resolved_is_absent_all_along_the_list(names):
    forms = ("{0}, {1}, and {2}", "{0}, {1} and {2}", "{0} and {1}")
    for ending, form in product(RESOLVED, forms):
        text = ending.format(form.format(*names[: form.count("{")]))
        claims = PARSER.parse(text).claims
        assert {(c.polarity, c.change) for c in claims} == {("absent", "resolved")}, text
        assert len({c.finding for c in claims}) >= form.count("{"), text


DOUBTS = [
    "Possible pneumonia",
    "Opacity may represent pneumonia",
    "Differential includes pneumonia",
]
LINKS = (". ", "; ", ", and ", ", ", " and ", ", but ")
NEWS = {
    "there is a small left effusion": "pleural_effusion",
    "there is an effusion": "pleural_effusion",
    "a small effusion is present": "pleural_effusion",
    "the left effusion is unchanged": "pleural_effusion",
    "an effusion is seen": "pleural_effusion",
    "cardiomegaly is stable": "cardiomegaly",
    "bilateral effusions are present": "pleural_effusion",
    "the heart is enlarged": "cardiomegaly",
    "the aorta is tortuous": "tortuous_aorta",
    "a right picc line is seen": "central_line",
    "hiatal hernia is noted": "hiatal_hernia",
}


@pytest.mark.parametrize("news", NEWS)
def test_what_has_a_verb_of_its_own_behind_a_doubt_is_certain(news):
    for doubt, link in product(DOUBTS, LINKS):
        text = f"{doubt}{link}{news}."
        claims = read(text)
        assert claims["pneumonia"][:2] == ("present", "uncertain"), text
        assert claims[NEWS[news]][:2] == ("present", "certain"), text


@pytest.mark.parametrize(
    ("doubt", "name"),
    [
        ("pneumonia cannot be excluded", "pneumonia"),
        ("pneumonia is possible", "pneumonia"),
        ("pneumonia would be a consideration", "pneumonia"),
        ("pneumothorax is not seen", "pneumothorax"),
        ("the pneumothorax has resolved", "pneumothorax"),
    ],
)
def test_what_has_a_verb_of_its_own_before_a_doubt_is_certain(doubt, name):
    certain = {news: finding for news, finding in NEWS.items() if "line" not in news}
    certain["there is a small left effusion in the sulcus"] = "pleural_effusion"
    certain["cardiomegaly is unchanged"] = "cardiomegaly"
    for (news, finding), link in product(certain.items(), LINKS):
        text = f"{news.capitalize()}{link}{doubt}."
        claims = read(text)
        assert claims[finding][:2] == ("present", "certain"), text
        assert claims[name][:2] != ("present", "certain"), text


@pytest.mark.parametrize("form", LISTS[:3])
def test_what_findings_include_is_certain(form):
    names = ("atelectasis", "pneumonia", "scarring")
    assert held(f"Findings include {form.format(*names)}.", names) == dict.fromkeys(names, SURE)


@pytest.mark.parametrize(
    ("text", "claims"),
    [
        ("Left upper lobe opacities, cannot exclude a mass.", {"opacity": 0, "mass": 1}),
        ("Disease, probably in the left lobe, a new pneumonia.", {"pneumonia": 0}),
        ("Possible pneumonia, small left effusion.", {"pneumonia": 1, "pleural_effusion": 0}),
        ("Possible pneumonia; cardiomegaly.", {"pneumonia": 1, "cardiomegaly": 0}),
        ("Borderline cardiomegaly and hyperinflation.", {"cardiomegaly": 1, "hyperinflation": 0}),
        ("Borderline heart size, small effusion.", {"cardiomegaly": 1, "pleural_effusion": 0}),
        (
            "Small left effusion, pneumonia cannot be excluded.",
            {"pneumonia": 1, "pleural_effusion": 0},
        ),
        ("Possible atelectasis with a small effusion.", {"atelectasis": 1, "pleural_effusion": 0}),
        (
            "Stable cardiomegaly, possible edema or pneumonia.",
            {"cardiomegaly": 0, "edema": 1, "pneumonia": 1},
        ),
        ("Opacity consistent with pneumonia.", {"opacity": 0, "pneumonia": 0}),
        ("Effusion consistent with edema in the appropriate clinical setting.", {"edema": 1}),
        (
            "In the appropriate clinical setting, this is compatible with pneumonia.",
            {"pneumonia": 1},
        ),
    ],
)
def test_what_a_doubt_does_not_reach_stays_certain(text, claims):
    found = read(text)
    for name, unsure in claims.items():
        assert found[name][:2] == ("present", "uncertain" if unsure else "certain"), name


@pytest.mark.parametrize(
    "question",
    [
        "Recommend clinical correlation for {}.",
        "Clinical correlation for {} is recommended.",
        "Clinical correlation for possible {} is advised.",
        "Correlate clinically for {}.",
        "Please correlate clinically for signs of {}.",
        "Correlation for {} is suggested.",
        "Clinical correlation to exclude {}.",
        "Clinical correlation for cough, {}.",
        "Recommend follow-up to exclude {}.",
    ],
)
def test_a_question_for_the_clinic_claims_nothing(question):
    for name in ("infection", "pneumonia", "effusion", "pneumothorax or edema"):
        assert read(question.format(name)) == {}, name


def test_what_stands_beside_a_question_is_claimed():
    assert read("Left base opacity, correlate clinically for infection.") == {"opacity": SURE}
    assert read("History of pneumonia, small effusion is seen.")["pleural_effusion"][0] == "present"
    assert "pneumonia" not in read("History of pneumonia, small effusion is seen.")


LUNGS = {"atelectasis", "consolidation", "edema", "mass", "nodule", "opacity", "pneumonia"}


@pytest.mark.parametrize(
    "text",
    [
        "{} clear space.",
        "The {} clear space is preserved.",
        "The lungs show normal {} clear space.",
        "Lungs with {} clear space preserved.",
        "The {} clear space is clear.",
        "The {} space is clear.",
        "The lungs are hyperexpanded with increased {} clear space.",
        "The lungs are hyperexpanded and the {} clear space is increased.",
    ],
)
def test_a_clear_space_says_nothing_of_the_lungs(text):
    for place in ("retrosternal", "Retrosternal", "retrocardiac", "substernal"):
        assert not LUNGS & set(read(text.format(place))), place


@pytest.mark.parametrize(
    "text",
    [
        "Increased retrosternal clear space.",
        "Increased retrosternal airspace.",
        "Increase in the retrosternal clear space.",
        "Enlarged retrosternal air space.",
        "The retrosternal clear space is increased.",
        "Widening of the retrosternal clear space.",
    ],
)
def test_a_wide_retrosternal_space_is_hyperinflation(text):
    assert read(text) == {"hyperinflation": SURE}


def test_clear_lungs_beside_a_clear_space_are_clear():
    found = read("The lungs are clear with increased retrosternal clear space.")
    assert {name for name, claim in found.items() if claim[0] == "absent"} == LUNGS


@pytest.mark.parametrize(
    "text", ["No {} {} changes.", "No {} {} change is seen.", "There are no {} {} changes."]
)
def test_no_change_of_bone_denies_what_a_bone_may_have(text):
    kinds = ("acute", "aggressive", "suspicious", "destructive", "focal")
    bones = ("bony", "osseous", "bone", "skeletal")
    for kind, bone in product(kinds, bones):
        polarities = {name: c[0] for name, c in read(text.format(kind, bone)).items()}
        assert polarities == dict.fromkeys(("acute_fracture", "bone_lesion"), "absent")


@pytest.mark.parametrize(
    "text", ["No change in the bones.", "No interval bony change.", "No heart size change."]
)
def test_no_change_against_before_denies_nothing(text):
    assert read(text) == {}


@pytest.mark.parametrize(
    "text",
    [
        *("Pleural calcification.", "Pleural calcifications.", "Calcified pleura."),
        *("Calcified pleural plaques.", "Calcification of the pleura.", "Pleural plaque."),
        *("There are multiple pleural calcifications.", "Calcification along the pleura."),
        *("Pleuroparenchymal scarring.", "Pleuro-parenchymal scarring."),
    ],
)
def test_a_pleura_that_is_calcified_or_scarred_is_thickened(text):
    assert read(text)["pleural_thickening"] == SURE


@pytest.mark.parametrize("seen", ["visible", "visualized", "seen", "identified", "visible large"])
@pytest.mark.parametrize(
    "form", ["No effusion or {} pneumothorax.", "No edema, {} pneumothorax or effusion."]
)
def test_an_adjective_of_sight_ends_no_denial(form, seen):
    assert {claim[:2] for claim in read(form.format(seen)).values()} == {("absent", "certain")}


def test_a_place_behind_the_heart_still_has_its_airspace_disease():
    assert read("Minimal retrocardiac airspace disease.")["airspace_opacity"] == SURE
    assert "opacity" in read("Opacity in the retrocardiac region.")
