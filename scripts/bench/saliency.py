"""Maps by similarity, Grad-CAM and occlusion, held against the true boxes of the same phrases.

    python scripts/bench/saliency.py runs/demo/model runs/demo/prepared

One Markdown table: each metric with its interval over patients, its change against similarity in
pairs of phrases, and the seconds that all maps of an image take beyond encoding it.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated, Any, get_args

import numpy as np
import torch
import typer

from medclip_debias.data.prompts import load_prompts
from medclip_debias.data.store import PreparedSet
from medclip_debias.evaluation.bootstrap import weighted_mean
from medclip_debias.evaluation.options import EvaluationOptions
from medclip_debias.evaluation.protocol import Draw, Request
from medclip_debias.evaluation.protocols.phrase_grounding import PhraseGrounding
from medclip_debias.grounding.saliency import with_maps
from medclip_debias.grounding.settings import MapMethod
from medclip_debias.models.load import load_model

METRICS = {
    "pointing": "pointing game",
    "cnr": "CNR",
    "cnr_signed": "signed CNR",
    "miou": "mIoU, scores from -1 to 1",
    "miou_range": "mIoU, each map's range",
}


def measured(model: Any, data: PreparedSet, method: str, phrases: Path | None) -> tuple[Any, float]:
    """The items of the protocol, and seconds an image for the maps."""
    explained = with_maps(model, method)
    request = Request(
        data, "test", explained, load_prompts(), EvaluationOptions(method=method), phrases=phrases
    )
    protocol = PhraseGrounding(request)
    seconds = 0.0
    with torch.inference_mode():
        protocol.begin(explained, explained.encode_sentences(protocol.texts))
        for row in sorted(protocol.rows):
            features = explained.encode_images(torch.from_numpy(np.asarray(data.pixels[[row]])))
            began = time.perf_counter()
            protocol.see([row], features)
            seconds += time.perf_counter() - began
    items = protocol.measure(Draw(0)).items
    assert items is not None
    # IoU is d / (2 - d) of the Dice coefficient d; here at shares of each map's own range.
    curves = [protocol.curves[number] for number in range(len(items))]
    items["miou_range"] = [float(np.mean(curve / (2 - curve))) for curve in curves]
    return items[items["groundable"]].reset_index(drop=True), seconds / len(protocol.rows)


def main(
    model: Path,
    prepared: Path,
    phrases: Annotated[Path | None, typer.Option(help="boxes instead of the set's own")] = None,
    bootstrap: int = 1000,
    device: str = "cpu",
) -> None:
    """Print the table."""
    import monai.visualize  # noqa: F401  (its import is no part of the seconds)

    loaded, data = load_model(model, device), PreparedSet.open(prepared)
    rows = {method: measured(loaded, data, method, phrases) for method in get_args(MapMethod)}
    plain = rows["similarity"][0]
    patients = plain["patient"].tolist()
    print(f"{len(plain)} phrases of {len(set(patients))} patients\n")
    print(f"| method | {' | '.join(METRICS.values())} | seconds an image |")
    print(f"| --- |{' --- |' * (len(METRICS) + 1)}")

    def cell(values: Any) -> str:
        draw = Draw(bootstrap)
        found = draw.estimates(lambda w: {"x": weighted_mean(values, w)}, patients)["x"].interval
        ends = "" if found is None else f" ({found[0]:.3f} to {found[1]:.3f})"
        return f"{np.mean(values):.3f}{ends}"

    for method, (items, seconds) in rows.items():
        cells = [cell(items[name].to_numpy()) for name in METRICS]
        print(f"| `{method}` | {' | '.join(cells)} | {seconds:.3f} |")
    for method, (items, _) in list(rows.items())[1:]:
        cells = [cell((items[name] - plain[name]).to_numpy()) for name in METRICS]
        print(f"| `{method}` less `similarity` | {' | '.join(cells)} | |")


if __name__ == "__main__":
    typer.run(main)
