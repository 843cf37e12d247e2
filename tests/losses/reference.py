"""Every loss as its formula is printed: one anchor, one candidate at a time, in Python's floats.

Nothing of the package but the batch's fields is read, and the settings as users write them, with
all of their defaults. Left out is what draws random numbers or keeps state.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

from medclip_debias.losses import ContrastiveBatch
from tests.losses.conftest import Row, rows_of

Settings = dict[str, Any]
BOTH = ("text_to_image", "image_to_text")


def per_anchor(content: Settings, batch: ContrastiveBatch) -> list[float]:
    """Loss of each sentence, or pair, of the batch; ``content`` with all settings."""
    sides = BOTH if (side := direction_of(content)) == "symmetric" else (side,)
    losses = [[loss(content, batch, row) for row in rows_of(batch, side)] for side in sides]
    result = [sum(each) / len(sides) for each in zip(*losses, strict=True)]
    if content["kind"] != "keyword":
        return result
    rows = rows_of(batch, "image_to_text")
    core = per_anchor(content["core"], batch)
    extra = [keyword_term(content, batch, row) for row in rows]
    return [x + content["weight"] * y for x, y in zip(core, extra, strict=True)]


def direction_of(content: Settings) -> str:
    """Of the innermost loss."""
    return direction_of(content["core"]) if "core" in content else content["direction"]


def loss(content: Settings, batch: ContrastiveBatch, row: Row) -> float:
    """Loss of one anchor; 0 of keyword supervision, whose core is reckoned by itself."""
    match content["kind"]:
        case "infonce" | "clip" | "biovil":
            weights, s = after_policies(content, batch, row)
            return log_z(row.own, weights, s) - s[row.own]
        case "debiased":
            return debiased(content, batch, row)
        case "siglip":
            return sigmoids(content, batch, row, {})
        case "supcon":
            q = {c: float(of_class(content, batch, row, c)) for c in row.others}
            return to_targets(content, batch, row, q)
        case "xclr":
            weights, s = after_policies(content, batch, row)
            columns = [row.own, *(c for c, w in weights.items() if w)]
            tau = content["target_temperature"]
            shares = {c: math.exp(graph(content, batch, row, c) / tau) for c in columns}
            z, total = log_z(row.own, weights, s), sum(shares.values())
            return sum(share / total * (z - s[c]) for c, share in shares.items())
        case "multi_positive":
            return multi_positive(content, batch, row)
    return 0.0


def log_z(own: int, weights: dict[int, float], s: list[float]) -> float:
    """log of ``exp(s+) + sum_n W_n exp(s_n)``."""
    return math.log(math.exp(s[own]) + sum(w * math.exp(s[c]) for c, w in weights.items()))


def strength(schedule: Settings | None, done: float) -> float:
    """Strength of a schedule when the share ``done`` of a run lies behind."""
    if schedule is None:
        return 1.0
    start, end = schedule["start"], schedule["end"]
    if done < start or (done >= end and end < 1):
        return 0.0
    place = (done - start) / (end - start)
    cosine = 0.5 * (1 + math.cos(math.pi * place))
    return {"constant": 1.0, "linear": 1 - place, "cosine": cosine}[schedule["shape"]]


# ------------------------------------------------------------------------------- the losses


def debiased(content: Settings, batch: ContrastiveBatch, row: Row) -> float:
    """Equations 6 to 8 with weights, M positives and the floor, as printed."""
    own, eta_settings = row.own, content["eta"]
    match eta_settings["kind"]:
        case "constant":
            eta = eta_settings["value"]
        case "table":
            eta = eta_settings["factor"] * batch["eta"][row.sentence].item()
        case _:
            eta = eta_settings["a"] * math.exp(batch["log_prob"][row.sentence].item()) ** 0.35
    eta = min(max(eta, 0), 0.99) * strength(content["schedule"], batch["done"])
    weights, s = after_policies(content, batch, row)
    same = [own]
    if content["positives"] == "study":
        same = [c for c in range(len(row.images)) if of_own(batch, row, c, "sample_ids")]
    n, neg = sum(weights.values()), sum(w * math.exp(s[c]) for c, w in weights.items())
    if n == 0:
        return 0.0
    v = sum(math.exp(row.logits[c]) for c in same) / len(same)
    ng = max((neg - n * eta * v) / (1 - eta), n * math.exp(-float(batch.scale)))
    pos = math.exp(row.logits[own])
    return -math.log(pos / (pos + ng)) * (1 - eta if content["weigh_anchors"] else 1)


def sigmoids(content: Settings, batch: ContrastiveBatch, row: Row, q: dict[int, float]) -> float:
    """-log of the probability of yes to share q and no to the rest, over pairs."""
    weights, s = after_policies(content, batch, row)
    b, q = content["initial_bias"], q | {row.own: 1.0}
    return sum(
        q.get(c, 0) * math.log1p(math.exp(-s[c] - b))
        + (1 - q.get(c, 0)) * weights.get(c, 0) * math.log1p(math.exp(s[c] + b))
        for c in (row.own, *row.others)
    )


def to_targets(content: Settings, batch: ContrastiveBatch, row: Row, q: dict[int, float]) -> float:
    """Cross-entropy to q and the own positive brought to the sum 1; positives weigh 1."""
    weights, s = after_policies(content, batch, row)
    weights |= {c: 1.0 for c, share in q.items() if share > 0}
    z, q = log_z(row.own, weights, s), q | {row.own: 1.0}
    return sum(share * (z - s[c]) for c, share in q.items()) / sum(q.values())


def of_class(content: Settings, batch: ContrastiveBatch, row: Row, c: int) -> bool:
    if content["match"] == "text":
        return alike_text(batch, row, c)
    return alike_labels(content, batch, row, c)


def multi_positive(content: Settings, batch: ContrastiveBatch, row: Row) -> float:
    """Definition B of docs/theory.md: of core and targets."""
    core, q = content["core"], {}
    columns = row.others
    if core.get("positives") == "study":
        columns = [c for c in columns if not of_own(batch, row, c, "sample_ids")]
    for c in columns:
        e = evidence(content["evidence"], batch, row, c)
        unknown = content["prior"] if e == 0 else 0.0
        agrees = e if content["weigh"] == "confidence" else 1.0
        q[c] = agrees if e > content["threshold"] else unknown
    share = content["weight"] * strength(content["schedule"], batch["done"])
    targets = (sigmoids if core["kind"] == "siglip" else to_targets)(core, batch, row, q)
    return share * targets + ((1 - share) * loss(core, batch, row) if share < 1 else 0.0)


def keyword_term(content: Settings, batch: ContrastiveBatch, row: Row) -> float:
    """``L_g`` of one image: definition 4.1, over sentences of other studies."""
    classes, s = batch["keywords"].tolist(), [math.exp(logit) for logit in row.logits]
    mine, below = classes[row.sentence], s[row.own]
    foreign = [c for c in row.others if not of_own(batch, row, c, "study_of_image")]
    above = sum(s[c] for c in foreign if classes[c] not in (0, mine))
    if content["denominator"] == "same_class":
        below += sum(s[c] for c in foreign if classes[c] == mine)
    x = above / below if mine else 0.0
    return math.log(1 + x) if content["g"] == "g1" else x / (1 + x)


# ----------------------------------------------------------------- what is known of a pair


def of_own(batch: ContrastiveBatch, row: Row, c: int, field: str) -> bool:
    """Whether anchor and candidate are of one study by a field; by default each image is one."""
    studies = batch.fields.get(field)
    if studies is None:
        return row.image == row.images[c]
    return bool(studies[row.image] == studies[row.images[c]])


def sentences_of(batch: ContrastiveBatch, row: Row, c: int) -> list[int]:
    """Sentences that a candidate is known by: its own, and those of its study's other images."""
    studies = batch.study_of_image
    if studies is None or len(row.sentences) == len(batch.owners):
        return row.sentences[c]
    owners = batch.owners.tolist()
    return [n for n, owner in enumerate(owners) if studies[owner] == studies[row.images[c]]]


def matrix_entry(batch: ContrastiveBatch, row: Row, c: int, field: str) -> float:
    entries = batch[field][row.sentence].tolist()
    if len(row.sentences) == len(entries) and row.images == batch.owners.tolist():
        return entries[c]
    return max(entries[n] for n in sentences_of(batch, row, c))


def alike_text(batch: ContrastiveBatch, row: Row, c: int) -> bool:
    ids = batch["text_ids"].tolist()
    return any(ids[row.sentence] == ids[n] for n in sentences_of(batch, row, c))


def present(content: Settings, batch: ContrastiveBatch, image: int) -> dict[str, bool]:
    """Labels of an image that are known, and whether each is present."""
    values = dict(zip(batch["label_names"], batch["labels"][image].tolist(), strict=True))
    if all(math.isnan(value) for value in values.values()):
        return {}
    doubt = content["uncertain"]
    return {
        name: values[name] == 1 or (values[name] == -1 and doubt == "as_positive")
        for name in content["labels"]
        if values[name] != -1 or doubt != "ignore"
    }


def alike_labels(content: Settings, batch: ContrastiveBatch, row: Row, c: int) -> bool:
    mine, theirs = (present(content, batch, image) for image in (row.image, row.images[c]))
    both = [(mine[name], theirs[name]) for name in mine.keys() & theirs.keys()]
    if content["match"] == "shared":
        return any(a and b for a, b in both)
    return bool(both) and all(a == b for a, b in both)


def graph(content: Settings, batch: ContrastiveBatch, row: Row, c: int) -> float:
    """How similar X-CLR takes two samples to be."""
    if content["graph"] != "labels":
        field = "text_similarity" if content["graph"] == "text" else "graph"
        return matrix_entry(batch, row, c, field)
    if row.images[c] == row.image:
        return 1.0
    mine, theirs = (present(content, batch, image) for image in (row.image, row.images[c]))
    both = [(mine[name], theirs[name]) for name in mine.keys() & theirs.keys()]
    union = sum(a or b for a, b in both)
    return sum(a and b for a, b in both) / union if union else float(bool(both))


def evidence(content: Settings, batch: ContrastiveBatch, row: Row, c: int) -> float:
    """In [-1, 1]; what is of the own study agrees."""
    if batch.study_of_image is not None and of_own(batch, row, c, "study_of_image"):
        return 1.0
    return of_pair(content, batch, row, c)


def of_pair(content: Settings, batch: ContrastiveBatch, row: Row, c: int) -> float:
    """The same of a pair itself, whatever study it is of."""
    of_text = row.images != batch.owners.tolist()
    image, sentence = (row.images[c], row.sentence) if of_text else (row.image, c)
    match content["kind"]:
        case "claims":
            return claimed(batch["stated"][image].tolist(), batch["claims"][sentence].tolist())
        case "known":
            return 1.0 if batch["agreement"][image, batch["text_ids"][sentence]] else -1.0
        case "label":
            return float(alike_labels(content, batch, row, c))
        case "text":
            cosine = matrix_entry(batch, row, c, "text_similarity")
            return float(cosine > content["threshold"])
    return 0.0


def claimed(stated: list[int], claims: list[int]) -> float:
    """The least that a report states of any claim of a sentence, as a share."""
    values = [stated[abs(k) - 1] * (1 if k > 0 else -1) for k in claims if k]
    return min(values) / 100 if values else 0.0


# ----------------------------------------------------------------------------- the policies


def after_policies(
    content: Settings, batch: ContrastiveBatch, row: Row
) -> tuple[dict[int, float], list[float]]:
    """Weight of each negative that is left, and the logits, with the margins of policies."""
    s, studies = list(row.logits), content.get("positives") == "study"
    columns = [c for c in row.others if not (studies and of_own(batch, row, c, "sample_ids"))]
    weights = dict.fromkeys(columns, 1.0)
    for policy in content["negatives"]:
        fade = strength(policy["schedule"], batch["done"])
        weight = weight_of(policy, batch, row, [c for c in weights if weights[c]], s)
        new = {c: w * (1 - fade * (1 - weight(c))) if w else 0.0 for c, w in weights.items()}
        if policy.get("margin"):
            for c in columns:
                against = max(-evidence(policy["evidence"], batch, row, c), 0)
                s[c] += float(batch.scale) * policy["margin"] * fade * against
        if policy["keep_mass"] and fade and (total := sum(new.values())):
            new = {c: w * sum(weights.values()) / total for c, w in new.items()}
        weights = new
    return weights, s


def weight_of(
    policy: Settings, batch: ContrastiveBatch, row: Row, columns: list[int], s: list[float]
) -> Callable[[int], float]:
    """Weight by one policy of a candidate among those that are left."""
    cosine = partial(matrix_entry, batch, row, field="text_similarity")
    match policy["kind"]:
        case "remove_by_label":
            return lambda c: not alike_labels(policy, batch, row, c)
        case "remove_by_text":
            return lambda c: cosine(c) <= policy["threshold"]
        case "reweight_by_text":
            return lambda c: math.exp(-policy["beta"] * cosine(c))
        case "mask_same_study":
            return lambda c: not of_own(batch, row, c, "sample_ids")
        case "mask_identical_text":
            return lambda c: not alike_text(batch, row, c)
        case "remove_known":
            return lambda c: of_pair({"kind": "known"}, batch, row, c) < 0
        case "fnc":
            count = math.ceil(policy["alpha"] * (len(columns) - 1) - 1e-9)
            largest = sorted(columns, key=lambda c: -s[c])[: max(count, 1)]
            return lambda c: c not in largest

    def between(c: int) -> float:
        e = evidence(policy["evidence"], batch, row, c)
        known = policy["agree"] if e > 0 else policy["contradict"]
        return policy["unknown"] + abs(e) * (known - policy["unknown"])

    return between
