"""Which images enter the set: each policy against counts done by hand."""

from pathlib import Path

import pandas as pd
import pytest

from medclip_debias.config import PrepareSettings, SelectionSettings, validate
from medclip_debias.data.prepare import prepare
from medclip_debias.data.prepare.select import one_view
from medclip_debias.data.records import ImageRecord
from medclip_debias.errors import UserError

SMALL = PrepareSettings(size=32)


def images(**studies: str) -> list[ImageRecord]:
    """``s1="AP PA"`` gives study s1 the images s1-0 (AP) and s1-1 (PA)."""
    return [
        ImageRecord(f"{study}-{i}", study, study, Path(), view, "train")
        for study, views in studies.items()
        for i, view in enumerate(views.split())
    ]


def selected(tree, out, **settings):
    chosen = SelectionSettings(**settings)
    return prepare(tree.root, out, SMALL, selection=chosen, workers=1)


def counts(prepared):
    return {row["step"]: (row["kept"], row["dropped"]) for row in prepared.funnel}


class TestViews:
    @pytest.mark.parametrize(
        ("views", "expected"),
        [
            (["AP", "AP Supine", "ap_supine", "AP-ERECT", "frontal"], "abcde"),
            (["PA", "LATERAL", "LL", "AP AXIAL", "LAO"], "a"),
        ],
    )
    def test_frontal_ones_are_kept_however_written(self, tiny_tree, tmp_path, views, expected):
        path = next(tiny_tree.root.glob("*metadata*"))
        table = pd.read_csv(path, dtype=str).assign(ViewPosition=views)
        table.to_csv(path, index=False)
        found = selected(tiny_tree, tmp_path / "o")
        assert "".join(found.images["image_id"]) == expected
        assert counts(found)["view is frontal"] == (len(expected), 5 - len(expected))

    def test_named_views_alone_are_kept(self, tiny_tree, tmp_path):
        found = selected(tiny_tree, tmp_path / "o", views=("pa",))
        assert found.images["image_id"].tolist() == ["b", "e"]
        assert counts(found)["view is frontal"] == (2, 3)

    @pytest.mark.parametrize(("policy", "expected"), [("exclude", "abde"), ("include", "abcde")])
    def test_blank_views_follow_their_policy(self, tiny_tree, tmp_path, policy, expected):
        import gzip

        path = next(tiny_tree.root.glob("*metadata*"))
        text = gzip.decompress(path.read_bytes()).decode().replace("LATERAL", "")
        path.write_bytes(gzip.compress(text.encode()))
        found = selected(tiny_tree, tmp_path / "o", blank_view=policy)
        assert "".join(found.images["image_id"]) == expected
        dropped = {"exclude": (4, 1), "include": None}[policy]
        assert counts(found).get("view is not blank") == dropped

    def test_views_that_are_all_blank_say_how_to_take_them(self, tiny_tree, tmp_path):
        path = next(tiny_tree.root.glob("*metadata*"))
        table = pd.read_csv(path, dtype=str).assign(ViewPosition="")
        table.to_csv(path, index=False)
        with pytest.raises(UserError, match=r"dropped 5 of 5 images.*--blank-view include"):
            selected(tiny_tree, tmp_path / "o")
        assert len(selected(tiny_tree, tmp_path / "o", blank_view="include").images) == 5

    def test_a_view_that_no_image_has_says_what_dropped_all(self, tiny_tree, tmp_path):
        with pytest.raises(UserError, match="'view is frontal' dropped 5 of 5 images"):
            selected(tiny_tree, tmp_path / "o", views=("APP",))

    @pytest.mark.parametrize(
        ("views", "expected", "lateral", "other"),
        [
            (("all",), "abcde", (3, 0), (1, 0)),
            (("frontal", "lateral"), "abcd", (3, 0), (0, 1)),
            (("PA", "LL"), "ab", (1, 2), (0, 1)),
            (("PA", "RAO"), "a", (0, 3), (0, 1)),
        ],
    )
    def test_other_views_enter_when_asked_for_and_are_counted(
        self, tiny_tree, tmp_path, views, expected, lateral, other
    ):
        path = next(tiny_tree.root.glob("*metadata*"))
        named = ["PA", "LL", "LATERAL", "left_lateral", "AP AXIAL"]
        pd.read_csv(path, dtype=str).assign(ViewPosition=named).to_csv(path, index=False)
        found = selected(tiny_tree, tmp_path / "o", views=views)
        assert "".join(found.images["image_id"]) == expected
        assert found.images["view"].tolist() == named[: len(expected)]
        assert found.frontal.tolist() == [True] + [False] * (len(expected) - 1)
        steps = counts(found)
        assert steps["view is one of those asked for"] == (len(expected), 5 - len(expected))
        assert steps["view is frontal, asked for"] == (1, 0)
        assert steps["view is lateral, asked for"] == lateral
        assert steps["view is other, asked for"] == other

    def test_an_archives_own_name_is_frontal_when_it_is_asked_for(self, tiny_tree, tmp_path):
        path = next(tiny_tree.root.glob("*metadata*"))
        table = pd.read_csv(path, dtype=str).assign(ViewPosition="thorax 1")
        table.to_csv(path, index=False)
        found = selected(tiny_tree, tmp_path / "o", views=("Thorax_1",))
        assert len(found) == 5
        assert found.frontal.all()
        assert "view is frontal" in counts(found)

    def test_naming_no_view_is_refused(self):
        with pytest.raises(UserError, match="views must name at least one"):
            validate(SelectionSettings, {"views": [""]}, "the command line")


class TestMultiView:
    STUDIES = images(a="AP AP", b="AP PA PA", c="AP")

    def kept(self, policy, boxed=(), seed=0):
        settings = SelectionSettings(multi_view=policy, seed=seed)
        return one_view(self.STUDIES, settings, set(boxed))

    def test_all_are_kept_or_the_first_pa_or_the_first(self):
        assert len(self.kept("all")) == 6
        assert self.kept("pa_first") == {"a-0", "b-1", "c-0"}
        assert self.kept("pa_first", boxed=["b-0"]) == {"a-0", "b-0", "b-1", "b-2", "c-0"}

    def test_one_at_random_is_one_a_study_and_follows_the_seed(self):
        found = [self.kept("one_at_random", seed=seed) for seed in range(60)]
        assert all({i[0] for i in ids} == set("abc") and len(ids) == 3 for ids in found)
        assert self.kept("one_at_random") == found[0]
        shares = [sum(f"b-{i}" in ids for ids in found) for i in range(3)]
        assert min(shares) > 8  # about 20 each

    @pytest.mark.parametrize("policy", ["one_at_random", "pa_first"])
    def test_the_one_is_frontal_where_there_is_one(self, policy):
        views = images(a="LATERAL AP LL", b="LL LATERAL")
        for seed in range(20):
            settings = SelectionSettings(views=("all",), multi_view=policy, seed=seed)
            kept = one_view(views, settings, set())
            assert "a-1" in kept
            assert len(kept) == 2

    def test_other_studies_do_not_change_the_choice(self):
        settings = SelectionSettings(multi_view="one_at_random")
        alone = one_view(images(b="AP PA PA"), settings, set())
        assert alone <= self.kept("one_at_random")

    def test_the_policy_is_counted(self, phantom_tree, tmp_path):
        chosen = SelectionSettings(multi_view="pa_first")
        found = prepare(phantom_tree, tmp_path / "o", SMALL, selection=chosen, workers=1)
        boxed = found.images["image_id"].isin(found.phrases["image_id"])
        with_box = set(found.images["study_id"][boxed])
        others = found.images[~found.images["study_id"].isin(with_box)]
        assert others["study_id"].is_unique
        assert counts(found)["chosen of its study's views (pa_first)"][1] > 0


class TestWithoutSentence:
    @pytest.fixture
    def silent(self, tiny_tree):
        """Studies 101 (train), 102 (boxes) and 104 (test, with labels) say nothing."""
        for study in ("101", "102", "104"):
            tiny_tree.report(study).write_text(" FINDINGS: \n ___\n")
        return tiny_tree

    def test_kept_for_evaluation_are_those_with_labels_or_boxes(self, silent, tmp_path):
        found = selected(silent, tmp_path / "o")
        assert found.images["image_id"].tolist() == ["b", "d", "e"]
        assert found.studies["study_id"].tolist() == ["102", "103", "104"]
        assert set(found.sentences["study_id"]) == {"103"}
        assert found.phrases["image_id"].tolist() == ["b"]
        step = "study has a sentence, or labels or boxes for evaluation"
        assert counts(found)[step] == (3, 1)
        assert counts(found)["report has a usable section with a sentence"] == (1, 3)

    def test_or_all_are_dropped(self, silent, tmp_path):
        found = selected(silent, tmp_path / "o", without_sentence="drop")
        assert found.images["image_id"].tolist() == ["d"]
        assert len(found.phrases) == 0
