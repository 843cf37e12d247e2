"""How near GloFND's thresholds come to the exact quantile of a fixed set, for constant rates.

    python scripts/bench/thresholds.py

Writes a markdown table to standard output: the mean absolute error over the last 100 of 300
visits, and the share of negatives that the last thresholds remove.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F

from medclip_debias.losses.batch import ContrastiveBatch
from medclip_debias.losses.policies.glofnd import GloFND, GloFNDSettings

SAMPLES, DIM, BATCH, ALPHA = 150, 6, 50, 0.1
EPOCHS, COUNTED = 300, 100
RATES = {"sgd": (0.15, 0.05, 0.02, 0.01, 0.005), "adam": (0.05, 0.02, 0.01, 0.005, 0.002)}


def similarities() -> torch.Tensor:
    """``[images, sentences]`` cosines of random unit vectors."""
    generator = torch.Generator().manual_seed(0)
    x, y = (F.normalize(torch.randn(SAMPLES, DIM, generator=generator), dim=-1) for _ in range(2))
    return x @ y.T


def run(similarity: torch.Tensor, optimizer: str, rate: float) -> tuple[float, float]:
    """Error and removed share of one optimiser and rate."""
    foreign = ~torch.eye(SAMPLES, dtype=torch.bool)
    rows = similarity.T[foreign].view(SAMPLES, SAMPLES - 1)
    exact = torch.quantile(rows, 1 - ALPHA, dim=1)
    policy = GloFND(
        GloFNDSettings.model_validate(
            {"alpha": ALPHA, "optimizer": optimizer, "init": "quantile", "lr": rate}
        )
    )
    generator = torch.Generator().manual_seed(1)
    errors = []
    for epoch in range(EPOCHS):
        for ids in torch.randperm(SAMPLES, generator=generator).split(BATCH):
            part = similarity[ids][:, ids]
            batch = ContrastiveBatch(part, torch.tensor(14.0), sample_ids=ids)
            policy(batch.anchors("text_to_image")[0], batch)
        if epoch >= EPOCHS - COUNTED:
            errors.append((policy.tables.text["threshold"][:SAMPLES] - exact).abs().mean())
    found = policy.tables.text["threshold"][:SAMPLES, None]
    return float(torch.stack(errors).mean()), float((rows > found).float().mean())


def main() -> None:
    torch.set_num_threads(1)
    similarity = similarities()
    print("| optimiser | lr | mean absolute error | removed |\n| --- | --- | --- | --- |")
    for optimizer, rates in RATES.items():
        for rate in rates:
            error, removed = run(similarity, optimizer, rate)
            print(f"| {optimizer} | {rate} | {error:.3f} | {removed:.3f} |", flush=True)


if __name__ == "__main__":
    main()
