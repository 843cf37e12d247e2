"""Arithmetic of the published definitions, one number at a time: plain loops in float64.

Imported by `preset_fixtures`; nothing here imports the package that it is held against.
"""

from __future__ import annotations

import math
from itertools import pairwise


def unit(values):
    """The same direction at length 1."""
    length = math.sqrt(sum(v * v for v in values))
    return [v / length for v in values]


def mean(values):
    values = list(values)
    return sum(values) / len(values)


def dot(a, b):
    return sum(x * y for x, y in zip(a, b, strict=True))


def auc(labels, scores):
    """Share of pairs in the right order, ties half."""
    pairs = [
        1.0 if p > n else 0.5 if p == n else 0.0
        for p, a in zip(scores, labels, strict=True)
        if a
        for n, b in zip(scores, labels, strict=True)
        if not b
    ]
    return mean(pairs)


def precision_recall_area(labels, scores):
    """Trapezoids between the points of every threshold, from recall 0 at precision 1."""
    points = [(0.0, 1.0)]
    for threshold in sorted(set(scores), reverse=True):
        said = [s >= threshold for s in scores]
        true = sum(1 for a, b in zip(said, labels, strict=True) if a and b)
        points.append((true / sum(labels), true / sum(said)))
    return sum((b[0] - a[0]) * (a[1] + b[1]) / 2 for a, b in pairwise(points))


def table(labels, said):
    """True positive, false positive, false negative, true negative."""
    pairs = [(bool(a), bool(b)) for a, b in zip(labels, said, strict=True)]
    kinds = ((True, True), (False, True), (True, False), (False, False))
    return tuple(map(pairs.count, kinds))


def accuracy(labels, said):
    tp, _, _, tn = table(labels, said)
    return (tp + tn) / len(labels)


def f1(labels, said):
    """F1; 1 where nothing is said or there."""
    tp, fp, fn, _ = table(labels, said)
    return 1.0 if 2 * tp + fp + fn == 0 else 2 * tp / (2 * tp + fp + fn)


def mcc(labels, said):
    """Matthews correlation; 0 where undefined."""
    tp, fp, fn, tn = table(labels, said)
    square = (tp + fp) * (tp + fn) * (tn + fp) * (tn + fn)
    return 0.0 if square == 0 else (tp * tn - fp * fn) / math.sqrt(square)


def roc_corners(labels, scores):
    """Thresholds of the ROC curve in ascending order, without points between two on one line."""
    found = []
    for threshold in sorted(set(scores), reverse=True):
        tp, fp, _, _ = table(labels, [s >= threshold for s in scores])
        found.append((threshold, fp, tp))
    kept = []
    for place, (threshold, fp, tp) in enumerate(found):
        if 0 < place < len(found) - 1:
            before, after = found[place - 1], found[place + 1]
            if after[1] - 2 * fp + before[1] == 0 and after[2] - 2 * tp + before[2] == 0:
                continue
        kept.append(threshold)
    return sorted(kept)


def best_mcc(labels, scores):
    """The lowest of the thresholds of highest MCC."""
    best, value = None, -math.inf
    for threshold in roc_corners(labels, scores):
        found = mcc(labels, [s >= threshold for s in scores])
        if found > value:
            best, value = threshold, found
    return best


def softmax(values):
    powers = [math.exp(v) for v in values]
    return [p / sum(powers) for p in powers]


def blurred(grid, sigma):
    """Gaussian of ``sigma`` cells on rows and columns, cut at 4 sigma, borders mirrored."""
    reach = int(4 * sigma + 0.5)
    weights = [math.exp(-0.5 * (k / sigma) ** 2) for k in range(-reach, reach + 1)]
    weights = [w / sum(weights) for w in weights]

    def along(line):
        n = len(line)
        around = [line[k] if k < n else line[2 * n - 1 - k] for k in range(2 * n)]
        return [
            sum(w * around[(i + k - reach) % (2 * n)] for k, w in enumerate(weights))
            for i in range(n)
        ]

    rows = [along(row) for row in grid]
    return [list(row) for row in zip(*(along(c) for c in zip(*rows, strict=True)), strict=True)]


def enlarged(grid, side):
    """Bilinear to ``side`` x ``side``, pixel centres aligned, edges repeated."""
    n = len(grid)
    places = []
    for pixel in range(side):
        place = min(max((pixel + 0.5) * n / side - 0.5, 0.0), n - 1.0)
        low = min(int(place), n - 2)
        places.append((low, place - low))
    return [
        [
            (1 - down) * ((1 - right) * grid[top][left] + right * grid[top][left + 1])
            + down * ((1 - right) * grid[top + 1][left] + right * grid[top + 1][left + 1])
            for left, right in places
        ]
        for top, down in places
    ]


def moments(values):
    middle = mean(values)
    return middle, mean((v - middle) ** 2 for v in values)


CLASSES = ("Edema", "Pneumonia", "Atelectasis")


def vector(rng, dim=5):
    return unit([rng.gauss(0, 1) for _ in range(dim)])


def zero_shot_inputs(rng):
    """Unit vectors of prompts and images, and labels."""
    texts = {
        name: {
            side: [vector(rng) for _ in range(n)] for side, n in (("positive", 3), ("negative", 2))
        }
        for name in CLASSES
    }
    part = {}
    for split, count in (("test", 14), ("validation", 11)):
        labels = {name: [int(rng.random() < 0.4) for _ in range(count)] for name in CLASSES}
        for own in labels.values():
            own[0], own[1] = 0, 1
        images = []
        for number in range(count):
            shift = [0.0] * 5
            for name in CLASSES:
                if labels[name][number]:
                    shift = [
                        s + 0.4 * v for s, v in zip(shift, texts[name]["positive"][0], strict=True)
                    ]
            noise = [rng.gauss(0, 0.5) for _ in range(5)]
            images.append(unit([a + b for a, b in zip(shift, noise, strict=True)]))
        part[split] = {"images": images, "labels": labels}
    truth = [number % len(CLASSES) for number in range(15)]
    images = []
    for number in truth:
        prompts = texts[CLASSES[number]]["positive"]
        noise = [rng.gauss(0, 0.4) for _ in range(5)]
        images.append(unit([a + b for a, b in zip(prompts[0], noise, strict=True)]))
    return {"texts": texts, **part, "several": {"images": images, "truth": truth}}


def grounding_inputs(rng):
    """Region maps ``5 x 5``, boxes in original pixels, categories."""
    sizes = ([60, 90], [100, 80], [70, 70], [80, 110])  # height, width
    boxes = [
        (0, "Left Opacity", "Opacity", [[10.0, 12.0, 30.0, 25.0]]),
        (0, "left opacity", "Opacity", [[25.0, 20.0, 30.5, 24.0]]),  # joins the first, overlaps it
        (1, "right effusion", "Effusion", [[40.0, 50.0, 33.0, 40.0]]),
        (1, "small left effusion", "Effusion", [[5.0, 60.0, 20.0, 30.0], [12.0, 70.0, 22.0, 20.0]]),
        (2, "apical pneumothorax", "Pneumothorax", [[0.0, 0.0, 4.0, 3.0]]),  # in AFLoc's margin
        (2, "mild edema", "Edema", [[20.0, 15.0, 31.0, 33.0]]),
        (3, "small nodule", "Opacity", [[60.0, 20.0, 15.0, 12.0]]),
    ]
    misled = {"small nodule": [[15.0, 35.0, 15.0, 12.0]]}  # where its map is high instead
    phrases = []
    for image, text, category, own in boxes:
        height, width = sizes[image]
        side = max(height, width)
        high, cells = misled.get(text, own), []
        for row in range(5):
            for column in range(5):
                y = (row + 0.5) / 5 * side - (side - height) // 2
                x = (column + 0.5) / 5 * side - (side - width) // 2
                near = min(
                    math.hypot(x - b[0] - b[2] / 2, y - b[1] - b[3] / 2) / side for b in high
                )
                cells.append(0.75 * math.exp(-8 * near * near) - 0.1 + rng.gauss(0, 0.08))
        phrases.append(
            {"image": image, "text": text, "category": category, "boxes": own, "map": cells}
        )
    # For RadZero, which wants one box on an image.
    alone = ["Left Opacity", "right effusion", "mild edema", "small nodule"]
    return {"sizes": sizes, "phrases": phrases, "alone": alone, "scale": 1 / 0.07}


def retrieval_inputs(rng):
    """Scores of images and texts, some of them equal."""
    texts = ["a", "b", "c", "b", "d", "e", "a", "f", "g", "h", "i", "b"]
    classes = [number % 3 for number in range(12)]
    own = {text: vector(rng) for text in dict.fromkeys(texts)}
    scores = []
    for text in texts:
        image = unit([0.5 * v + rng.gauss(0, 0.4) for v in own[text]])
        scores.append([dot(image, own[other]) for other in texts])
    return {"texts": texts, "classes": classes, "scores": scores, "precisions": [2, 3, 5]}
