"""What the published definitions give on the inputs of fixtures.json, in float64.

`test_presets` holds the presets against ``expected`` there to 1e-6, and that against `expected`
here; run as a program, this writes it anew. Nothing here imports the package: each function is a
published definition (which code: the ``follows`` of each preset) written out anew, on numpy, SciPy
and scikit-learn.
"""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
from scipy.ndimage import gaussian_filter
from scipy.special import expit, softmax
from sklearn import metrics

FILE = Path(__file__).with_name("fixtures.json")


# -------------------------------------------------------------------------------- zero-shot


def precision_recall_area(labels, scores):
    """Trapezoids between the points of every threshold, from recall 0 at precision 1."""
    precision, recall, _ = metrics.precision_recall_curve(labels, scores)
    return metrics.auc(recall, precision)


def best_mcc(labels, scores):
    """The lowest of the thresholds of the ROC curve's corners of highest MCC."""
    corners = np.sort(metrics.roc_curve(labels, scores)[2][1:])
    return max(corners, key=lambda at: metrics.matthews_corrcoef(labels, scores >= at))


def zero_shot(inputs):
    texts, labels = inputs["texts"], inputs["test"]["labels"]
    names = list(texts)
    truth = np.array(inputs["several"]["truth"])

    def scored(part, how, rule):
        """A class's scores: ``rule`` of its positive and its negative side."""
        images, found = np.array(inputs[part]["images"]), {}
        for name in names:
            sides = []
            for vectors in texts[name].values():
                scores = images @ np.transpose(vectors)
                if how == "embedding":
                    middle = np.mean(vectors, axis=0)
                    sides.append(images @ middle / np.linalg.norm(middle))
                else:
                    sides.append(scores.mean(1) if how == "mean" else scores.max(1))
            found[name] = rule(*sides)
        return found

    def over(metric, values):
        return np.mean([metric(labels[name], values[name]) for name in names])

    def area(average, metric=metrics.roc_auc_score):
        columns = [np.stack([of[name] for name in names], axis=1) for of in (labels, positive)]
        return (
            metric(*map(np.ravel, columns))
            if average == "micro"
            else metric(*columns, average=average)
        )

    def present(values, at):
        return {name: values[name] > at for name in names}

    def named(values):
        """Share of the images whose highest class is theirs."""
        return np.mean(np.stack([values[name] for name in names], axis=1).argmax(1) == truth)

    def summary(scores, **said):
        found = {"scores": scores, "auc": over(metrics.roc_auc_score, scores)}
        return found | {
            name: over(metric, said["said"]) for name, metric in measured.items() if said
        }

    measured = {"accuracy": metrics.accuracy_score, "f1": metrics.f1_score}
    result = {}
    # BioViL: one vector a side, positive minus negative; present where the positive is higher.
    scores = scored("test", "embedding", np.subtract)
    result["biovil"] = summary(scores, said=present(scores, 0))
    # CheXzero: exp(p) / (exp(p) + exp(n)); thresholds of highest MCC on validation.
    scores, there = (
        scored(part, "embedding", lambda p, n: expit(p - n)) for part in ("test", "validation")
    )
    of_validation = inputs["validation"]["labels"]
    at = {name: best_mcc(of_validation[name], there[name]) for name in names}
    said = {name: scores[name] >= at[name] for name in names}
    result["chexzero"] = {
        **summary(scores),
        "thresholds": at,
        "f1": over(metrics.f1_score, said),
        "mcc": over(metrics.matthews_corrcoef, said),
    }
    # CARZero and RadZero: the positive prompt alone.
    positive = scored("test", "mean", lambda p, _: p)
    result["radzero"] = {
        **summary(positive),
        "auc_micro": area("micro"),
        "auc_weighted": area("weighted"),
        "auprc": over(precision_recall_area, positive),
        "auprc_micro": area("micro", precision_recall_area),
    }
    of_mean = scored("several", "mean", lambda p, _: p)
    shares = softmax(np.stack([of_mean[name] for name in names], axis=1), axis=1)
    is_class = truth[:, None] == np.arange(len(names))
    result["carzero"] = {
        **result["radzero"],
        "one_of_several": named(of_mean),
        "rounded_softmax_accuracy": ((shares > 0.5) == is_class).mean(),
    }
    # GLoRIA: the best prompt, standardised over the images; the highest class.
    of_best = scored("several", "max", lambda p, _: p)
    standard = {name: (v - v.mean()) / v.std() for name, v in of_best.items()}
    best = scored("test", "max", lambda p, _: p)
    result["gloria"] = {**summary(best), "one_of_several": named(standard)}
    # CXR-CLIP: softmax over "No X" and "X", the larger one; one of several by the mean prompt.
    scores = scored("test", "mean", lambda p, n: expit(p - n))
    larger = summary(scores, said=present(scores, 0.5))
    result["cxr_clip"] = {**larger, "one_of_several": named(of_mean)}
    # Ours: mean prompt of each side, their difference; equals share a decision of several.
    scores = scored("test", "mean", np.subtract)
    found = summary(scores, said=present(scores, 0))
    result["ours"] = {
        **{name: value for name, value in found.items() if name != "f1"},
        "auc_positive": over(metrics.roc_auc_score, positive),
        "one_of_several": named(of_mean),
    }
    return result


# -------------------------------------------------------------------------------- grounding


def as_grid(phrase):
    side = math.isqrt(len(phrase["map"]))
    return np.reshape(phrase["map"], (side, side))


def enlarged(grid, side):
    """Bilinear to ``side`` x ``side``, pixel centres aligned, edges repeated."""
    places = (np.arange(side) + 0.5) * len(grid) / side - 0.5

    def along(lines):
        return np.stack([np.interp(places, np.arange(len(line)), line) for line in lines])

    return along(along(grid).T).T


def padded_map(phrase, height, width):
    side = max(height, width)
    top, left = (side - height) // 2, (side - width) // 2
    return enlarged(as_grid(phrase), side)[top : top + height, left : left + width]


def merged_phrases(inputs):
    """Phrases of one image and one lower-cased text, as the first of them with all their boxes."""
    found = {}
    for phrase in inputs["phrases"]:
        key = phrase["image"], phrase["text"].lower()
        found.setdefault(key, (phrase, []))[1].extend(phrase["boxes"])
    return list(found.values())


def in_boxes(shape, boxes, top=0, left=0):
    """Which pixels' centres lie in one of the boxes; the map begins at ``top``, ``left``."""
    y, x = np.mgrid[: shape[0], : shape[1]] + 0.5
    y, x = y + top, x + left
    inside = [(bx <= x) & (x < bx + w) & (by <= y) & (y < by + h) for bx, by, w, h in boxes]
    return np.any(inside, axis=0)


def overlap(said, true, more=0.0):
    both, either = (said & true).sum(), (said | true).sum()
    return both / (either + more) if either else 0.0


def contrast(inside, outside):
    """Contrast to noise, with its sign; NaN where nothing is inside."""
    if not inside.size:
        return math.nan
    return (inside.mean() - outside.mean()) / math.sqrt(inside.var() + outside.var())


def by_category(values, categories):
    """Mean over categories of the means within, what is NaN left out."""
    kinds = [np.array(values)[np.array(categories) == kind] for kind in dict.fromkeys(categories)]
    return np.mean([np.nanmean(own) for own in kinds if not np.isnan(own).all()])


def thresholded(ious, categories):
    """The mean of each threshold by category, and their mean."""
    at = {f"{t:g}": by_category(own, categories) for t, own in ious.items()}
    return {"iou": at, "miou": np.mean(list(at.values()))}


THRESHOLDS = (0.1, 0.2, 0.3, 0.4, 0.5)


def afloc_box(box, height, width):
    """A box on the square of 224: scaled by the longer side, centred on black, rounded down."""
    factor = 224 / max(height, width)
    left, top = ((224 - int(side * factor)) // 2 for side in (width, height))
    if height >= width:
        top = 0
    else:
        left = 0
    x, y, w, h = (side * factor for side in box)
    return [math.floor(x + left), math.floor(y + top), math.floor(w), math.floor(h)]


def afloc(inputs):
    """On the square of 224 pixels, its centre of 196 scored."""
    ious, cnrs, kinds = {t: [] for t in THRESHOLDS}, [], []
    margin = (224 - int(448 * 224 / 512)) // 2
    scored = (slice(margin, 224 - margin),) * 2
    for phrase, boxes in merged_phrases(inputs):
        depth = np.zeros((224, 224), dtype=int)
        for box in boxes:
            x, y, w, h = afloc_box(box, *inputs["sizes"][phrase["image"]])
            depth[y : y + h, x : x + w] += 1
        heatmap = enlarged(gaussian_filter(as_grid(phrase), 1.5), 224)[scored]
        heatmap, depth = 2 * (heatmap - heatmap.min()) / np.ptp(heatmap) - 1, depth[scored]
        for threshold, found in ious.items():
            said, true = heatmap > threshold, depth > 0
            found.append(overlap(said, true) if said.any() and true.any() else math.nan)
        cnrs.append(contrast(heatmap[depth == 1], heatmap[depth == 0]))
        kinds.append(phrase["category"])
    return {
        "phrases": len(kinds),
        **thresholded(ious, kinds),
        "cnr_signed": by_category(cnrs, kinds),
        "without_cnr": np.isnan(cnrs).sum(),
        "skipped": np.isnan(list(ious.values())).sum(),
    }


def biovil(inputs):
    """Resized to 80 at the shorter side, of which the centre of 64 is seen (hi-ml: 512, 448)."""
    ious, cnrs, kinds = {t: [] for t in THRESHOLDS}, [], []
    for phrase in inputs["phrases"]:
        height, width = inputs["sizes"][phrase["image"]]
        side = int(64 * min(height, width) / 80)
        place = (height - side) // 2, (width - side) // 2
        heatmap = enlarged(gaussian_filter(as_grid(phrase), 1.5), side)
        true = in_boxes(heatmap.shape, phrase["boxes"], *place)
        for threshold, found in ious.items():
            found.append(overlap(heatmap >= threshold, true))
        cnrs.append(abs(contrast(heatmap[true], heatmap[~true])))
        kinds.append(phrase["category"])
    return {**thresholded(ious, kinds), "cnr": by_category(cnrs, kinds)}


def points(heatmap, boxes):
    """Whether the first highest pixel lies in one of the boxes, their far edges included."""
    row, column = np.unravel_index(heatmap.argmax(), heatmap.shape)
    return float(any(x <= column <= x + w and y <= row <= y + h for x, y, w, h in boxes))


def radzero(inputs):
    """First highest pixel of the padded square; Dice of the logistic function of cosine / 0.07."""
    alone = [p for p in inputs["phrases"] if p["text"] in inputs["alone"]]
    boxes_on = {}
    for phrase in alone:
        boxes_on[phrase["image"]] = boxes_on.get(phrase["image"], 0) + len(phrase["boxes"])
    hits, curves = [], []
    for phrase in alone:
        if boxes_on[phrase["image"]] != 1:
            continue
        heatmap = padded_map(phrase, *inputs["sizes"][phrase["image"]])
        hits.append(points(heatmap, phrase["boxes"]))
        share, true = expit(inputs["scale"] * heatmap), in_boxes(heatmap.shape, phrase["boxes"])
        said = share > np.arange(101)[:, None, None] / 100
        curves.append(2 * (said & true).sum((1, 2)) / (said.sum((1, 2)) + true.sum()))
    dice = np.mean(curves, axis=0)
    return {
        "phrases": len(hits),
        "pointing_game": np.mean(hits),
        "dice_at_best_threshold_on_test": dice.max(),
        "threshold_from_test": dice.argmax() / 100,
    }


def radzero_chestxdet(inputs):
    """First highest pixel of the padded square in one of a class's boxes on the image."""
    merged = merged_phrases(inputs)
    hits = [points(padded_map(p, *inputs["sizes"][p["image"]]), boxes) for p, boxes in merged]
    kinds = [phrase["category"] for phrase, _ in merged]
    return {"phrases": len(hits), "pointing_game": by_category(hits, kinds)}


def medklip(inputs):
    """Squashed to 224: each pixel's cell, and the original pixel at its upper left corner."""
    found, pixels = [], np.arange(224)
    for phrase, boxes in merged_phrases(inputs):
        y, x = (pixels * side // 224 for side in inputs["sizes"][phrase["image"]])
        whole = [[int(side) for side in box] for box in boxes]
        true = np.any(
            [
                ((by <= y) & (y < by + h))[:, None] & ((bx <= x) & (x < bx + w))
                for bx, by, w, h in whole
            ],
            axis=0,
        )
        cells = ((pixels + 0.5) * 5 / 224).astype(int)
        values = as_grid(phrase)[np.ix_(cells, cells)]
        said = values > 0.008
        dice = 2 * (said & true).sum() / (said.sum() + true.sum())
        found.append((overlap(said, true), dice, true[values == values.max()].any()))
    return dict(zip(("miou", "dice", "pointing_game"), np.mean(found, axis=0), strict=True))


def ours(inputs):
    """41 thresholds, union + 1e-6, absolute CNR, ties of the highest pixel shared, all phrases."""
    found = []
    for phrase in inputs["phrases"]:
        heatmap = padded_map(phrase, *inputs["sizes"][phrase["image"]])
        true = in_boxes(heatmap.shape, phrase["boxes"])
        ious = [overlap(heatmap >= step / 20, true, 1e-6) for step in range(-20, 21)]
        cnr = abs(contrast(heatmap[true], heatmap[~true]))
        found.append((np.mean(ious), cnr, true[heatmap.max() - heatmap < 1e-12].mean()))
    return dict(zip(("miou", "cnr", "pointing_game"), np.mean(found, axis=0), strict=True))


# -------------------------------------------------------------------------------- retrieval


def cxr_clip(inputs):
    """Distinct texts are the candidates, each by its first place; an image ranks them."""
    distinct = list(dict.fromkeys(inputs["texts"]))
    scores = np.array(inputs["scores"])[:, [inputs["texts"].index(text) for text in distinct]]
    own = scores[np.arange(len(scores)), [distinct.index(text) for text in inputs["texts"]]]
    ranks = 1 + (scores > own[:, None]).sum(1)
    recalls = {f"recall_at_{k}": np.mean(ranks <= k) for k in (1, 5, 10)}
    return {**recalls, "mean_rank": ranks.mean(), "candidates": len(distinct)}


def gloria(inputs):
    """Share of the K reports that rank first which are of the image's class.

    Equal reports have equal scores: where they stand at the K-th place, the share expected.
    """
    scores, classes = np.array(inputs["scores"]), np.array(inputs["classes"])
    same = classes == classes[:, None]
    result = {}
    for k in inputs["precisions"]:
        bound = np.sort(scores, axis=1)[:, [-k]]
        above, level = scores > bound, scores == bound
        good = (same & above).sum(1)
        good = good + (k - above.sum(1)) * (same & level).sum(1) / level.sum(1)
        result[f"precision_at_{k}"] = np.mean(good / k)
    return result


GROUNDING = (afloc, biovil, radzero, radzero_chestxdet, medklip, ours)


def expected(inputs):
    return {
        "zero_shot": zero_shot(inputs["zero_shot"]),
        "grounding": {preset.__name__: preset(inputs["grounding"]) for preset in GROUNDING},
        "retrieval": {
            preset.__name__: preset(inputs["retrieval"]) for preset in (cxr_clip, gloria)
        },
    }


if __name__ == "__main__":
    content = json.loads(FILE.read_text(encoding="utf-8"))
    content["expected"] = expected(content["inputs"])
    text = json.dumps(content, default=lambda value: value.tolist())
    FILE.write_text(text + "\n", encoding="utf-8")
