"""Where SogCLR, GloFND and X-CLR here differ from the public code, and by how much.

    python scripts/bench/official.py

Each public loss is written out again from its code, in float64 and in loops over anchors where
that is plainer, and given the same random embeddings as ours. Written to standard output:
``|ours - theirs| / |theirs|`` of the gradients, averaged over the last visits of the samples.

Read on: LibAUC `libauc/losses/contrastive.py` (GCLoss_v1), Optimization-AI/fast_clip
`src/fast_clip/loss.py`, vibalcam/GloFND `unimodal/sogclr` and `bimodal/src/fast_clip`.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from medclip_debias.losses.batch import ContrastiveBatch
from medclip_debias.losses.policies.glofnd import GloFND, GloFNDSettings
from medclip_debias.losses.sogclr import SogCLR, SogCLRSettings
from medclip_debias.losses.two_views import TwoViewBatch
from medclip_debias.losses.xclr import XCLR, XCLRSettings

SAMPLES, BATCH, DIM, VISITS, COUNTED = 60, 20, 16, 12, 4
TAU = 0.1
Numbers = dict[int, float]


def embeddings(generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Two sides ``[SAMPLES, DIM]`` whose pairs are alike: samples stay, their views are new."""
    fixed = torch.Generator().manual_seed(99)
    common = torch.randn(SAMPLES, DIM, generator=fixed, dtype=torch.float64)
    noise = torch.randn(2, SAMPLES, DIM, generator=generator, dtype=torch.float64)
    one, two = (F.normalize(common + 0.7 * own, dim=1) for own in noise)
    return one, two


def apart(ours: Tensor, theirs: Tensor) -> float:
    return float((ours - theirs).norm() / theirs.norm())


def batches(generator: torch.Generator) -> Any:
    """``(visit, ids)``: every sample once a visit."""
    for visit in range(VISITS):
        for ids in torch.randperm(SAMPLES, generator=generator).split(BATCH):
            yield visit, ids


# ------------------------------------------------------------------------- SogCLR, two views


def libauc_two_views(
    views: list[Tensor], ids: Tensor, u: Numbers, gamma: float, pooled: bool
) -> Tensor:
    """GCLoss_v1: each view has its own new ``u``; only what is stored is their mean.

    ``pooled`` is not the public code: both views use the mean, as ours. ``u`` is changed.
    """
    n, rows = len(ids), []
    fresh = sum(u.get(i, 0.0) for i in ids.tolist()) == 0
    for a, b in (views, views[::-1]):
        for i in range(n):
            others = [j for j in range(n) if j != i]
            rows.append(torch.cat([a[i] @ b[others].T, a[i] @ a[others].T]))
    new = []
    for place, row in enumerate(rows):
        g = float((row.detach() / TAU).exp().mean())
        old = u.get(int(ids[place % n]), 0.0)
        new.append(g if fresh else (1 - gamma) * old + gamma * g)
    means = [(one + two) / 2 for one, two in zip(new[:n], new[n:], strict=True)]
    u |= dict(zip(ids.tolist(), means, strict=True))
    used = means * 2 if pooled else new
    total = -2 * (views[0] * views[1]).sum()
    for row, value in zip(rows, used, strict=True):
        total = total + ((row / TAU).exp().detach() / max(value, 1e-8) * row).mean()
    return total / n


def two_views(gamma: float, pooled: bool) -> float:
    """Distance of the gradients at both views' embeddings."""
    generator = torch.Generator().manual_seed(0)
    ours, found = SogCLR(SogCLRSettings(tau=TAU, gamma=gamma)), []
    u: Numbers = {}
    for visit, ids in batches(generator):
        views = [x[ids].requires_grad_() for x in embeddings(generator)]
        batch = TwoViewBatch.from_views(views[0], views[1], 1.0, sample_ids=ids)
        mine = torch.autograd.grad(2 * ours(batch).loss, views)  # theirs is a sum over the views
        theirs = torch.autograd.grad(libauc_two_views(views, ids, u, gamma, pooled), views)
        if visit >= VISITS - COUNTED:
            # Embeddings are brought to unit length: what counts is the gradient across them.
            across = [
                torch.cat([_across(g, x) for g, x in zip(side, views, strict=True)])
                for side in (mine, theirs)
            ]
            found.append(apart(across[0], across[1]))
    return sum(found) / len(found)


def _across(gradient: Tensor, unit: Tensor) -> Tensor:
    unit = unit.detach()
    return gradient - (gradient * unit).sum(dim=1, keepdim=True) * unit


# --------------------------------------------------------------------------------- FastCLIP


def fast_clip(
    similarity: Tensor, taus: tuple[Tensor, Tensor], ids: Tensor, u: list[Numbers], gamma: float
) -> tuple[Tensor, Tensor, Tensor]:
    """``g / u`` and ``log u`` of image and text anchors, and ``E_p d`` (FastCLIPLoss)."""
    n, ratios, logs, slopes = len(ids), [], [], []
    for side, (sim, tau) in enumerate(zip((similarity, similarity.T), taus, strict=True)):
        off = ~torch.eye(n, dtype=torch.bool)
        d = (sim - sim.diagonal()[:, None])[off].view(n, n - 1) / tau[:, None]
        g = d.exp().mean(dim=1)
        old = torch.tensor([u[side].get(int(i), math.nan) for i in ids], dtype=torch.float64)
        value = torch.where(old.isnan(), g, (1 - gamma) * old + gamma * g).detach()
        u[side] |= dict(zip(ids.tolist(), value.tolist(), strict=True))
        ratios.append(g / (value + 1e-14))
        logs.append(value.log())
        slopes.append((d.exp() * d).mean(dim=1) / (value + 1e-14))
    return torch.stack(ratios), torch.stack(logs), torch.stack(slopes).detach()


def version_3(gamma: float) -> tuple[float, float]:
    """Distances of the gradients at the similarities and at the scale; rho 6.5."""
    generator = torch.Generator().manual_seed(0)
    ours = SogCLR(SogCLRSettings(temperature="robust", gamma=gamma))
    u: list[Numbers] = [{}, {}]
    found = []
    for visit, ids in batches(generator):
        one, two = embeddings(generator)
        similarity = (one[ids] @ two[ids].T).requires_grad_()
        scale = torch.tensor(1 / TAU, dtype=torch.float64, requires_grad=True)
        loss = ours(ContrastiveBatch(similarity, scale, sample_ids=ids)).loss
        mine = torch.autograd.grad(loss, (similarity, scale))
        tau = (1 / scale).expand(len(ids))
        ratios, logs, _ = fast_clip(similarity, (tau, tau), ids, u, gamma)
        # Anchors' and candidates' halves each hold the live scale, so that it counts twice.
        at_similarity = ratios.sum(dim=0).mean() / 2 / scale.detach()
        at_scale = ratios.sum(dim=0).mean() / scale.detach() + 6.5 / scale
        at_scale = at_scale + logs.sum(dim=0).mean() / 2 / scale
        theirs = (
            *torch.autograd.grad(at_similarity, similarity, retain_graph=True),
            *torch.autograd.grad(at_scale, scale),
        )
        if visit >= VISITS - COUNTED:
            found.append([apart(a, b) for a, b in zip(mine, theirs, strict=True)])
    means = torch.tensor(found).mean(dim=0)
    return float(means[0]), float(means[1])


def version_2(gamma: float, root: bool) -> tuple[float, float]:
    """Distance at the similarities, each brought to length 1, and of the temperatures at the end.

    FastCLIP's individual temperatures: Adam with no memory in epoch 0, bias-corrected by epochs,
    moved before the candidates' half of the gradient, and a loss without the factor tau. ``root``:
    divide by the root of the second moment (FastCLIP), or by itself (GloFND's fork).
    """
    generator = torch.Generator().manual_seed(0)
    settings = SogCLRSettings(temperature="individual", gamma=gamma, tau=TAU, tau_lr=5e-3, rho=2.0)
    ours = SogCLR(settings)
    u: list[dict[int, float]] = [{}, {}]
    tau = torch.full((2, SAMPLES), TAU, dtype=torch.float64)
    m, v = torch.zeros_like(tau), torch.zeros_like(tau)
    found = []
    for visit, ids in batches(generator):
        one, two = embeddings(generator)
        similarity = (one[ids] @ two[ids].T).requires_grad_()
        scale = torch.tensor(1.0, dtype=torch.float64)
        loss = ours(ContrastiveBatch(similarity, scale, sample_ids=ids)).loss
        (mine,) = torch.autograd.grad(loss, similarity)
        ratios, logs, slopes = fast_clip(similarity, tuple(tau[:, ids]), ids, u, gamma)
        (theirs,) = torch.autograd.grad(ratios.sum(dim=0).mean() / 2, similarity)
        first, second = (0.9, 0.999) if visit else (0.0, 0.0)
        slope = (logs + settings.rho - slopes).clamp(-5, 5).detach()
        m[:, ids] = first * m[:, ids] + (1 - first) * slope
        v[:, ids] = second * v[:, ids] + (1 - second) * slope**2
        whole = v[:, ids] / (1 - second ** (visit + 1))
        change = m[:, ids] / (1 - first ** (visit + 1)) / ((whole.sqrt() if root else whole) + 1e-8)
        tau[:, ids] = (tau[:, ids] - settings.tau_lr * change).clamp(0.01, 1.0)
        if visit >= VISITS - COUNTED:
            found.append(
                apart(F.normalize(mine.flatten(), dim=0), F.normalize(theirs.flatten(), dim=0))
            )
    mine = torch.stack([ours.tables.image["tau"][:SAMPLES], ours.tables.text["tau"][:SAMPLES]])
    return sum(found) / len(found), float(((mine - tau).abs() / tau).mean())


# ----------------------------------------------------------------------------------- GloFND


def thresholds(start: int, epochs: int) -> tuple[float, float, float]:
    """Mean distance of thresholds from the published ones, and both from the exact quantile.

    Batches of 40 of 150 samples, the rest of an epoch dropped, as the public loaders do. In the
    published code a sample that the start epoch drops keeps its threshold of 1, and Adam's bias
    correction counts epochs from the beginning of the run.
    """
    generator = torch.Generator().manual_seed(0)
    x, y = (F.normalize(torch.randn(150, 6, generator=generator), dim=1).double() for _ in "xy")
    whole, alpha, lr = x @ y.T, 0.1, 0.01
    foreign = ~torch.eye(150, dtype=torch.bool)
    exact = torch.quantile(whole.T[foreign].view(150, 149), 1 - alpha, dim=1)
    ours = GloFND(GloFNDSettings(alpha=alpha, lr=lr, init="quantile"))
    theirs = torch.ones(150, dtype=torch.float64)
    m, v = torch.zeros_like(theirs), torch.zeros_like(theirs)
    for epoch in range(start, start + epochs):
        for ids in torch.randperm(150, generator=generator)[:120].split(40):
            part = whole[ids][:, ids]
            batch = ContrastiveBatch(part, torch.tensor(14.0), sample_ids=ids)
            ours(batch.anchors("text_to_image")[0], batch)
            rows = part.T[~torch.eye(40, dtype=torch.bool)].view(40, 39)
            if epoch == start:
                theirs[ids] = torch.quantile(rows, 1 - alpha, dim=1)
                continue
            slope = alpha - (rows > theirs[ids][:, None]).double().mean(dim=1)
            m[ids] = 0.9 * m[ids] + 0.1 * slope
            v[ids] = 0.98 * v[ids] + 0.02 * slope**2
            root = (v[ids] / (1 - 0.98 ** (epoch + 1))).sqrt() + 1e-8
            theirs[ids] = (theirs[ids] - lr * m[ids] / (1 - 0.9 ** (epoch + 1)) / root).clamp(-1, 1)
    mine = torch.ones(150, dtype=torch.float64)
    known = ours.tables.text["threshold"].double()
    mine[: len(known)] = known[:150]
    errors = [
        float((a - b).abs().mean()) for a, b in ((mine, theirs), (mine, exact), (theirs, exact))
    ]
    return errors[0], errors[1], errors[2]


# ------------------------------------------------------------------------------------ X-CLR


def xclr(tau_s: float) -> tuple[float, float]:
    """Distance from the loss whose target counts the view itself, and the mass it has there.

    The paper's softmax of predictions leaves a view out of its own candidates; that of targets is
    printed as a sum over all 2 N. The view's own share then has no prediction to meet.
    """
    generator = torch.Generator().manual_seed(0)
    ours, found, masses = XCLR(XCLRSettings(graph="given", target_temperature=tau_s)), [], []
    for _ in range(10):
        views = [x[:BATCH].requires_grad_() for x in embeddings(generator)]
        graph = F.normalize(torch.randn(BATCH, 8, generator=generator), dim=1).double()
        graph = graph @ graph.T
        batch = TwoViewBatch.from_views(views[0], views[1], 1 / TAU, graph=graph)
        mine = torch.autograd.grad(ours(batch).loss, views)
        z = F.normalize(torch.cat(views), dim=1)
        target = torch.softmax(graph.repeat(2, 2) / tau_s, dim=1)
        itself = torch.eye(2 * BATCH, dtype=torch.bool)
        logits = (z @ z.T / TAU).masked_fill(itself, -torch.inf)
        kept = target.masked_fill(itself, 0.0)
        log_p = logits.log_softmax(dim=1).masked_fill(itself, 0.0)
        theirs = torch.autograd.grad(-(kept * log_p).sum(dim=1).mean(), views)
        found.append(apart(torch.cat(mine), torch.cat(theirs)))
        masses.append(float(target.diagonal().mean()))
    return sum(found) / len(found), sum(masses) / len(masses)


def main() -> None:
    torch.set_num_threads(1)
    print("| difference from the public code | at | relative |\n| --- | --- | --- |")
    for gamma in (1.0, 0.9, 0.5, 0.1):
        print(f"| SogCLR, two views (LibAUC) | gamma {gamma} | {two_views(gamma, False):.3f} |")
        rest = two_views(gamma, True)
        print(f"| the same, if LibAUC pooled the views | gamma {gamma} | {rest:.1e} |", flush=True)
    for gamma in (1.0, 0.5, 0.1):
        similarity, scale = version_3(gamma)
        print(f"| FastCLIP v3, similarities | gamma {gamma} | {similarity:.1e} |")
        print(f"| FastCLIP v3, scale | gamma {gamma} | {scale:.3f} |", flush=True)
    for name, root in (("FastCLIP v2", True), ("FastCLIP v2, GloFND's fork", False)):
        similarity, tau = version_2(0.5, root)
        print(f"| {name}, similarities (unit length) | gamma 0.5 | {similarity:.3f} |")
        print(f"| {name}, temperatures | {VISITS} visits | {tau:.3f} |", flush=True)
    for tau_s in (0.05, 0.1, 0.5):
        distance, mass = xclr(tau_s)
        print(
            f"| X-CLR, the view itself in the target (share {mass:.2f}) | tau_s {tau_s} "
            f"| {distance:.3f} |"
        )
    print("\n| GloFND, start | epochs | ours - theirs | ours - exact | theirs - exact |")
    print("| --- | --- | --- | --- | --- |")
    for start in (0, 15):
        for epochs in (1, 2, 5, 20, 100):
            found = thresholds(start, epochs)
            print(f"| epoch {start} | {epochs} | {' | '.join(f'{e:.3f}' for e in found)} |")


if __name__ == "__main__":
    main()
