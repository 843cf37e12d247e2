"""The tables of a run's report below its main results: classes, groups, studies, decisions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from medclip_debias.evaluation.presets import preset_lines
from medclip_debias.reporting.content import Rows, dig, interval, number
from medclip_debias.reporting.supervised import HEAD, supervised_rows

Results = Mapping[str, Any]
_WAYS = {
    "report_to_image": "report to image",
    "image_to_report": "image to report",
    "sentence_to_image": "sentence to image",
    "image_to_sentence": "image to sentence",
    "box_to_sentence": "box to sentence",
    "sentence_to_box": "sentence to box",
}


@dataclass(frozen=True)
class Table:
    """A table of the page.

    Attributes:
        title: what it shows.
        columns: their titles, between bars; one called ``95%`` holds intervals, which the page
            puts below the value on their left.
        rows: cells, as many as columns.
        note: how to read it.
        words: how many columns, from the left, hold words.
        total: the last row is over all the others.
    """

    title: str
    columns: str
    rows: Rows
    note: str = ""
    words: int = 1
    total: bool = False

    @property
    def head(self) -> list[str]:
        """Titles of the columns."""
        return self.columns.split(" | ")


@dataclass(frozen=True)
class Section:
    """A part of the page.

    Attributes:
        title: of the part.
        tables: those that have rows.
        lines: sentences on what is missing.
        plots: plot, title and caption of each.
    """

    title: str
    tables: Sequence[Table]
    lines: Sequence[str] = ()
    plots: Sequence[tuple[Any, str, str]] = ()


def result_sections(run: Path, results: Results) -> list[Section]:
    """Every table that the results have values for, in the order of the page.

    Args:
        run: the run's folder, for files beside ``results.json``.
        results: content of its ``results.json``.

    Raises:
        UserError: a file beside it is damaged, or is a link.
    """
    zero = results.get("zero_shot") or {}
    sections = [
        Section(
            "Zero-shot classification, per class",
            [*_class_tables(zero), *_label_tables(run, results), *_decision_tables(zero)],
            _missing_lines(zero),
            _reliability(zero),
        ),
        Section("Phrase grounding, per category", list(_grounding_tables(results))),
        Section("Retrieval, in detail", list(_retrieval_tables(results))),
        Section("The same predictions by other papers' protocols", [_presets(results)]),
    ]
    kept = [Section(s.title, [t for t in s.tables if t.rows], s.lines, s.plots) for s in sections]
    return [section for section in kept if section.tables or section.lines]


def _values(part: Mapping[str, Any], keys: Sequence[str], digits: int = 3) -> list[str]:
    """Value and interval of each key."""
    return [
        cell
        for key in keys
        for cell in (number(part.get(key), digits), interval(dig(part, f"interval.{key}"), digits))
    ]


# ------------------------------------------------------------------------- classification


def _class_tables(zero: Results) -> Iterator[Table]:
    classes = zero.get("classes") or {}
    yield Table(
        "Classes",
        "class | present | absent | left out | AUC | 95% | accuracy | 95% | balanced acc. | 95%",
        [
            [
                name,
                *(number(c.get(key)) for key in ("positive", "negative", "left_out")),
                *_values(c, ("auc", "accuracy", "balanced_accuracy")),
            ]
            for name, c in classes.items()
        ],
        "Each image is scored against a sentence that states the finding and one that denies it"
        " (the prompts are under Provenance). Left out: images whose label is uncertain or blank,"
        " under the label policy of this evaluation.",
    )
    chance = zero.get("contradiction_chance")
    random = f" (scores in random order: {number(chance)})" if chance else ""
    yield Table(
        "Each side of the prompts alone",
        "class | AUC of 'X' alone (POS) | 95% | of 'no X' alone (NEG) | 95% | of both (PNC) | 95%"
        " | contradictions | 95%",
        _side_rows(zero),
        "NEG counts a low score of 'no X' as the finding; 0.5 is chance, less is worse than chance."
        " Contradictions: share of all images whose two highest-scoring sides, among 'X' and"
        f" 'no X' of every class, are of this one class; in the last row of any{random}.",
        total=True,
    )
    yield Table(
        "Average precision, F1 and calibration",
        "class | average precision | 95% | F1 | 95% | ECE | 95%",
        [
            [name, *_values(c, ("average_precision", "f1", "ece"))]
            for name, c in classes.items()
            if c.get("average_precision") is not None
        ],
        "F1: at the threshold that was best on the validation images. ECE: expected calibration"
        " error of sigmoid(g2 x difference), 15 bins; lower is better.",
    )
    several = zero.get("multiclass") or {}
    answers = zip(
        (several.get("classes") or {}).items(), several.get("confusion") or [], strict=False
    )
    rows = [
        [
            name,
            number(c["images"]),
            number(c["recall"]),
            *(number(value, 0 if float(value).is_integer() else 1) for value in counts),
        ]
        for (name, c), counts in answers
    ]
    if rows:
        yield Table(
            f"Which class? {number(several['accuracy'])} right of {number(several['images'])}"
            f" images (chance {number(several['chance'])})",
            " | ".join(["class", "images", "recall", *(row[0] for row in rows)]),
            rows,
            "Images of exactly one class; the prediction is the class whose positive prompts score"
            " highest. The columns after the recall: how often each class was predicted. When"
            " classes tie, each gets an equal share of the prediction.",
        )


def _side_rows(zero: Results) -> Rows:
    """Empty where no side was measured; refused classes have a contradiction rate all the same."""
    if zero.get("mean_auc_positive") is None:
        return []
    keys = ("auc_positive", "auc_negative", "auc", "contradiction_rate")
    overall = ("mean_auc_positive", "mean_auc_negative", "mean_auc", "contradiction_rate")
    refused = (zero.get("refused") or {}).items()
    parts = [*(zero.get("classes") or {}).items()]
    parts += [(name, c) for name, c in refused if c.get("contradiction_rate") is not None]
    return [*([name, *_values(c, keys)] for name, c in parts), ["all", *_values(zero, overall)]]


def _label_tables(run: Path, results: Results) -> Iterator[Table]:
    counts = ("present", "absent", "uncertain", "blank", "contradictory")
    yield Table(
        f"Labels by the label map '{dig(results, 'zero_shot.label_map.name')}'",
        f"class | columns of the archive | {' | '.join(counts[:-1])} | of them contradictory",
        [
            [name, str(made["rule"]), *(number(made[count]) for count in counts)]
            for name, made in (dig(results, "zero_shot.label_map.classes") or {}).items()
        ],
        words=2,
    )
    yield Table(
        "What the labels allow",
        " | ".join(HEAD),
        supervised_rows(run, results),
        "AUC on the same images: zero-shot by 'X' alone (POS), by 'no X' alone (NEG), by both"
        " (PNC). Linear probe: logistic regression on this model's image features,"
        " learned from all training labels. Supervised: the same image encoder, trained on the"
        " labels from scratch.",
        total=True,
    )


def _decision_tables(zero: Results) -> Iterator[Table]:
    decided = zero.get("decisions") or {}
    rows = []
    for name, c in (decided.get("classes") or {}).items():
        shares, sets = c["prevalence"], c["sets"]
        rows.append(
            [
                name,
                number(shares["validation"]),
                f"{number(shares['target'])} ({shares['from']})",
                number(shares["observed"]),
                number(dig(c, "uncalibrated.ece")),
                *_values(c["probabilities"], ["ece"]),
                number(dig(c, "probabilities.slope"), 2),
                *_values(sets, ["coverage"]),
                number(sets["abstention"]),
            ]
        )
    if rows:
        each = ", among images with and without the finding each"
        split = each if decided["conformal"] == "class_conditional" else ""
        yield Table(
            "Decisions",
            "class | present where calibrated | present here, as taken | as observed"
            " | ECE uncalibrated | ECE calibrated | 95% | slope | coverage | 95% | abstains",
            rows,
            f"Probabilities by '{decided['method']}' for the share of images taken to have the"
            " finding. Slope: 1 is right, less is too sure. Coverage: how often the set of answers"
            " (present, absent, both, none) holds the truth,"
            f" {decided['coverage_asked']:.0%} asked{split}. Abstains: both answers or none.",
        )


def _missing_lines(zero: Results) -> list[str]:
    """What was not measured, and why."""
    decided, several = zero.get("decisions") or {}, zero.get("multiclass") or {}
    lines = [f"Decisions: {decided['reason']}."] if decided.get("reason") else []
    lines += [f"{name}: {why['reason']}." for name, why in (decided.get("skipped") or {}).items()]
    lines += decided.get("notes") or ()
    if several.get("reason"):
        lines.append(f"Multi-class accuracy was not measured. {several['reason']}")
    return lines + [
        f"Not measured: {name}: {c['reason']} ({c['positive']} present, {c['negative']} absent,"
        f" {c['left_out']} left out)."
        for name, c in (zero.get("refused") or {}).items()
    ]


def _reliability(zero: Results) -> list[tuple[Any, str, str]]:
    """A reliability diagram for each class that has one."""
    from medclip_debias.reporting.plots import reliability

    shown = []
    for name, c in (zero.get("classes") or {}).items():
        if c.get("reliability"):
            ece = number(c.get("ece"))
            images = number(sum(int(each["images"]) for each in c["reliability"]))
            caption = f"ECE {ece}, {images} images; a mark's area: its images"
            plot = reliability(c["reliability"], f"Reliability diagram of {name}, ECE {ece}")
            shown.append((plot, name, caption))
    return shown


# ---------------------------------------------------------------------- grounding, retrieval


def _grounding_tables(results: Results) -> Iterator[Table]:
    grounding = results.get("grounding") or {}
    groups = [*(grounding.get("categories") or {}).items()]
    if len(groups) > 1:
        groups.append(("All", grounding))
    denied = dig(grounding, "not_groundable.phrases") or 0
    further = (
        f" {number(denied)} further phrases say that something is absent or normal; they are"
        " reported apart in results.json."
        if denied
        else ""
    )
    yield Table(
        "Categories",
        "category | phrases | area | CNR | 95% | signed CNR | mIoU | 95% | mIoU .1 to .5 | pointing"
        " | 95%",
        [
            [
                name,
                number(c["phrases"]),
                number(c["area"], 2),
                *_values(c, ["cnr"], 2),
                number(c["cnr_signed"], 2),
                *_values(c, ["miou"]),
                number(c["miou_middle"]),
                *_values(c, ["pointing_game"]),
            ]
            for name, c in groups
        ],
        "Each sentence's region scores, at the original image's resolution, against the boxes that"
        " radiologists (or the phantom's truth) gave it. Area: the boxes' share of the image."
        + further,
        total=len(groups) > 1,
    )
    for title, division in (
        ("By box area", "areas"),
        ("By how many training studies say the sentence", "sentence_frequency"),
    ):
        yield Table(
            title,
            "group | phrases | CNR | 95% | mIoU | 95% | pointing | 95%",
            [
                [
                    name.replace("_", " "),
                    number(c["phrases"]),
                    *_values(c, ["cnr"], 2),
                    *_values(c, ["miou", "pointing_game"]),
                ]
                for name, c in (grounding.get(division) or {}).items()
            ],
        )


def _retrieval_tables(results: Results) -> Iterator[Table]:
    boxes = results.get("retrieval") or {}
    pairs = (
        f"{number(boxes['phrases'])} box-sentence pairs, {number(boxes['distinct_sentences'])}"
        " distinct sentences. "
        if "distinct_sentences" in boxes
        else ""
    )
    yield _ranks("Boxes and sentences", [boxes], (10, 50, 100), pairs)
    studies = results.get("study_retrieval") or {}
    kinds = [studies.get(kind) or {} for kind in ("report", "sentence")]
    yield _ranks("Whole studies", kinds, (1, 5, 10, 50, 100))
    yield Table(
        "Precision by class",
        "query to answer | queries | P@5 | P@10 | P@100 | chance",
        [
            [
                _WAYS.get(way, way),
                number(part["queries"]),
                *(number(part[f"precision_at_{k}"]) for k in (5, 10, 100)),
                number(part["chance"]),
            ]
            for way, part in (studies.get("class_precision") or {}).items()
        ],
        "Share of the first K studies that have the query's positive labels; the own study is no"
        " answer.",
    )


def _ranks(title: str, kinds: Sequence[Results], places: Sequence[int], pairs: str = "") -> Table:
    """Recalls and median rank of each direction, strict and lenient."""
    rows = [
        [
            mode,
            words,
            number(part[way].get("queries")),
            *(number(part[way].get(f"recall_at_{k}")) for k in places),
            number(part[way]["median_rank"], 1),
        ]
        for kind in kinds
        for mode in ("strict", "lenient")
        if (part := kind.get(mode))
        for way, words in _WAYS.items()
        if way in part
    ]
    recalls = " | ".join(f"R@{k}" for k in places)
    return Table(
        title,
        f"counting | query to answer | queries | {recalls} | median rank",
        rows,
        f"{pairs}R@K: share of queries that find their pair among the first K. Strict: only the"
        " paired item counts. Lenient: any item with the same sentence counts. Items with equal"
        " scores each get the mean of their ranks.",
        words=2,
    )


def _presets(results: Results) -> Table:
    return Table(
        "Presets",
        "preset | part | metrics | what it does",
        preset_rows(results),
        "Without intervals. What differs: docs/protocols.md.",
        words=4,
    )


def preset_rows(results: Results) -> Rows:
    """Preset, part, metrics and what it does, one row a part; empty where none was asked for."""
    return [
        [name, part.replace("_", " "), line, preset["about"]]
        for name, preset in (results.get("presets") or {}).items()
        for part, line in preset_lines(preset).items()
    ]
