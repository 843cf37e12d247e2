"""Several prepared sets as one: rows, ids, patients, sentences, claims and scores of all."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from medclip_debias.config import AugmentSettings, PrepareSettings, SetSettings
from medclip_debias.data.joint import ASIDE, JointSet, open_prepared
from medclip_debias.data.loader import StepBatches, TrainingStudies
from medclip_debias.data.prepare import Reading, prepare
from medclip_debias.data.store import PreparedSet, write_scores
from medclip_debias.data.text.claims.rules import RuleParser
from medclip_debias.data.text.claims.table import claim_set, claims_hash, read_claims
from medclip_debias.data.text.evidence import Evidence
from medclip_debias.data.verify import check_sample
from medclip_debias.errors import UserError
from medclip_debias.language.class_probability import log_probabilities
from tests.data.text.evidence.test_pairs import by_loop

SIZE = 16


@pytest.fixture(scope="module")
def reports(small_phantom: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A set with reports."""
    out = tmp_path_factory.mktemp("joint") / "reports"
    prepare(small_phantom, out, PrepareSettings(size=SIZE), workers=1)
    claim_set(out)
    return out


@pytest.fixture
def made(nih_folder: Callable[..., Path], tmp_path: Path) -> Callable[..., Path]:
    """A function: the prepared set of such a `nih_folder`, its labels as sentences, with claims."""

    def make(
        name: str,
        images: dict[str, tuple[str, str]],
        size: int = SIZE,
        copies: dict[str, Path] | None = None,
    ) -> Path:
        out = tmp_path / "sets" / name
        folder = nih_folder(name, images)
        for image, film in (copies or {}).items():
            shutil.copy(film, folder / "images" / f"{image}.png")
        reading = Reading(label_sentences=True)
        prepare(folder, out, PrepareSettings(size=size), reading=reading, workers=1)
        claim_set(out)
        return out

    return make


FINDINGS = ("Mass", "No Finding", "Cardiomegaly|Effusion", "Pneumonia|Infiltration", "Edema")


def images(patients: range, split: str) -> dict[str, tuple[str, str]]:
    return {
        f"{patient:08d}_{image:03d}": (FINDINGS[(patient + image) % 5], split)
        for patient in patients
        for image in range(2)
    }


def joint(*paths: Path, weights: tuple[float, ...] = ()) -> JointSet:
    sets = [
        SetSettings(path=p, weight=w)
        for p, w in zip(paths, weights or [1] * len(paths), strict=True)
    ]
    opened = open_prepared(sets)
    assert isinstance(opened, JointSet)
    return opened


def test_rows_and_tables_are_those_of_the_sets_one_behind_the_other(reports, made):
    other = made("nih", images(range(1, 30), "train"))
    whole, parts = joint(reports, other), [PreparedSet.open(reports), PreparedSet.open(other)]
    assert len(whole) == sum(map(len, parts))
    pixels = np.concatenate([part.pixels for part in parts])
    some = np.array([0, len(whole) - 1, len(parts[0]), len(parts[0]) - 1, 3])
    for rows in (some, slice(2, 9), (some[1], slice(2, 5), slice(1, 4))):
        assert np.array_equal(whole.pixels[rows], pixels[rows])
    assert whole.pixels.shape == pixels.shape
    assert len(whole.sentences) == sum(len(part.sentences) for part in parts)
    assert whole.studies["study_id"].is_unique
    assert whole.images["image_id"].is_unique
    assert whole.texts == sorted({*parts[0].texts, *parts[1].texts})
    assert np.array_equal(whole.frontal, np.concatenate([part.frontal for part in parts]))
    check_sample(whole)
    with pytest.raises(IndexError):
        whole.pixels[len(whole)]


def test_no_patient_is_learned_from_and_judged(made):
    """Patients 1 to 9 train in one folder; of them 3 is tested and 4 left out in another one."""
    first = made("a", images(range(1, 10), "train"))
    second = made("b", images(range(3, 4), "test") | images(range(20, 60), "train"))
    whole = joint(first, second)
    digits = whole.images["image_id"].str.split("/").str[1].str[:8]  # independent of the tables
    splits = whole.images["split"]
    judged = set(digits[splits == "test"])
    assert judged == {"00000003"}
    assert not judged & set(digits[splits.isin(["train", "validate"])])
    assert whole.aside == {"a": {"patients": 1, "studies": 2, "images": 2}}
    assert whole.describe()[0].startswith("a: 1 patient in another split")
    rows = {int(r) for of_study in TrainingStudies.of(whole).rows for r in of_study}
    assert not rows & set(np.flatnonzero(splits == ASIDE))
    # Archives of other people, or names in the settings that say so, share nobody.
    apart = open_prepared([SetSettings(path=first, patients="x"), SetSettings(path=second)])
    assert isinstance(apart, JointSet)
    assert apart.aside == {}
    views = whole.by_name()
    assert (views["a"].images["split"] == ASIDE).sum() == 2
    assert len(views["b"]) == len(PreparedSet.open(second))


def test_a_film_under_two_ids_is_one_patients(made, tmp_path):
    """ChestX-Det's files are ChestX-ray14's, renumbered: patient 5 trains here, 77 is tested there.

    Of the third set, patient 88 has a film of 77, and so is 5, too, whose other film trains here.
    """
    films = tmp_path / "a" / "images"
    paths = {"a": made("a", images(range(1, 10), "train"))}
    for name, split, copies in (
        ("det", "test", {"00000077_000": films / "00000005_000.png"}),
        (
            "more",
            "train",
            {
                "00000088_000": films / "00000005_000.png",
                "00000088_001": films / "00000006_001.png",
            },
        ),
    ):
        paths[name] = made(name, dict.fromkeys(copies, ("Mass", split)), copies=copies)
    whole = open_prepared([SetSettings(path=p, patients=f"of {n}") for n, p in paths.items()])
    assert isinstance(whole, JointSet)
    aside = whole.images[whole.images["split"] == ASIDE]
    assert sorted(aside["image_id"]) == [
        *(f"a/0000000{patient}_00{film}" for patient in (5, 6) for film in (0, 1)),
        *(f"more/00000088_00{film}" for film in (0, 1)),
    ]
    assert whole.aside["a"] == {"patients": 2, "studies": 4, "images": 4}


def test_batches_have_the_shares_of_the_weights(reports, made):
    other = made("nih", images(range(1, 40), "train"))
    whole = joint(reports, other, weights=(3, 1))
    studies = TrainingStudies.of(whole)

    def batches(**changes):
        options = {"batch_size": 8, "sentences_per_study": 2, "input_size": 12, "seed": 1}
        return StepBatches(whole.pixels, studies, augment=AugmentSettings(), **(options | changes))

    judged = joint(reports, other, weights=(1, 0))  # no part of an epoch, nor of a model's studies
    assert len(TrainingStudies.of(judged)) == len(TrainingStudies.of(PreparedSet.open(reports)))
    assert set(TrainingStudies.of(judged).sets) == {0}
    of_first = [studies.sets[batches().members(step)].tolist().count(0) for step in range(30)]
    assert of_first == [6] * 30
    begun, later = batches(), batches()[17]
    again = [begun[step] for step in range(18)][17]
    for name in ("images", "texts", "owners", "studies"):
        assert np.array_equal(getattr(again, name), getattr(later, name))
    halves = [batches(rank=rank, world=2)[5] for rank in range(2)]
    assert np.array_equal(np.concatenate([h.images for h in halves]), batches()[5].images)


def test_evidence_is_that_of_every_pair_by_the_definition(reports, made):
    whole = joint(reports, made("nih", images(range(1, 12), "train")))
    evidence = Evidence.open(whole, 0.3)
    assert evidence.always  # else the rule for studies of labels would not show
    parser = RuleParser(evidence.lexicon)
    names, texts = whole.studies["study_id"].tolist(), whole.texts
    said = (
        [parser.parse(text).claims for text in texts],
        [names.index(study) for study in whole.sentences["study_id"]],
        [texts.index(text) for text in whole.sentences["text"]],
        len(names),
    )
    always, never = (by_loop(*said, of, evidence.lexicon) for of in (evidence.always, ()))
    of_labels = np.array([name.startswith("nih/") for name in names])
    told = np.isin(names, whole.sentences["study_id"])
    found = evidence.pairs(np.arange(len(names)), np.arange(len(texts)))
    assert np.array_equal(found[told], np.where(of_labels[:, None], never, always)[told])
    # Shares are of the reports alone: labels mention every finding of their archive.
    assert evidence.mentioned == Evidence.open(PreparedSet.open(reports), 0.3).mentioned


def test_claims_and_scores_are_those_of_the_sets(reports, made):
    other = made("nih", images(range(1, 12), "train"))
    whole = joint(reports, other)
    parser = RuleParser()
    claims = read_claims(whole).claims
    assert claims == [parser.parse(text).claims for text in whole.texts]
    assert claims_hash(whole) != claims_hash(joint(other, reports))
    for path in (reports, other):
        texts = PreparedSet.open(path).texts
        write_scores(path, texts, [-float(len(text)) for text in texts], [1] * len(texts), "lm")
    assert whole.scores("lm") == {text: -float(len(text)) for text in whole.texts}
    learned = TrainingStudies.of(whole).texts
    expected = [-float(len(text)) for text in learned]
    assert log_probabilities(whole, learned, None).tolist() == expected  # what eta reads
    texts = PreparedSet.open(other).texts
    write_scores(other, texts, [-1.0] * len(texts), [1] * len(texts), "another")
    with pytest.raises(UserError, match="the scores come from the language model another"):
        whole.scores()


def test_a_list_of_one_set_is_that_set(reports):
    alone = open_prepared([SetSettings(path=reports)])
    assert not isinstance(alone, JointSet)
    assert read_claims(alone).claims  # `claims` wrote them for this set, not for a list of it


def test_sets_that_do_not_go_together_are_refused_in_a_sentence(reports, made):
    larger = made("large", images(range(1, 4), "train"), size=20)
    with pytest.raises(UserError, match=r"was prepared with '--size 20 .* same settings"):
        joint(reports, larger)
    with pytest.raises(UserError, match="is listed twice"):
        joint(reports, reports)
    small = made("small", images(range(1, 3), "train"))
    options = {"batch_size": 32, "sentences_per_study": 1, "input_size": 12, "seed": 1}
    whole = joint(reports, small)
    with pytest.raises(UserError, match="studies of small, which has"):
        StepBatches(whole.pixels, TrainingStudies.of(whole), augment=AugmentSettings(), **options)
