"""Words of the phantom's reports. Every list is in Zipf order: the first item is commonest.

The nouns of a finding are one list, used for present and absent findings alike: a noun that
only one of them used would give the label away (see docs/phantom.md, word leaks).
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Noun:
    """A way to name a finding.

    ``article`` is ``a``, ``an`` or empty (mass nouns and plurals); ``label`` the CheXpert column
    it ticks; ``category`` the MS-CXR category, where it differs from that of the type.
    """

    text: str
    article: str = ""
    plural: bool = False
    label: str | None = None
    category: str | None = None
    bilateral: bool = True


def _nouns(label: str | None, *items: tuple[str, str] | tuple[str, str, str]) -> list[Noun]:
    result = []
    for item in items:
        text, article = item[0], item[1]
        own = item[2] if len(item) == 3 else None
        plural = article == "plural"
        result.append(Noun(text, "" if plural else article, plural, own or label, own))
    return result


NOUNS: dict[str, list[Noun]] = {
    "effusion": _nouns(
        "Pleural Effusion",
        ("pleural effusion", "a"),
        ("pleural effusions", "plural"),
        ("effusion", "an"),
        ("pleural fluid", ""),
        ("effusions", "plural"),
        ("layering pleural effusion", "a"),
        ("pleural fluid collection", "a"),
    ),
    "cardiomegaly": _nouns(
        "Cardiomegaly",
        ("cardiomegaly", ""),
        ("cardiac enlargement", ""),
        ("enlargement of the cardiac silhouette", ""),
        ("enlargement of the heart", ""),
        ("enlarged heart", "an"),
    ),
    "edema": _nouns(
        "Edema",
        ("pulmonary edema", ""),
        ("edema", ""),
        ("interstitial edema", ""),
        ("pulmonary vascular congestion", ""),
        ("interstitial pulmonary edema", ""),
        ("vascular congestion", ""),
    ),
    "atelectasis": _nouns(
        "Atelectasis",
        ("atelectasis", ""),
        ("basilar atelectasis", ""),
        ("linear atelectasis", ""),
        ("subsegmental atelectasis", ""),
        ("atelectatic changes", "plural"),
        ("platelike atelectasis", ""),
        ("discoid atelectasis", ""),
    ),
    "pneumonia": _nouns(
        "Pneumonia",
        ("pneumonia", ""),
        ("consolidation", "", "Consolidation"),
        ("focal consolidation", "", "Consolidation"),
        ("opacity", "an", "Lung Opacity"),
        ("infiltrate", "an", "Lung Opacity"),
        ("airspace opacity", "an", "Lung Opacity"),
        ("airspace disease", "", "Lung Opacity"),
        ("opacification", "", "Lung Opacity"),
    ),
    "nodule": _nouns(
        "Lung Lesion",
        ("nodule", "a"),
        ("pulmonary nodule", "a"),
        ("nodular opacity", "a"),
        ("lung nodule", "a"),
        ("rounded opacity", "a"),
        ("nodular density", "a"),
    ),
    "pneumothorax": _nouns(
        "Pneumothorax",
        ("pneumothorax", "a"),
        ("pneumothoraces", "plural"),
        ("pleural air", ""),
        ("apical pneumothorax", "an"),
        ("pleural air collection", "a"),
    ),
    "line": _nouns(
        "Support Devices",
        ("central venous catheter", "a"),
        ("PICC line", "a"),
        ("PICC", "a"),
        ("central line", "a"),
        ("subclavian line", "a"),
        ("subclavian catheter", "a"),
        ("venous line", "a"),
    ),
    "tube": _nouns(
        "Support Devices",
        ("endotracheal tube", "an"),
        ("ET tube", "an"),
        ("tracheal tube", "a"),
    ),
    "pacemaker": _nouns(
        "Support Devices",
        ("pacemaker", "a"),
        ("pacing device", "a"),
        ("pacer device", "a"),
        ("dual lead pacemaker", "a"),
        ("ICD", "an"),
    ),
    "hernia": _nouns(
        None, ("hiatal hernia", "a"), ("hiatus hernia", "a"), ("retrocardiac hernia", "a")
    ),
    "scoliosis": _nouns(
        None,
        ("scoliosis", ""),
        ("thoracic scoliosis", ""),
        ("curvature of the thoracic spine", ""),
        ("scoliosis of the spine", ""),
    ),
}

SEVERITY = {
    "small": ["small", "tiny", "trace", "minimal", "small to moderate", "minor", "very small"],
    "large": ["large", "moderate to large", "moderate", "sizable", "substantial", "extensive"],
    "mild": ["mild", "minimal", "slight", "mild to moderate", "minor", "low grade"],
    "severe": ["severe", "marked", "moderate to severe", "pronounced", "extensive", "massive"],
}
SEVERITY_ADVERB = {
    "mild": ["mildly", "slightly", "minimally", "mildly to moderately"],
    "severe": ["severely", "markedly", "moderately to severely", "massively"],
}

# Places, before and after the noun. {s} is the side.
SIDE_BEFORE = ["{s}", "{s} sided", "{s}-sided"]
SIDE_AFTER = ["on the {s}", "on the {s} side", "in the {s} hemithorax", "at the {s}", "{s}"]
ZONE_BEFORE = {
    "upper": ["{s} upper lobe", "{s} upper lung", "{s} upper zone", "{s} apical", "{s} suprahilar"],
    "lower": ["{s} lower lobe", "{s} basilar", "{s} lower lung", "{s} base", "{s} lower zone"],
}
ZONE_AFTER = {
    "upper": [
        "in the {s} upper lobe",
        "in the {s} upper lung",
        "at the {s} apex",
        "in the {s} upper zone",
        "overlying the {s} upper lung",
        "projecting over the {s} upper ribs",
    ],
    "lower": [
        "in the {s} lower lobe",
        "at the {s} base",
        "at the {s} lung base",
        "in the {s} lower lung",
        "in the {s} lower zone",
        "overlying the {s} lower lung",
    ],
}

MODIFIER = ["new", "persistent", "stable", "residual", "known", "unchanged", "chronic", "subtle"]

# {a}: noun phrase with its article; {n}: without; {is}/{has}: agree with it.
POSITIVE = [
    "there {is} {a}",
    "{n}",
    "{a} {is} present",
    "{a} {is} seen",
    "{n} {is} noted",
    "findings suggesting {n}",
    "signs of {n} are seen",
    "again seen {is} {a}",
    "{n} {is} unchanged",
    "there is evidence of {n}",
    "no significant change in {n}",
    "{n} {has} increased in size",
    "there {is} persistent {n}",
    "{n} {is} again noted",
    "findings consistent with {n}",
    "{a} {is} identified",
    "there {is} now {a}",
    "no interval change in {n}",
    "{n} {is} stable",
    "the radiograph demonstrates {a}",
    "there are signs of {n}",
    "redemonstration of {n}",
    "as before, there {is} {a}",
    "findings in keeping with {n}",
    "interval development of {n}",
    "no appreciable change in the {n}",
    "patient is known to have {a}",
    "{n} persists",
    "compared to the prior study, there {is} {a}",
    "no relevant change in the extent of {n}",
    "there continues to be {a}",
    "slight increase in {n}",
    "{n} {has} minimally improved",
    "the previously described {n} {is} again visualized",
    "appearance most suggestive of {n}",
    "findings again suggesting {n}",
]
# Catheters and tubes are there or not: nobody sees signs of them, or an increase in them.
DEVICE_POSITIVE = [
    "there {is} {a}",
    "{n}",
    "{a} {is} present",
    "{a} {is} seen",
    "{n} {is} in place",
    "{n} {is} unchanged in position",
    "again seen {is} {a}",
    "no change in {n}",
    "{n} {is} noted",
    "interval placement of {n}",
    "{a} {is} again noted",
    "patient has received {a}",
    "there {is} now {a}",
    "redemonstration of {n}",
    "as before, there {is} {a}",
    "no significant change in the position of {n}",
    "{n} {is} stable",
    "status post placement of {a}",
]
HEDGED = [
    "possible {n}",
    "findings may represent {n}",
    "{n} cannot be excluded",
    "{n} {is} suspected",
    "questionable {n}",
    "findings suggesting possible {n}",
    "appearance could reflect {n}",
    "{n} {is} not excluded",
    "there may be {a}",
    "probable {n}",
    "equivocal signs of {n}",
    "this may be due to {n}",
    "difficult to exclude {n}",
    "{n} would be difficult to exclude",
    "cannot rule out {n}",
    "in the appropriate clinical setting, findings could be due to {n}",
]
NEGATIVE = [
    "no {n}",
    "there {is} no {n}",
    "no evidence of {n}",
    "no {n} {is} seen",
    "no signs of {n}",
    "there is no evidence of {n}",
    "no findings suggesting {n}",
    "no {n} {is} identified",
    "{n} {is} not seen",
    "no definite {n}",
    "negative for {n}",
    "without {n}",
    "no radiographic evidence of {n}",
    "there are no signs of {n}",
    "no findings to suggest {n}",
    "previously seen {n} {has} resolved",
    "no convincing evidence of {n}",
    "{n} {is} no longer seen",
    "{n} {is} absent",
    "interval resolution of {n}",
    "no appreciable {n}",
    "no discernible {n}",
    "there is no radiographic evidence for {n}",
    "{n} {has} cleared",
    "no obvious {n} {is} visualized",
    "the study does not show {n}",
    "findings do not suggest {n}",
]
HEART_POSITIVE = [
    "heart size is {v} enlarged",
    "the heart is {v} enlarged",
    "the cardiac silhouette is {v} enlarged",
    "cardiac size is {v} increased",
    "heart size {v} enlarged",
    "heart size is {v} above normal",
    "heart is {v} enlarged in size",
    "cardiac silhouette remains {v} enlarged",
    "there is a {v} enlarged heart",
    "the size of the heart is {v} increased",
    "heart size is no longer normal and now {v} enlarged",
]
HEART_NEGATIVE = [
    "heart size is normal",
    "heart size normal",
    "the heart is normal in size",
    "the cardiac silhouette is normal",
    "heart size is within normal limits",
    "cardiac size is normal",
    "the heart is not enlarged",
    "normal heart size",
    "the cardiac silhouette is not enlarged",
    "normal size of the cardiac silhouette",
    "heart size remains normal",
    "the heart size is top normal",
]
TAILS = [
    "unchanged from prior",
    "since the prior study",
    "as compared to ___",
    "compared with ___",
    "on the current study",
    "unchanged since ___",
    "in comparison with the study of ___",
    "as seen on the prior radiograph",
    "when compared to the prior examination",
    "similar to the study from ___",
    "from the prior exam dated ___",
    "at this time",
    "on this single view",
    "allowing for differences in technique",
    "as discussed with Dr ___ by telephone",
]
POSITIVE_TAILS = [
    "with normal mediastinal contours",
    "without other abnormality",
    "otherwise normal study",
    "better seen on CT of ___",
    "of uncertain chronicity",
    "slightly increased since ___",
    "somewhat decreased compared to ___",
    "clinical correlation is recommended",
    "follow up radiograph is suggested",
    "with otherwise normal heart borders",
]
ADJACENT = ["with", "and", "with associated", "and adjacent", "with overlying", "along with"]

LUNGS_CLEAR = [
    "the lungs are clear",
    "lungs are clear",
    "the lungs are clear bilaterally",
    "both lungs are clear",
    "the lungs are well expanded and clear",
    "lungs are well inflated and clear",
    "lungs remain clear",
    "clear lungs",
]
NO_ACUTE = [
    "no acute cardiopulmonary process",
    "no acute cardiopulmonary abnormality",
    "no acute intrathoracic process",
    "no evidence of acute cardiopulmonary disease",
    "no radiographic evidence of acute cardiopulmonary process",
    "no acute findings in the chest",
    "no acute pulmonary process",
    "normal chest radiograph",
    "no acute cardiopulmonary disease",
    "no signs of acute disease",
]
COMBINED = [
    "no {x}",
    "there is no {x}",
    "no {x} is seen",
    "there is no {x} seen",
    "no evidence of {x}",
    "without evidence of {x}",
    "no {x} is identified",
    "no signs of {x}",
    "no definite {x}",
    "negative for {x}",
    "there is no evidence of {x}",
    "no findings suggesting {x}",
]
