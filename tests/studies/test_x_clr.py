"""What the X-CLR study says of invented metrics."""

from __future__ import annotations

from studies.phantom_run import METRICS
from studies.x_clr import TEXT, XCLR, XCLRSettings


def test_every_temperature_is_held_against_identity_and_the_figure_has_them_all():
    study = XCLR(XCLRSettings(seeds=(0, 1, 2)))
    rows = []
    for cell in study.cells():
        tau = cell["loss"].get("target_temperature", 0.0)
        value = 0.8 - 0.2 * (tau == 0.5) + 0.001 * cell["seed"] ** 2 * (1 + tau)
        rows.append(cell | dict.fromkeys(METRICS, value))
    found = study.summary(rows).findings
    said = {f.split(" against")[0]: f for f in found}
    assert "worse in AUC -0.199" in said["tau_s 0.5"]
    assert {"tau_s 0.02", "tau_s 0.05", "tau_s 0.2", "tau_s 0.5", TEXT, "label graph"} <= set(said)
    assert "tau_s 0.1" not in said  # the temperature of the sources, said there
    assert any(f.startswith("With 10% of the studies") for f in found)
    labels = [text.get_text() for text in study.figure(rows).axes[0].get_xticklabels()]
    assert labels == ["0.02", "0.05", "0.1", "0.2", "0.5"]
