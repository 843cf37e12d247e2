"""Tables and forest plots say what the comparison says, escaped for where they go."""

from __future__ import annotations

import json
import re

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from medclip_debias.errors import UserError
from medclip_debias.evaluation.table import Results
from medclip_debias.reporting.comparison import comparison_part, write_comparison
from medclip_debias.reporting.plots import forest
from medclip_debias.reporting.tables import (
    comparison_table,
    latex,
    markdown,
    results_table,
    seeds_sentence,
    tex,
)
from tests.helpers import results


def entry(value, difference=None, verdict="not shown", better=True, p=0.2):
    found = {"value": value, "interval": (value - 0.02, value + 0.02)}
    if difference is not None:
        found |= {
            "difference": difference,
            "difference_interval": (difference - 0.01, difference + 0.01),
            "p": p,
            "p_holm": p,
            "verdict": verdict,
            "better": better,
        }
    return found


OURS = "ours & <more>"


def metric(key, title, digits, lower, base, ours, other):
    """A row of a comparison on 40 items of 20 patients."""
    groups = {"base_1": entry(base), OURS: entry(*ours), "other": entry(*other)}
    fields = {"key": key, "title": title, "lower_is_better": lower, "digits": digits}
    return {**fields, "items": 40, "patients": 20, "groups": groups}


def content(**changes):
    ours, other = (0.3, 0.1, "real", True, 0.0004), (0.21, 0.01)
    rows = [metric("grounding.miou", "mIoU", 3, False, 0.2, ours, other)]
    ours, other = (111, 7, "real", False, 0.001), (104, 0, "not shown", None, 1.0)
    rows.append(metric("retrieval.median_rank", "Box median rank", 1, True, 104, ours, other))
    one = {"seeds": [0], "model_hashes": ["a"], "code_hashes": [None]}
    return {
        **{"format": 2, "medclip_debias": "0", "data_hash": "f" * 64, "split": "test"},
        "baseline": "base_1",
        "options": {"resamples": 2000, "seed": 0, "alpha": 0.05, "tests": 4},
        "groups": [{"label": name, "runs": [name], **one} for name in rows[0]["groups"]],
        "rows": rows,
        **{"forced": [], "left_out": [], "classes": [], "average_ranks": None},
    } | changes


def test_a_comparison_holds_value_difference_verdict_and_what_limits_it():
    table = comparison_table(content())
    assert table.rows[1] == (
        *("", "ours & <more>", "0.300", "0.280 to 0.320", "+0.100", "0.090 to 0.110"),
        *("< 0.001", "< 0.001", "real, better"),
    )
    assert table.rows[4][-1] == "real, worse"
    assert table.rows[2][-1] == "not shown"
    assert table.rows[0][4] == "baseline"
    few = content(forced=["a and b were evaluated on other data"])
    for group, code in zip(few["groups"], ("c1", "c2", None), strict=True):
        group["code_hashes"] = [code]
    caption = comparison_table(few).caption
    assert caption.startswith("Forced although a and b were evaluated on other data.")
    assert "Fewer than 100 patients (20)" in caption
    assert "evaluated by 2 versions of the code (c1, c2)" in caption


NAMES = st.text(
    st.one_of(st.sampled_from("\\&%$#_{}~^<>[]*|-\n\r\t\0"), st.characters()), max_size=12
)


@given(NAMES, NAMES)
def test_tables_keep_their_shape_whatever_runs_are_called(one, two):
    """Columns equal in every row, braces balanced, no line begins a bracket."""
    names = (one, two + "'", "other run")
    assume(len({*names}) == 3)  # as the comparison sees to
    base = content()
    labels = dict(zip(base["rows"][0]["groups"], names, strict=True))
    for row in base["rows"]:
        row["groups"] = {labels[name]: entry for name, entry in row["groups"].items()}
    for group in base["groups"]:
        group["label"] = labels[group["label"]]
    table = comparison_table(base | {"baseline": one, "notes": ["50% & more"]})
    text = latex(table)
    lines = text.rstrip("\n").split("\n")
    start, end = lines.index(r"\toprule"), lines.index(r"\bottomrule")
    body = [lines[start + 1], *lines[start + 3 : end]]
    assert len(body) == 1 + len(table.rows)
    for line in body:
        assert line.endswith(r" \\")
        assert len(re.split(r"(?<!\\) & ", line)) == 9
        assert not line.startswith(("[", "*"))
    bare = re.sub(r"\\[{}\\]", "", text)
    assert bare.count("{") == bare.count("}")
    columns = {len(re.findall(r"(?<!\\)\|", line)) for line in markdown(table).splitlines()[:8]}
    assert columns == {10}


def test_latex_prints_every_mark_as_it_is():
    printed = r"\textbackslash{}\&\%\$\#\_\{\}\textasciitilde{}\textasciicircum{}"
    assert tex("\\&%$#_{}~^") == printed
    assert tex("a--b\nc") == "a-{}-b c"


def test_a_table_of_two_runs_shows_what_each_has():
    one = {"split": "test", "data_hash": "d", "model_hash": "m", "data": {"synthetic": True}}
    grounding = [results.row("grounding", "miou", 0.1234, (0.1, 0.2))]
    retrieval = results.rows("retrieval", {"recall": 0.3, "median_rank": 12.0})
    runs = {"a": grounding, "b": [*grounding, *retrieval]}
    table = results_table({name: Results(one | {"metrics": own}) for name, own in runs.items()})
    assert table.rows == (
        ("mIoU", "0.123 (0.100 to 0.200)", "0.123 (0.100 to 0.200)"),
        ("Box retrieval recall", "\N{EN DASH}", "0.300"),
        ("Box median rank", "\N{EN DASH}", "12.0"),
    )
    assert "Synthetic data" in table.caption


@pytest.mark.usefixtures("drawn")
def test_a_plot_is_the_same_each_time_and_no_name_is_a_formula():
    formula = json.loads(json.dumps(content()).replace("ours & <more>", "$\\\\frac$"))
    plot = forest(formula)["svg"]
    assert b"frac" in plot
    assert forest(formula)["svg"] == plot


def test_a_comparisons_page_stands_alone_and_is_shown_in_a_report_beside_it(tmp_path):
    assert len(write_comparison(content(), tmp_path / "beside")) == 6
    page = (tmp_path / "beside" / "comparison.html").read_text()
    assert "ours &amp; &lt;more&gt;" in page
    assert "<more>" not in page
    addresses = re.findall(r'(?:src|href)="([^"]*)"', page)
    assert all(address.startswith(("data:", "#")) for address in addresses)
    part = comparison_part(tmp_path)
    assert part["table"].rows == comparison_table(content()).rows
    assert part["seeds"] == seeds_sentence(content())
    assert part["plot"].startswith("<svg")
    assert comparison_part(tmp_path / "beside") is None
    (tmp_path / "beside" / "comparison.json").write_text('{"baseline": 1, "groups": [1]}')
    with pytest.raises(UserError, match="is not a file of 'compare'"):
        comparison_part(tmp_path)
