"""How far a doubt, a denial or a resolution reaches: through a list, and not beyond it."""

from __future__ import annotations

from itertools import permutations, product

import pytest

from medclip_debias.data.text.claims import RuleParser

PARSER = RuleParser()
NAMES = ("atelectasis", "pneumonia", "scarring")
LISTS = ["{}, {}, {}", "{}, {} and {}", "{}, {}, or {}", "{} or {} and {}", "{}/{}, {}"]
LISTS += ["{}, {} versus {}", "{}, {}, and/or {}"]
DOUBTS_BEFORE = [
    *("Differential includes {}.", "The differential is broad and includes {}."),
    *("Differential diagnosis: {}.", "Diagnostic considerations would include {}."),
    *("Considerations include {}.", "Left base opacity, the differential would include {}."),
    *("Findings may represent {}.", "This could be due to {}.", "This might reflect {}."),
    *("Findings may be compatible with {}.", "Right base opacity, which may represent {}."),
    *("Cannot exclude {}.", "Concern for {}.", "Findings are suspicious for {}."),
    *("Possible {}.", "There is possible {}.", "Left base opacity, possibly {}."),
]
DOUBTS_BEHIND = [
    *("{} are possible.", "{} cannot be excluded.", "{} are not excluded.", "{} may be present."),
    *("{} would be a consideration.", "{} are in the differential.", "{} should be considered."),
]
DENIALS_BEHIND = ["{} are not seen.", "{} are absent.", "{} have been excluded."]
RESOLVED = ["{} have now resolved.", "{} have since cleared.", "{} are resolved."]
RESOLVED += ["{} have cleared in the interval.", "Previously seen {} have resolved."]


def read(text):
    """Return ``{finding: (polarity, certainty, change)}`` of a text's claims."""
    claims = PARSER.parse(text).claims
    return {c.finding: (c.polarity, c.certainty, c.change) for c in claims}


def held(text, names):
    claims = read(text)
    return {name: claims.get(name) for name in names}


UNSURE = ("present", "uncertain", "")
SURE = ("present", "certain", "")


@pytest.mark.parametrize("doubt", DOUBTS_BEFORE)
def test_a_doubt_before_a_list_holds_for_all_of_it_in_any_order(doubt):
    for form, names in product(LISTS, permutations(NAMES)):
        text = doubt.format(form.format(*names))
        assert held(text, names) == dict.fromkeys(names, UNSURE), text


def test_neither_a_severity_nor_a_semicolon_ends_the_doubt_of_a_list():
    names = ("atelectasis", "pleural_effusion", "scarring")
    for doubt in DOUBTS_BEFORE[:14]:
        text = doubt.format("subsegmental atelectasis, small effusion, scarring")
        assert {claim[1] for claim in held(text, names).values()} == {"uncertain"}, text
    for doubt in ("Differential includes {}.", "Findings may represent {}."):
        text = doubt.format("atelectasis; pneumonia; and scarring")
        assert held(text, NAMES) == dict.fromkeys(NAMES, UNSURE), text


def test_a_doubt_or_a_denial_behind_a_list_holds_for_all_of_it():
    for form in ("{}, {} and {}", "{}, {}, or {}", "{} and {} or {}"):
        for doubt in DOUBTS_BEHIND:
            text = doubt.format(form.format(*NAMES))
            assert held(text, NAMES) == dict.fromkeys(NAMES, UNSURE), text
        for denial in DENIALS_BEHIND:
            text = denial.format(form.format(*NAMES))
            assert {claim[0] for claim in held(text, NAMES).values()} == {"absent"}, text


@pytest.mark.parametrize(
    "names",
    [
        ("pulmonary venous congestion", "infiltrates", "left effusion"),
        ("blunting of the left costophrenic angle", "opacities", "right effusion"),
        ("interstitial edema", "central vascular engorgement", "pleural effusions"),
    ],
)
def test_what_has_resolved_is_absent_all_along_the_list(names):
    for ending, form in product(RESOLVED, ("{}, {}, and {}", "{}, {} and {}", "{} and {}")):
        text = ending.format(form.format(*names[: form.count("{")]))
        claims = PARSER.parse(text).claims
        assert {(c.polarity, c.change) for c in claims} == {("absent", "resolved")}, text
        assert len({c.finding for c in claims}) >= form.count("{"), text


DOUBTS = ("Possible pneumonia", "Opacity may represent pneumonia")
LINKS = (". ", "; ", ", and ", ", ", " and ", ", but ")
NEWS = {
    "there is a small left effusion": "pleural_effusion",
    "an effusion is seen": "pleural_effusion",
    "the left effusion is unchanged": "pleural_effusion",
    "bilateral effusions are present": "pleural_effusion",
    "cardiomegaly is stable": "cardiomegaly",
    "the heart is enlarged": "cardiomegaly",
    "the aorta is tortuous": "tortuous_aorta",
}


@pytest.mark.parametrize("news", NEWS)
def test_what_has_a_verb_of_its_own_beside_a_doubt_is_certain(news):
    for doubt, link in product(DOUBTS, LINKS):
        text = f"{doubt}{link}{news}."
        claims = read(text)
        assert claims["pneumonia"][:2] == ("present", "uncertain"), text
        assert claims[NEWS[news]][:2] == ("present", "certain"), text
    for doubt, link in product(("cannot be excluded", "is not seen", "has resolved"), LINKS):
        text = f"{news.capitalize()}{link}pneumothorax {doubt}."
        claims = read(text)
        assert claims[NEWS[news]][:2] == ("present", "certain"), text
        assert claims["pneumothorax"][:2] != ("present", "certain"), text


@pytest.mark.parametrize(
    ("text", "claims"),
    [
        ("Findings include atelectasis, pneumonia.", {"atelectasis": 0, "pneumonia": 0}),
        ("Left upper lobe opacities, cannot exclude a mass.", {"opacity": 0, "mass": 1}),
        ("Disease, probably in the left lobe, a new pneumonia.", {"pneumonia": 0}),
        ("Possible pneumonia, small left effusion.", {"pneumonia": 1, "pleural_effusion": 0}),
        ("Possible pneumonia; cardiomegaly.", {"pneumonia": 1, "cardiomegaly": 0}),
        ("Borderline cardiomegaly and hyperinflation.", {"cardiomegaly": 1, "hyperinflation": 0}),
        ("Possible atelectasis with a small effusion.", {"atelectasis": 1, "pleural_effusion": 0}),
        ("Stable cardiomegaly, possible edema or pneumonia.", {"cardiomegaly": 0, "pneumonia": 1}),
        ("Opacity consistent with pneumonia.", {"opacity": 0, "pneumonia": 0}),
        ("Effusion consistent with edema in the appropriate clinical setting.", {"edema": 1}),
        ("Left base opacity, correlate clinically for infection.", {"opacity": 0}),
        ("Minimal retrocardiac airspace disease.", {"airspace_opacity": 0}),
    ],
)
def test_what_a_doubt_does_not_reach_stays_certain(text, claims):
    found = read(text)
    for name, unsure in claims.items():
        assert found[name][:2] == ("present", "uncertain" if unsure else "certain"), name


def test_a_question_for_the_clinic_claims_nothing():
    for question in (
        "Recommend clinical correlation for {}.",
        "Clinical correlation for possible {} is advised.",
        "Please correlate clinically for signs of {}.",
        "Clinical correlation for cough, {}.",
        "Recommend follow-up to exclude {}.",
    ):
        for name in ("infection", "pneumonia", "effusion", "pneumothorax or edema"):
            assert read(question.format(name)) == {}, (question, name)
    found = read("History of pneumonia, small effusion is seen.")
    assert found["pleural_effusion"][0] == "present"
    assert "pneumonia" not in found


LUNGS = {"atelectasis", "consolidation", "edema", "mass", "nodule", "opacity", "pneumonia"}


def test_a_clear_space_says_nothing_of_the_lungs():
    for text in (
        "The {} clear space is preserved.",
        "Lungs with {} clear space preserved.",
        "The {} space is clear.",
        "The lungs are hyperexpanded with increased {} clear space.",
    ):
        for place in ("Retrosternal", "retrocardiac", "substernal"):
            assert not LUNGS & set(read(text.format(place))), (text, place)
    found = read("The lungs are clear with increased retrosternal clear space.")
    assert {name for name, claim in found.items() if claim[0] == "absent"} == LUNGS


@pytest.mark.parametrize(
    ("finding", "text"),
    [
        ("hyperinflation", "Increase in the retrosternal clear space."),
        ("hyperinflation", "Enlarged retrosternal air space."),
        ("hyperinflation", "The retrosternal clear space is increased."),
        ("pleural_thickening", "There are multiple pleural calcifications."),
        ("pleural_thickening", "Calcified pleural plaques."),
        ("pleural_thickening", "Calcification along the pleura."),
        ("pleural_thickening", "Pleuro-parenchymal scarring."),
    ],
)
def test_what_a_wide_space_or_a_calcified_pleura_means(finding, text):
    assert read(text)[finding] == SURE


def test_no_change_of_bone_denies_what_a_bone_may_have():
    denied = dict.fromkeys(("acute_fracture", "bone_lesion"), "absent")
    for text in ("No {} {} changes.", "No {} {} change is seen.", "There are no {} {} changes."):
        for kind, bone in product(("acute", "destructive", "focal"), ("bony", "osseous", "bone")):
            found = read(text.format(kind, bone))
            assert {name: claim[0] for name, claim in found.items()} == denied, text
    for text in ("No change in the bones.", "No interval bony change.", "No heart size change."):
        assert read(text) == {}


def test_an_adjective_of_sight_ends_no_denial():
    for seen in ("visible", "visualized", "seen", "visible large"):
        for form in ("No effusion or {} pneumothorax.", "No edema, {} pneumothorax or effusion."):
            claims = read(form.format(seen)).values()
            assert {claim[:2] for claim in claims} == {("absent", "certain")}
