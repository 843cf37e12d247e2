"""A protocol is run because it is registered; every registered one is declared and shown."""

from __future__ import annotations

import json

import numpy as np
import pandas as pd
import pytest

from medclip_debias.data.prompts import load_prompts
from medclip_debias.data.store import PreparedSet
from medclip_debias.evaluation.bootstrap import weighted_mean
from medclip_debias.evaluation.catalogue import PROTOCOLS
from medclip_debias.evaluation.evaluate import evaluate
from medclip_debias.evaluation.item_tables import ITEMS
from medclip_debias.evaluation.options import EvaluationOptions
from medclip_debias.evaluation.protocol import (
    REGISTRY,
    Draw,
    Measured,
    Protocol,
    Request,
    Skipped,
    registered,
)
from medclip_debias.models.load import load_model


def test_the_registered_protocols_are_those_of_the_catalogue_in_its_order():
    assert [kind.name for kind in registered()] == list(PROTOCOLS)


@pytest.fixture(scope="module")
def model(small_model):
    return load_model(small_model)


@pytest.mark.parametrize("name", PROTOCOLS)
class TestEveryProtocol:
    @pytest.fixture
    def request_of(self, model, tmp_path):
        """A function from a prepared set to a request with every file that a protocol needs."""

        def make(data):
            texts = {"original": "Edema. Effusion.", "negated": "Edema. No effusion."}
            table = pd.DataFrame(
                {"image_id": data.images["image_id"], **texts, "omitted": "Edema."}
            )
            table.to_csv(triplets := tmp_path / "triplets.csv", index=False)
            chosen = (load_prompts("chex5"), EvaluationOptions())
            return Request(data, "test", model, *chosen, triplets=triplets)

        return make

    def test_looks_at_images_of_the_split_or_held_out_and_at_no_others(
        self, name, small_prepared, request_of
    ):
        planned = REGISTRY.find(name, "a test")(request_of(small_prepared))
        splits = {small_prepared.images["split"].iloc[row] for row in planned.rows}
        assert splits
        assert splits <= {"test", "held_out"}
        assert len(set(planned.texts)) == len(planned.texts) > 0
        assert planned.count > 0 or not planned.counted

    def test_says_why_where_the_split_has_no_image(
        self, name, tmp_path, request_of, write_prepared
    ):
        data = PreparedSet.open(write_prepared(tmp_path / "set", splits=("train",)))
        with pytest.raises(Skipped, match=r"split|studies of"):
            REGISTRY.find(name, "a test")(request_of(data))


@pytest.mark.parametrize("name", PROTOCOLS)
def test_weights_of_items_are_repetitions_of_them(name, evaluated):
    results, out = evaluated
    kind = ITEMS[name]
    table = pd.read_parquet(out / "items" / f"{kind.file}.parquet")
    weights = np.random.default_rng(0).integers(1, 4, len(table))
    again = table.loc[np.repeat(np.arange(len(table)), weights)].reset_index(drop=True)
    details = results.details(name)
    found = kind.statistics(details, table)(weights[None].astype(float))
    repeated = kind.statistics(details, again)(np.ones((1, len(again))))
    assert found.keys() == repeated.keys()
    for metric, value in found.items():
        assert value == pytest.approx(repeated[metric], nan_ok=True), metric


@pytest.fixture
def with_another(monkeypatch):
    """A protocol of a test: how many images of the split there are, with pictures of none."""
    two = {name: REGISTRY.all()[name] for name in ("laterality", "zero_shot")}
    monkeypatch.setattr(REGISTRY, "entries", two)

    class Seen(Protocol):
        name = "seen"
        file = "seen"
        counted = "seen"

        def __init__(self, request):
            images = request.data.images
            self.rows = frozenset(np.flatnonzero(images["split"] == request.split).tolist())
            self.texts = ["No finding."]

        def begin(self, model, vectors):
            assert vectors.shape[0] == 1

        def see(self, rows, features):
            assert len(features) == len(rows)
            self.count += len(rows)

        def measure(self, draw):
            return Measured([], {"images": self.count})

    return Seen


def test_a_protocol_is_run_because_it_is_there(with_another, small_prepared, small_model, tmp_path):
    evaluate(small_model, small_prepared.folder, tmp_path, bootstrap=0, heatmaps=1)
    found = json.loads((tmp_path / "results.json").read_text())
    expected = int((small_prepared.images["split"] == "test").sum())
    assert found["details"]["seen"] == {"images": expected}
    assert found["counts"]["seen"] == expected
    # In the catalogue's order; one that it does not know comes last.
    assert list(found["details"]) == ["zero_shot", "laterality", "seen"]


def test_statistics_of_a_group_are_told_apart_also_where_a_name_has_a_slash():
    parts = {"m": np.arange(4), "A/m": np.arange(4, 8), "A/B/m": np.arange(8, 12)}

    def statistics(weights):
        return {name: weighted_mean(values, weights) for name, values in parts.items()}

    estimates = Draw(50).estimates(statistics, list("pqrs"))
    assert estimates.rows()[0][:2] == ("m", 1.5)
    (row,) = estimates.rows("A/")
    assert row[:4] == ("m", 5.5, *estimates["A/m"].interval)
    (row,) = estimates.rows("A/B/", n=2, of_class="A/B", group="g")
    assert row == ("m", 9.5, *estimates["A/B/m"].interval, 2, "A/B", "g")
    assert Draw(0).estimates(statistics, list("pqrs")).rows()[0].low is None
