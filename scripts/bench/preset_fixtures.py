"""What the published definitions give on fixed inputs, computed by plain loops in float64.

    python scripts/bench/preset_fixtures.py [--check]

Writes tests/evaluation/presets/fixtures.json, against which the presets are tested to 1e-6;
``--check`` compares instead. Nothing here imports the package: each function below is a published
definition written out anew (which code: the ``follows`` of each preset), one number at a time.
"""

from __future__ import annotations

import json
import math
import random
import sys
from pathlib import Path

from plain_metrics import (
    CLASSES,
    accuracy,
    auc,
    best_mcc,
    blurred,
    dot,
    enlarged,
    f1,
    grounding_inputs,
    mcc,
    mean,
    moments,
    precision_recall_area,
    retrieval_inputs,
    softmax,
    unit,
    zero_shot_inputs,
)

FILE = Path(__file__).parents[2] / "tests" / "evaluation" / "presets" / "fixtures.json"


# -------------------------------------------------------------------------------- zero-shot


def sides_of(image, texts, how):
    """Positive and negative score of a class for one image."""
    result = []
    for side in ("positive", "negative"):
        scores = [dot(image, v) for v in texts[side]]
        if how == "mean":
            result.append(mean(scores))
        elif how == "max":
            result.append(max(scores))
        else:
            middle = unit([mean(column) for column in zip(*texts[side], strict=True)])
            result.append(dot(image, middle))
    return result


def positive_side(positive, _negative):
    return positive


def zero_shot(inputs):
    texts, test, validation = inputs["texts"], inputs["test"], inputs["validation"]

    def scored(part, how, rule):
        return {
            name: [rule(*sides_of(image, texts[name], how)) for image in part["images"]]
            for name in CLASSES
        }

    def over(metric, scores, labels=test["labels"]):
        return mean(metric(labels[name], scores[name]) for name in CLASSES)

    def pooled(metric, scores):
        labels = [v for name in CLASSES for v in test["labels"][name]]
        return metric(labels, [v for name in CLASSES for v in scores[name]])

    def said(scores, at):
        return {name: [s >= at[name] for s in scores[name]] for name in CLASSES}

    result = {}
    # BioViL: one vector a side, positive minus negative; present where the positive is higher.
    scores = scored(test, "embedding", lambda p, n: p - n)
    higher = {name: [s > 0 for s in scores[name]] for name in CLASSES}
    result["biovil"] = {
        "scores": scores,
        "auc": over(auc, scores),
        "accuracy": over(accuracy, higher),
        "f1": over(f1, higher),
    }
    # CheXzero: exp(p) / (exp(p) + exp(n)); thresholds of highest MCC on validation.
    scores = scored(test, "embedding", lambda p, n: softmax([p, n])[0])
    there = scored(validation, "embedding", lambda p, n: softmax([p, n])[0])
    at = {name: best_mcc(validation["labels"][name], there[name]) for name in CLASSES}
    result["chexzero"] = {
        "scores": scores,
        "thresholds": at,
        "auc": over(auc, scores),
        "f1": over(f1, said(scores, at)),
        "mcc": over(mcc, said(scores, at)),
    }
    # CARZero and RadZero: the positive prompt alone.
    scores = scored(test, "mean", positive_side)
    weights = [sum(test["labels"][name]) for name in CLASSES]
    result["radzero"] = {
        "scores": scores,
        "auc": over(auc, scores),
        "auc_micro": pooled(auc, scores),
        "auc_weighted": sum(
            w * auc(test["labels"][name], scores[name])
            for w, name in zip(weights, CLASSES, strict=True)
        )
        / sum(weights),
        "auprc": over(precision_recall_area, scores),
        "auprc_micro": pooled(precision_recall_area, scores),
    }
    several, truth = inputs["several"], inputs["several"]["truth"]
    of_mean = scored(several, "mean", positive_side)
    rows = list(zip(*(of_mean[name] for name in CLASSES), strict=True))
    named = mean(row.index(max(row)) == t for row, t in zip(rows, truth, strict=True))
    powers = [softmax(row) for row in rows]
    hits = [row.index(max(row)) == t for row, t in zip(powers, truth, strict=True)]
    rounded = [
        mean((round(row[c]) == 1) == (t == c) for row, t in zip(powers, truth, strict=True))
        for c in range(len(CLASSES))
    ]
    result["carzero"] = {
        **result["radzero"],
        "one_of_several": mean(hits),
        "rounded_softmax_accuracy": mean(rounded),
    }
    # GLoRIA: the best prompt, standardised over the images; the highest class.
    scores = scored(test, "max", positive_side)
    of_best = scored(several, "max", positive_side)
    columns = []
    for name in CLASSES:
        middle = mean(of_best[name])
        spread = math.sqrt(mean((v - middle) ** 2 for v in of_best[name]))
        columns.append([(v - middle) / spread for v in of_best[name]])
    rows = list(zip(*columns, strict=True))
    result["gloria"] = {
        "scores": scores,
        "auc": over(auc, scores),
        "one_of_several": mean(
            row.index(max(row)) == t for row, t in zip(rows, truth, strict=True)
        ),
    }
    # CXR-CLIP: softmax over "No X" and "X", the larger one; one of several by the mean prompt.
    scores = scored(test, "mean", lambda p, n: softmax([n, p])[1])
    larger = {name: [s > 0.5 for s in scores[name]] for name in CLASSES}
    plain = scored(test, "mean", positive_side)
    result["cxr_clip"] = {
        "scores": scores,
        "auc": over(auc, scores),
        "accuracy": over(accuracy, larger),
        "f1": over(f1, larger),
        "one_of_several": named,
    }
    # Ours: mean prompt of each side, their difference; equals share a decision of several.
    scores = scored(test, "mean", lambda p, n: p - n)
    higher = {name: [s > 0 for s in scores[name]] for name in CLASSES}
    result["ours"] = {
        "scores": scores,
        "auc": over(auc, scores),
        "auc_positive": over(auc, plain),
        "accuracy": over(accuracy, higher),
        "one_of_several": named,
    }
    return result


# -------------------------------------------------------------------------------- grounding


def as_grid(phrase):
    n = math.isqrt(len(phrase["map"]))
    return [phrase["map"][n * row : n * (row + 1)] for row in range(n)]


def merged_phrases(inputs):
    """Phrases of one image and one lower-cased text, as the first of them with all their boxes."""
    merged = {}
    for phrase in inputs["phrases"]:
        key = (phrase["image"], phrase["text"].lower())
        merged.setdefault(key, (phrase, []))[1].extend(phrase["boxes"])
    return merged.values()


def afloc_box(box, height, width):
    """A box on the square of 224, in whole pixels."""
    longer = max(height, width)
    factor = 224 / longer
    left = top = 0
    if height >= width:
        left = (224 - int(width * factor)) // 2
    else:
        top = (224 - int(height * factor)) // 2
    x, y, w, h = (side * factor for side in box)
    return [math.floor(x + left), math.floor(y + top), math.floor(w), math.floor(h)]


def by_category(values, categories):
    """Mean over categories of the means within, what is NaN left out."""
    means = []
    for kind in dict.fromkeys(categories):
        own = [v for v, c in zip(values, categories, strict=True) if c == kind]
        own = [v for v in own if not math.isnan(v)]
        if own:
            means.append(mean(own))
    return mean(means)


def contrast(inside, outside):
    """Contrast to noise, with its sign; NaN where nothing is inside."""
    if not inside:
        return math.nan
    (a, va), (b, vb) = moments(inside), moments(outside)
    return (a - b) / math.sqrt(va + vb)


def afloc(inputs):
    """Expected values on the square of 224 pixels, its centre of 196 scored."""
    ious = {t: [] for t in (0.1, 0.2, 0.3, 0.4, 0.5)}
    cnrs, kinds = [], []
    margin = (224 - int(448 * 224 / 512)) // 2
    scored = range(margin, 224 - margin)
    for phrase, boxes in merged_phrases(inputs):
        height, width = inputs["sizes"][phrase["image"]]
        covered = [[0] * 224 for _ in range(224)]
        for box in boxes:
            x, y, w, h = afloc_box(box, height, width)
            for row in range(y, min(y + h, 224)):
                for column in range(x, min(x + w, 224)):
                    covered[row][column] += 1
        heatmap = enlarged(blurred(as_grid(phrase), 1.5), 224)
        pixels = [(heatmap[r][c], covered[r][c]) for r in scored for c in scored]
        low, high = min(v for v, _ in pixels), max(v for v, _ in pixels)
        pixels = [((v - low) / (high - low) * 2 - 1, n) for v, n in pixels]
        true = sum(n > 0 for _, n in pixels)
        for threshold, found in ious.items():
            said = sum(v > threshold for v, _ in pixels)
            both = sum(v > threshold and n > 0 for v, n in pixels)
            found.append(math.nan if 0 in (said, true) else both / (said + true - both))
        inside, outside = [v for v, n in pixels if n == 1], [v for v, n in pixels if n == 0]
        cnrs.append(contrast(inside, outside))
        kinds.append(phrase["category"])
    at = {f"{t:g}": by_category(found, kinds) for t, found in ious.items()}
    return {
        "phrases": len(kinds),
        "iou": at,
        "miou": mean(at.values()),
        "cnr_signed": by_category(cnrs, kinds),
        "without_cnr": sum(map(math.isnan, cnrs)),
        "skipped": sum(math.isnan(v) for found in ious.values() for v in found),
    }


def in_boxes(boxes, row, column):
    """Whether a pixel's centre lies in one of the boxes."""
    return any(x <= column + 0.5 < x + w and y <= row + 0.5 < y + h for x, y, w, h in boxes)


def with_truth(heatmap, boxes, top=0, left=0):
    """Each pixel's value, and whether it lies in a box of an image that the map is a part of."""
    return [
        (value, in_boxes(boxes, row + top, column + left))
        for row, line in enumerate(heatmap)
        for column, value in enumerate(line)
    ]


def first_highest(heatmap):
    """Row and column of the first highest pixel."""
    best = max(map(max, heatmap))
    row = next(number for number, line in enumerate(heatmap) if best in line)
    return row, heatmap[row].index(best)


def biovil(inputs):
    """Resized to 80 at the shorter side, of which the centre of 64 is seen (hi-ml: 512, 448)."""
    ious, cnrs, kinds = {t: [] for t in (0.1, 0.2, 0.3, 0.4, 0.5)}, [], []
    for phrase in inputs["phrases"]:
        height, width = inputs["sizes"][phrase["image"]]
        side = int(64 * min(height, width) / 80)
        top, left = (height - side) // 2, (width - side) // 2
        heatmap = enlarged(blurred(as_grid(phrase), 1.5), side)
        pixels = with_truth(heatmap, phrase["boxes"], top, left)
        for threshold, found in ious.items():
            both = sum(v >= threshold and inside for v, inside in pixels)
            either = sum(v >= threshold or inside for v, inside in pixels)
            found.append(both / either if either else 0.0)
        cnrs.append(abs(contrast([v for v, i in pixels if i], [v for v, i in pixels if not i])))
        kinds.append(phrase["category"])
    at = {f"{t:g}": by_category(found, kinds) for t, found in ious.items()}
    return {"iou": at, "miou": mean(at.values()), "cnr": by_category(cnrs, kinds)}


def padded_map(phrase, height, width):
    side = max(height, width)
    top, left = (side - height) // 2, (side - width) // 2
    square = enlarged(as_grid(phrase), side)
    return [row[left : left + width] for row in square[top : top + height]]


def radzero(inputs):
    """First highest pixel of the padded square; Dice of the logistic function of cosine / 0.07."""
    boxes_on = {}
    for phrase in inputs["phrases"]:
        boxes_on[phrase["image"]] = boxes_on.get(phrase["image"], 0) + len(phrase["boxes"])
    hits, curves = [], []
    for phrase in inputs["phrases"]:
        if boxes_on[phrase["image"]] != 1:
            continue
        heatmap = padded_map(phrase, *inputs["sizes"][phrase["image"]])
        row, column = first_highest(heatmap)
        x, y, w, h = phrase["boxes"][0]
        hits.append(x <= column <= x + w and y <= row <= y + h)
        pixels = [
            (1 / (1 + math.exp(-inputs["scale"] * value)), inside)
            for value, inside in with_truth(heatmap, phrase["boxes"])
        ]
        curve = []
        for step in range(101):
            said = sum(p > step / 100 for p, _ in pixels)
            both = sum(p > step / 100 and i for p, i in pixels)
            curve.append(2 * both / (said + sum(i for _, i in pixels)))
        curves.append(curve)
    dice = [mean(column) for column in zip(*curves, strict=True)]
    return {
        "phrases": len(hits),
        "pointing_game": mean(hits),
        "dice_at_best_threshold_on_test": max(dice),
        "threshold_from_test": dice.index(max(dice)) / 100,
    }


def radzero_chestxdet(inputs):
    """First highest pixel of the padded square in one of a class's boxes on the image."""
    hits, kinds = [], []
    for phrase, boxes in merged_phrases(inputs):
        heatmap = padded_map(phrase, *inputs["sizes"][phrase["image"]])
        row, column = first_highest(heatmap)
        hits.append(float(any(x <= column <= x + w and y <= row <= y + h for x, y, w, h in boxes)))
        kinds.append(phrase["category"])
    return {"phrases": len(hits), "pointing_game": by_category(hits, kinds)}


def medklip(inputs):
    """Squashed to 224: each pixel's cell, and the original pixel at its upper left corner."""
    overlaps, dices, hits = [], [], []
    for phrase, boxes in merged_phrases(inputs):
        height, width = inputs["sizes"][phrase["image"]]
        grid = as_grid(phrase)
        pixels = []
        for r in range(224):
            for c in range(224):
                y, x = r * height // 224, c * width // 224
                inside = any(
                    int(bx) <= x < int(bx) + int(w) and int(by) <= y < int(by) + int(h)
                    for bx, by, w, h in boxes
                )
                value = grid[int((r + 0.5) * 5 / 224)][int((c + 0.5) * 5 / 224)]
                pixels.append((value, inside))
        said = sum(v > 0.008 for v, _ in pixels)
        true = sum(i for _, i in pixels)
        both = sum(v > 0.008 and i for v, i in pixels)
        overlaps.append(both / (said + true - both))
        dices.append(2 * both / (said + true))
        highest = max(v for v, _ in pixels)
        hits.append(float(any(v == highest and i for v, i in pixels)))
    return {"miou": mean(overlaps), "dice": mean(dices), "pointing_game": mean(hits)}


def ours(inputs):
    """41 thresholds, union + 1e-6, absolute CNR, ties of the highest pixel shared, all phrases."""
    ious, cnrs, points = [], [], []
    for phrase in inputs["phrases"]:
        heatmap = padded_map(phrase, *inputs["sizes"][phrase["image"]])
        pixels = with_truth(heatmap, phrase["boxes"])
        at = []
        for step in range(-20, 21):
            both = sum(v >= step / 20 and i for v, i in pixels)
            either = sum(v >= step / 20 or i for v, i in pixels)
            at.append(both / (either + 1e-6))
        ious.append(mean(at))
        cnrs.append(abs(contrast([v for v, i in pixels if i], [v for v, i in pixels if not i])))
        highest = max(v for v, _ in pixels)
        points.append(mean(i for v, i in pixels if abs(v - highest) < 1e-12))
    return {"miou": mean(ious), "cnr": mean(cnrs), "pointing_game": mean(points)}


# -------------------------------------------------------------------------------- retrieval


def cxr_clip(inputs):
    """Distinct texts are the candidates, each by its first place; an image ranks them."""
    distinct = list(dict.fromkeys(inputs["texts"]))
    columns = [inputs["texts"].index(text) for text in distinct]
    ranks = []
    for row, text in zip(inputs["scores"], inputs["texts"], strict=True):
        values = [row[c] for c in columns]
        mine = values[distinct.index(text)]
        ranks.append(1 + sum(v > mine for v in values))
    result = {f"recall_at_{k}": mean(r <= k for r in ranks) for k in (1, 5, 10)}
    return {**result, "mean_rank": mean(ranks), "candidates": len(distinct)}


def gloria(inputs):
    """Share of the K reports that rank first which are of the image's class.

    Equal reports have equal scores: where they stand at the K-th place, the share expected.
    """
    result = {}
    for k in inputs["precisions"]:
        shares = []
        for row, own in zip(inputs["scores"], inputs["classes"], strict=True):
            bound = sorted(row, reverse=True)[k - 1]
            above = [c for v, c in zip(row, inputs["classes"], strict=True) if v > bound]
            level = [c for v, c in zip(row, inputs["classes"], strict=True) if v == bound]
            good = sum(c == own for c in above)
            good += (k - len(above)) * sum(c == own for c in level) / len(level)
            shares.append(good / k)
        result[f"precision_at_{k}"] = mean(shares)
    return result


def build():
    rng = random.Random(20)
    inputs = {
        "zero_shot": zero_shot_inputs(rng),
        "grounding": grounding_inputs(rng),
        "retrieval": retrieval_inputs(rng),
    }
    alone = {name: inputs["grounding"][name] for name in ("sizes", "scale")}
    chosen = inputs["grounding"]["alone"]
    alone["phrases"] = [p for p in inputs["grounding"]["phrases"] if p["text"] in chosen]
    return {
        "inputs": inputs,
        "expected": {
            "zero_shot": zero_shot(inputs["zero_shot"]),
            "grounding": {
                "afloc": afloc(inputs["grounding"]),
                "biovil": biovil(inputs["grounding"]),
                "radzero": radzero(alone),
                "radzero_chestxdet": radzero_chestxdet(inputs["grounding"]),
                "medklip": medklip(inputs["grounding"]),
                "ours": ours(inputs["grounding"]),
            },
            "retrieval": {
                "cxr_clip": cxr_clip(inputs["retrieval"]),
                "gloria": gloria(inputs["retrieval"]),
            },
        },
    }


def main():
    found = json.loads(json.dumps(build()))
    if "--check" in sys.argv[1:]:
        if json.loads(FILE.read_text(encoding="utf-8")) != found:
            sys.exit(f"{FILE.name} is not what this script computes; run it without --check.")
        print(f"{FILE.name} is what this script computes.")
        return
    FILE.parent.mkdir(parents=True, exist_ok=True)
    FILE.write_text(json.dumps(found) + "\n", encoding="utf-8")
    print(f"wrote {FILE.name}, {FILE.stat().st_size} bytes")


if __name__ == "__main__":
    main()
