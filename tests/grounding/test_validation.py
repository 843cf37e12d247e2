"""What is said beside maps: from results of the model, or of none."""

from __future__ import annotations

import json

from medclip_debias.evaluation.provenance import describe_maps
from medclip_debias.evaluation.table import Results
from medclip_debias.grounding.validation import NOT_MEASURED, maps_warning
from tests.helpers.results import row


def grounding(*bounds):
    above = row("grounding", "cnr_above_others", 0.3, bounds or None)
    return Results(metrics=[above], details={"grounding": {"phrases": 40, "boxes": 49}})


def test_maps_are_validated_on_real_boxes_above_those_of_other_images():
    found = describe_maps(grounding(0.1, 0.5), synthetic=False)
    assert found.pop("sentence") is None
    assert found == {"validated": True, "real": True, "phrases": 40, "boxes": 49}
    unsure = describe_maps(grounding(-0.1, 0.5), synthetic=False)
    assert not unsure["validated"]
    assert "0.30 [-0.10, 0.50]" in unsure["sentence"]
    assert not describe_maps(grounding(), synthetic=False)["validated"]
    for results, synthetic in ((grounding(0.1, 0.5), True), (Results(), False)):
        other = describe_maps(results, synthetic=synthetic)
        assert other["sentence"] == NOT_MEASURED
        assert not other["validated"]
        assert not other["real"]


def test_the_sentence_is_that_of_the_results_beside_the_model(tmp_path):
    model = tmp_path / "model"
    model.mkdir()
    assert maps_warning(model) == NOT_MEASURED
    path = tmp_path / "results.json"
    for bounds in ((0.1, 0.5), (-0.1, 0.5)):
        maps = describe_maps(grounding(*bounds), synthetic=False)
        path.write_text(json.dumps({"maps": maps, "model_hash": "a"}))
        assert maps_warning(model) == maps["sentence"] == maps_warning(model, "a")
        assert maps_warning(model, "b") == NOT_MEASURED
        for other in ({"method": "gradcam"}, {"sharpen": "contrast"}):
            assert maps_warning(model, "a", **other) == NOT_MEASURED
    wrong = '{"maps": {"validated": true}, "model_hash": "a", "options": []}'
    for damaged in ("{", '{"maps": 3}', wrong):
        path.write_text(damaged)
        assert maps_warning(model, "a") == NOT_MEASURED
