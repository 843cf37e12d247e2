"""Fixed inputs of the preset fixtures: generated vectors, maps, boxes and scores."""

from __future__ import annotations

import math

from plain_metrics import dot, unit

CLASSES = ("Edema", "Pneumonia", "Atelectasis")


def vector(rng, dim=5):
    """A random unit vector."""
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
    for number, text in enumerate(texts):
        image = unit([0.5 * v + rng.gauss(0, 0.4) for v in own[text]])
        scores.append([dot(image, own[other]) for other in texts])
        assert classes[number] >= 0
    return {"texts": texts, "classes": classes, "scores": scores, "precisions": [2, 3, 5]}
