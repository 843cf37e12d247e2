"""Claims of sentences that were written and judged by hand before the rules were changed."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from medclip_debias.data.text.claims import Claim, RuleParser, load_lexicon
from medclip_debias.data.text.claims.claim import FIELDS

PARSER = RuleParser()


@pytest.fixture(scope="module")
def parser():
    return PARSER


def shown(claim: Claim) -> str:
    sign = ("+" if claim.present else "-") + ("" if claim.certain else "?")
    parts = (claim.side, claim.zone, claim.severity, claim.change)
    return " ".join([sign + claim.finding, *filter(None, parts)])


LUNGS = ("atelectasis", "consolidation", "edema", "mass", "nodule", "opacity", "pneumonia")
ACUTE = ("consolidation", "edema", "pleural_effusion", "pneumonia", "pneumothorax")


def denied(names):
    return ["-" + name for name in names]


JUDGED = {
    # negation, its lists and its ends
    "No pneumothorax, effusion or consolidation.": denied(
        ["consolidation", "pleural_effusion", "pneumothorax"]
    ),
    "No effusion, consolidation, pneumothorax.": denied(
        ["consolidation", "pleural_effusion", "pneumothorax"]
    ),
    "No visible pneumothorax.": ["-pneumothorax"],
    "No acute, displaced rib fractures are identified.": ["-acute_fracture"],
    "Pneumothorax: none.": ["-pneumothorax"],
    "Pneumonia and edema are not seen.": ["-edema", "-pneumonia"],
    "No pneumothorax, small left effusion.": ["-pneumothorax", "+pleural_effusion left mild"],
    "No pneumothorax but a small left effusion.": [
        "-pneumothorax",
        "+pleural_effusion left mild",
    ],
    "There is no pneumothorax, and the heart is enlarged.": ["-pneumothorax", "+cardiomegaly"],
    "There is no focal airspace disease other than bibasilar atelectasis.": [
        "-airspace_opacity",
        "+atelectasis left lower",
        "+atelectasis right lower",
    ],
    "The heart is not enlarged.": ["-cardiomegaly"],
    "Right pleural effusion without pneumothorax.": ["+pleural_effusion right", "-pneumothorax"],
    "Interval removal of the right PICC line.": ["-central_line right"],
    "Pneumothorax: No.": ["-pneumothorax"],
    "The pneumonia seen on the prior study is no longer seen.": ["-pneumonia"],
    "Without a pneumothorax, the chest tube remains.": ["-pneumothorax", "+chest_tube"],
    "No tension pneumothorax.": ["-pneumothorax severe"],
    "Cardiomediastinal and hilar contours are normal.": denied(
        [
            *("cardiomegaly", "enlarged_cardiomediastinum", "enlarged_hilum"),
            "wide_mediastinum",
        ]
    ),
    # not seen, but on another image
    "There is a 9 mm nodule, not seen on prior exams.": ["+nodule"],
    "Left effusion which was not present on the previous study.": ["+pleural_effusion left"],
    "Basal opacity not clearly seen on the lateral view.": ["+opacity lower"],
    "A nodule is not seen on frontal or lateral views.": ["-nodule"],
    # what looks like a negation
    "No change in left effusion.": ["+pleural_effusion left stable"],
    "No increase in the small right effusion.": ["+pleural_effusion right mild stable"],
    "Not only effusion but also left basilar atelectasis.": [
        "+pleural_effusion",
        "+atelectasis left lower",
    ],
    "Heart size is no longer normal and now mildly enlarged.": ["+cardiomegaly mild"],
    # uncertainty
    "Possible pneumonia.": ["+?pneumonia"],
    "Pneumonia cannot be excluded.": ["+?pneumonia"],
    "Cannot exclude early pulmonary edema.": ["+?edema"],
    "Opacity may represent atelectasis or pneumonia.": [
        "+opacity",
        "+?atelectasis",
        "+?pneumonia",
    ],
    "Atelectasis versus pneumonia in the right lower lobe.": [
        "+?atelectasis",
        "+?pneumonia right lower",
    ],
    "Atelectasis versus contusion.": ["+?atelectasis"],
    "Atelectasis, less likely pneumonia.": ["+atelectasis", "+?pneumonia"],
    "Pneumonia is less likely.": ["+?pneumonia"],
    "Atelectasis is favored over pneumonia.": ["+?atelectasis", "+?pneumonia"],
    "Pneumonia?": ["+?pneumonia"],
    "Small effusion, if any.": ["+?pleural_effusion mild"],
    "Tiny, if any, left effusion.": ["+?pleural_effusion left"],
    "Low lung volumes accentuate the heart size.": ["+low_lung_volume", "+?cardiomegaly"],
    "Borderline cardiomegaly.": ["+?cardiomegaly"],
    "The heart size is borderline.": ["+?cardiomegaly"],
    "Borderline heart size.": ["+?cardiomegaly"],
    "Effusion is unlikely.": ["-?pleural_effusion"],
    # change
    "Right pleural effusion has resolved.": ["-pleural_effusion right resolved"],
    "Previously seen pneumothorax has resolved.": ["-pneumothorax resolved"],
    "Interval resolution of left effusion.": ["-pleural_effusion left resolved"],
    "Near-complete resolution of left effusion.": ["+pleural_effusion left decreased"],
    "Cardiomegaly and small effusions are unchanged.": [
        "+cardiomegaly stable",
        "+pleural_effusion mild stable",
    ],
    "Slight increase in left effusion.": ["+pleural_effusion left increased"],
    "New right apical pneumothorax.": ["+pneumothorax right upper new"],
    "Edema has improved.": ["+edema decreased"],
    "Right pleural effusion is present and appears increased.": [
        "+pleural_effusion right increased"
    ],
    "Interval increase in size of the right effusion.": ["+pleural_effusion right increased"],
    # sides, zones, severities
    "Bilateral pleural effusions, right greater than left.": [
        "+pleural_effusion left",
        "+pleural_effusion right",
    ],
    "Bibasilar atelectasis and effusions.": [
        "+atelectasis left lower",
        "+atelectasis right lower",
        "+pleural_effusion left lower",
        "+pleural_effusion right lower",
    ],
    "Small right and moderate left pleural effusions.": [
        "+pleural_effusion left moderate",
        "+pleural_effusion right mild",
    ],
    "Opacities in the left upper and right lower lobes.": [
        "+opacity left upper",
        "+opacity right lower",
    ],
    "In the right lung base, there is an opacity.": ["+opacity right lower"],
    "Elevated left hemidiaphragm.": ["+elevated_diaphragm left"],
    "Moderate to severe cardiomegaly.": ["+cardiomegaly moderate"],
    "Left base scarring/atelectasis.": [
        "+?atelectasis left lower",
        "+?scarring left lower",
    ],
    "No large left effusion.": ["-pleural_effusion left severe"],
    "Effusion on the right with overlying small pneumothorax.": [
        "+pleural_effusion right",
        "+pneumothorax mild",
    ],
    "Atelectasis on the left with associated mild cardiomegaly.": [
        "+atelectasis left",
        "+cardiomegaly mild",
    ],
    "Right lung calcified granulomata.": ["+calcified_granuloma right"],
    "Left hemidiaphragm eventration.": ["+eventration left"],
    "No nodules or masses.": ["-mass", "-nodule"],
    "Suspect acute fracture.": ["+?acute_fracture"],
    # normal statements
    "Normal size of the cardiac silhouette.": ["-cardiomegaly"],
    "Soft tissues are without acute abnormality.": [],
    "The lungs are clear.": denied(LUNGS),
    "Left lung is clear.": [f"-{name} left" for name in LUNGS],
    "Heart size is normal.": ["-cardiomegaly"],
    "Costophrenic angles are sharp.": ["-blunted_angle", "-pleural_effusion"],
    "No acute cardiopulmonary abnormality.": denied(ACUTE),
    "Normal chest.": denied(ACUTE),
    "No acute osseous abnormality.": ["-acute_fracture", "-bone_lesion"],
    "Heart size and mediastinum are normal.": ["-cardiomegaly", "-wide_mediastinum"],
    "Lungs are clear except for left basilar atelectasis.": [
        *denied(n for n in LUNGS if n != "atelectasis"),
        "+atelectasis left lower",
    ],
    "The lungs are clear of focal consolidation, effusion, or pneumothorax.": [
        *denied(LUNGS),
        "-pleural_effusion",
        "-pneumothorax",
    ],
    "Lungs are otherwise clear.": [f"-?{name}" for name in LUNGS],
    "The heart is mildly enlarged, the aorta is tortuous.": [
        "+cardiomegaly mild",
        "+tortuous_aorta",
    ],
    "Stable heart size, normal mediastinum.": ["-wide_mediastinum"],
    "Stable heart size, moderately enlarged and tortuous aorta.": ["+tortuous_aorta"],
    "Stable cardiomediastinal silhouette with normal heart size.": ["-cardiomegaly"],
    "Small device overlying the left chest wall with intact leads.": ["+support_device left mild"],
    # neither a claim nor a finding
    "There is no active tuberculosis.": [],
    "No evidence of active pulmonary TB.": [],
    "Scarring of prior tuberculous infection.": ["+scarring"],
    "The heart size is stable.": [],
    "Evaluate for pneumonia.": [],
    "History of pneumothorax.": [],
    "R/O pneumonia.": [],
    "Medical history significant for COPD.": [],
    "Repeat to ensure that there is no underlying mass.": [],
    "Please note that fractures may not be demonstrated.": [],
    "PA and lateral views of the chest.": [],
    # a letter wrong
    "No pneumohtorax or pleural efffusion.": ["-pleural_effusion", "-pneumothorax"],
}


@pytest.mark.parametrize("text", JUDGED)
def test_a_sentence_claims_what_a_reader_says_it_claims(parser, text):
    assert sorted(map(shown, parser.parse(text).claims)) == sorted(JUDGED[text])


def test_corrected_words_are_counted(parser):
    assert parser.parse("No pneumohtorax or pleural efffusion.").corrected == 2
    assert parser.parse("No pneumothorax.").corrected == 0


_WORDS = sorted({word for text in JUDGED for word in text.lower().strip(".").split()})


@given(st.lists(st.sampled_from([*_WORDS, ",", ";", "xxxx", "12.5", "(", "é"]), max_size=14))
def test_any_order_of_words_gives_valid_claims_and_letters_case_does_not_matter(words):
    text = " ".join(words)
    claims = PARSER.parse(text).claims
    assert claims == PARSER.parse(text.upper()).claims
    assert list(claims) == sorted(set(claims))
    for claim in claims:
        assert claim.finding in load_lexicon().names
        for field, allowed in FIELDS.items():
            assert getattr(claim, field) in allowed
        assert not (claim.change == "resolved" and claim.present)


@given(st.permutations(["effusion", "pneumothorax", "consolidation", "edema"]))
def test_a_denied_list_denies_all_in_any_order(names):
    text = f"No {', '.join(names[:-1])} or {names[-1]}."
    claims = PARSER.parse(text).claims
    assert {c.polarity for c in claims} == {"absent"}
    assert len(claims) == 4
