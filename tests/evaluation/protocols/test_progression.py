"""Findings over time: against scikit-learn's measures, and by a model that knows the answer."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.metrics import balanced_accuracy_score, roc_auc_score

from medclip_debias.data.prompts import load_prompts
from medclip_debias.data.sources.progression import STATES
from medclip_debias.data.store import PreparedSet
from medclip_debias.errors import UserError
from medclip_debias.evaluation.options import EvaluationOptions
from medclip_debias.evaluation.protocol import Draw, NotAsked, Request, Skipped
from medclip_debias.evaluation.protocols.progression import (
    ProgressionProtocol,
    progression_statistics,
    right_state,
)
from medclip_debias.models.load import load_model


@pytest.fixture
def drawn():
    rng = np.random.default_rng(4)
    findings = [("edema", "pneumonia")[i % 2] for i in range(60)]
    return findings, rng.integers(0, 3, 60), rng.normal(size=(60, 3)), rng.normal(size=60)


def test_accuracy_is_balanced_and_the_order_is_the_auc_of_the_ends(drawn):
    findings, states, scores, change = drawn
    hits = right_state(scores, states)
    statistics = progression_statistics(findings, states, hits, 1 - hits, change)
    found = {name: value[0] for name, value in statistics(np.ones((1, 60))).items()}
    names, wholes = np.array(findings), []
    for finding in ("edema", "pneumonia"):
        own = names == finding
        expected = balanced_accuracy_score(states[own], scores[own].argmax(axis=1))
        ends = own & (states != 1)
        auc = roc_auc_score(states[ends] == 2, change[ends])
        assert found[f"{finding}/macro_accuracy"] == pytest.approx(expected, abs=1e-12)
        assert found[f"{finding}/macro_accuracy_current"] == pytest.approx(1 - expected, abs=1e-12)
        assert found[f"{finding}/order_auc"] == pytest.approx(auc, abs=1e-12)
        wholes.append((expected, auc))
    assert found["macro_accuracy"] == pytest.approx(np.mean([w[0] for w in wholes]), abs=1e-12)
    assert found["order_auc"] == pytest.approx(np.mean([w[1] for w in wholes]), abs=1e-12)


def test_a_tie_is_shared_and_one_state_alone_has_no_order():
    assert right_state(
        np.array([[1.0, 1, 0], [2, 2, 2], [0, 1, 0]]), np.array([0, 2, 0])
    ).tolist() == [
        0.5,
        pytest.approx(1 / 3),
        0.0,
    ]
    one = progression_statistics(["a"] * 2, np.array([1, 1]), *np.ones((3, 2)))(np.ones((1, 2)))
    assert np.isnan(one["order_auc"][0])
    assert one["macro_accuracy"][0] == 1


class TestOnASet:
    @pytest.fixture
    def request_of(self, small_model, small_prepared):
        model = load_model(small_model)

        def make(split="test", prompts=None, data=None):
            chosen = (prompts or load_prompts("chex5"), EvaluationOptions())
            return Request(data or small_prepared, split, model, *chosen)

        return make

    def test_scores_that_follow_the_truth_are_all_right(self, request_of):
        planned = ProgressionProtocol(request_of())
        planned.begin(None, None)
        changes = planned._changes
        for change in changes:  # the right state gains, "X" rises by how much it is worse
            told = planned._said[change.finding]
            for row, later in ((change.earlier, 0.0), (change.later, 1.0)):
                scores = planned.scores.setdefault(row, np.zeros(len(planned.texts)))
                for text in told[change.state]:
                    scores[planned.texts.index(text)] = later
                for text in told[3]:
                    scores[planned.texts.index(text)] = later * change.state
        found = planned.measure(Draw(0))
        assert found.value("macro_accuracy") == found.value("macro_accuracy_current") == 1
        assert found.value("order_auc") == 1
        classes = found.details["classes"].values()
        counts = [sum(part[state] for part in classes) for state in STATES]
        assert sum(counts) == found.details["progressions"] == len(changes)

    def test_what_cannot_be_judged_is_counted_or_said(
        self, request_of, small_prepared, write_prepared, tmp_path
    ):
        found = ProgressionProtocol(request_of())
        whole = len(small_prepared.annotations("progression"))
        assert found._left_out["other_splits"] == whole - len(found._changes) > 0
        data = PreparedSet.open(write_prepared(tmp_path / "set", splits=("train",)))
        with pytest.raises(Skipped, match="other splits than 'validate'"):
            ProgressionProtocol(request_of("validate", data=data))
        table = data.annotations("progression")
        table.loc[3, "progression"] = "better"
        table.to_parquet(data.folder / "progression.parquet", index=False)
        with pytest.raises(UserError, match="row 3: is damaged"):
            ProgressionProtocol(request_of("train", data=data))
        bare = {**data.meta, "annotations": []}
        with pytest.raises(NotAsked):
            ProgressionProtocol(request_of(data=type(data)(data.folder, bare, data.settings)))
