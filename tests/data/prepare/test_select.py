"""Which images enter the set, and in which split: each policy against counts done by hand."""

from pathlib import Path

import pandas as pd
import pytest

from medclip_debias.config import PrepareSettings, SelectionSettings
from medclip_debias.data.prepare import Reading, prepare
from medclip_debias.data.prepare.select import one_view
from medclip_debias.data.records import ImageRecord
from medclip_debias.errors import UserError

SMALL = PrepareSettings(size=32)


def selected(tree, out, **settings):
    chosen = SelectionSettings(**settings)
    return prepare(tree.root, out, SMALL, selection=chosen, workers=1)


def counts(prepared):
    return {row["step"]: (row["kept"], row["dropped"]) for row in prepared.funnel}


@pytest.fixture
def viewed(tiny_tree):
    """A function: the tiny tree, whose images a to e have these views."""

    def viewed(*views):
        path = next(tiny_tree.root.glob("*metadata*"))
        pd.read_csv(path, dtype=str).assign(ViewPosition=views).to_csv(path, index=False)
        return tiny_tree

    return viewed


class TestViews:
    @pytest.mark.parametrize(
        ("views", "asked", "kept", "step", "counted"),
        [
            ("AP Supine,ap_supine,AP-ERECT,frontal,AP AXIAL", {}, "abcd", "frontal", (4, 1)),
            ("PA,AP,LL,PA,AP", {"views": ("pa",)}, "ad", "frontal", (2, 3)),
            ("AP,PA,,AP,PA", {"blank_view": "exclude"}, "abde", "not blank", (4, 1)),
            (",,,,", {"blank_view": "include"}, "abcde", "not blank", None),
            ("thorax 1," * 4 + "thorax 1", {"views": ("Thorax_1",)}, "abcde", "frontal", (5, 0)),
        ],
        ids=["however written", "named", "blank", "blank included", "an archive's own"],
    )
    def test_frontal_ones_are_kept(self, viewed, tmp_path, views, asked, kept, step, counted):
        found = selected(viewed(*views.split(",")), tmp_path / "o", **asked)
        assert "".join(found.images["image_id"]) == kept
        assert found.frontal.all()
        assert counts(found).get(f"view is {step}") == counted

    @pytest.mark.parametrize(
        ("asked", "kept", "lateral", "other"),
        [(("all",), "abcde", (3, 0), (1, 0)), (("PA", "LL"), "ab", (1, 2), (0, 1))],
    )
    def test_other_views_enter_when_asked_for_and_are_counted(
        self, viewed, tmp_path, asked, kept, lateral, other
    ):
        named = ("PA", "LL", "LATERAL", "left_lateral", "AP AXIAL")
        found = selected(viewed(*named), tmp_path / "o", views=asked)
        assert found.images["view"].tolist() == list(named[: len(kept)])
        assert found.frontal.tolist() == [True] + [False] * (len(kept) - 1)
        expected = {"one of those asked for": (len(kept), 5 - len(kept))}
        expected |= {"frontal, asked for": (1, 0), "lateral, asked for": lateral}
        expected |= {"other, asked for": other}
        assert {f"view is {name}": pair for name, pair in expected.items()}.items() <= counts(
            found
        ).items()

    def test_where_all_are_blank_the_option_that_takes_them_is_named(self, viewed, tmp_path):
        with pytest.raises(UserError, match=r"dropped 5 of 5 images.*--blank-view include"):
            selected(viewed("", "", "", "", ""), tmp_path / "o")


def images(**studies: str) -> list[ImageRecord]:
    """``s1="AP PA"`` gives study s1 the images s1-0 (AP) and s1-1 (PA)."""
    return [
        ImageRecord(f"{study}-{i}", study, study, Path(), view, "train")
        for study, views in studies.items()
        for i, view in enumerate(views.split())
    ]


class TestMultiView:
    STUDIES = images(a="AP AP", b="AP PA PA", c="AP")

    def kept(self, policy, boxed=(), seed=0):
        settings = SelectionSettings(multi_view=policy, seed=seed)
        return one_view(self.STUDIES, settings, set(boxed))

    def test_all_are_kept_or_the_first_pa_or_the_first(self):
        assert len(self.kept("all")) == 6
        assert self.kept("pa_first") == {"a-0", "b-1", "c-0"}
        assert self.kept("pa_first", boxed=["b-0"]) == {"a-0", "b-0", "b-1", "b-2", "c-0"}

    def test_one_at_random_is_one_a_study_and_follows_the_seed_alone(self):
        found = [self.kept("one_at_random", seed=seed) for seed in range(60)]
        assert all({i[0] for i in ids} == set("abc") and len(ids) == 3 for ids in found)
        assert self.kept("one_at_random") == found[0]
        shares = [sum(f"b-{i}" in ids for ids in found) for i in range(3)]
        assert min(shares) > 8  # about 20 each
        settings = SelectionSettings(multi_view="one_at_random")
        assert one_view(images(b="AP PA PA"), settings, set()) <= found[0]

    @pytest.mark.parametrize("policy", ["one_at_random", "pa_first"])
    def test_the_one_is_frontal_where_there_is_one(self, policy):
        views = images(a="LATERAL AP LL", b="LL LATERAL")
        for seed in range(20):
            settings = SelectionSettings(views=("all",), multi_view=policy, seed=seed)
            kept = one_view(views, settings, set())
            assert "a-1" in kept
            assert len(kept) == 2

    def test_the_policy_is_counted(self, small_phantom, tmp_path):
        chosen = SelectionSettings(multi_view="pa_first")
        found = prepare(small_phantom, tmp_path / "o", SMALL, selection=chosen, workers=1)
        boxed = found.images["image_id"].isin(found.phrases["image_id"])
        with_box = set(found.images["study_id"][boxed])
        others = found.images[~found.images["study_id"].isin(with_box)]
        assert others["study_id"].is_unique
        assert counts(found)["chosen of its study's views (pa_first)"][1] > 0


@pytest.mark.parametrize(
    ("policy", "kept"), [("keep_for_evaluation", ["102", "103", "104"]), ("drop", ["103"])]
)
def test_studies_without_a_sentence_are_kept_for_their_labels_and_boxes_or_dropped(
    tiny_tree, tmp_path, policy, kept
):
    """Studies 101 (train), 102 (boxes) and 104 (test, with labels) say nothing."""
    for study in ("101", "102", "104"):
        tiny_tree.report(study).write_text(" FINDINGS: \n ___\n")
    found = selected(tiny_tree, tmp_path / "o", without_sentence=policy)
    assert found.studies["study_id"].tolist() == kept
    assert found.images["study_id"].tolist() == kept
    assert set(found.sentences["study_id"]) == {"103"}
    assert len(found.phrases) == ("102" in kept)
    steps = counts(found)
    assert steps["report has a usable section with a sentence"] == (1, 3)
    if policy != "drop":
        assert steps["study has a sentence, or labels or boxes for evaluation"] == (3, 1)


def test_of_all_test_every_image_is_test_and_who_was_moved_is_counted(tiny_tree, tmp_path):
    how = {"reading": Reading(all_test=True), "workers": 1}
    tested = prepare(tiny_tree.root, tmp_path / "set", SMALL, **how)
    assert set(tested.images["split"]) == set(tested.studies["split"]) == {"test"}
    rows = {(row["step"], row["unit"]): row for row in tested.funnel}
    assert rows["is test (--all-test)", "images"]["kept"] == 5
    assert rows["is test (--all-test)", "patients"]["kept"] == 4
    before = rows["was test by the source's split", "patients of test"]
    assert (before["kept"], before["dropped"]) == (1, 3)
    for other in ({"split_seed": 1}, {"split_file": Path("split.csv")}):
        with pytest.raises(UserError, match=r"--all-test and --split-.* do not go together"):
            Reading(all_test=True, **other)
