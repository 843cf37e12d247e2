"""Tables from elsewhere, and the rows that messages name."""

import gzip
import os

import pandas as pd
import pytest

from medclip_debias.data.sources import tables
from medclip_debias.data.sources.archive import header_of
from medclip_debias.data.sources.tables import read_table
from medclip_debias.errors import UserError

CUT = gzip.compress(b"a,b\n" + b"1,2\n" * 50, mtime=0)[:-9]
"""A file whose end is missing; without the time, by which test processes would differ."""


def write(path, text):
    path.write_bytes(text.encode())
    return path


@pytest.mark.parametrize("start", ["", "\ufeff"])
@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_marks_and_line_ends_of_any_system_read_the_same(tmp_path, start, end):
    path = write(tmp_path / "a.csv", start + end.join(["a,b", "1, 2 ", "3,4", ""]))
    table = read_table(path)
    assert table.to_dict("list") == {"a": ["1", "3"], "b": ["2", "4"]}
    assert table.index.tolist() == [2, 3]


@pytest.mark.parametrize("mark", [",", ";", "\t"])
def test_a_spreadsheet_of_any_country_reads_the_same(tmp_path, mark):
    text = f'image{mark}report\na.png{mark}"Clear{mark} no, none."\n'
    table = read_table(write(tmp_path / "a.csv", text))
    assert table.to_dict("list") == {"image": ["a.png"], "report": [f"Clear{mark} no, none."]}
    assert header_of(tmp_path / "a.csv") == ("image", "report")


def test_rows_are_the_true_lines_of_the_file(tmp_path):
    text = '\na,b\n\n1,"two\nlines"\n\n\n3,4\n"five\n\n",6\n7,8\n'
    lines = text.split("\n")
    table = read_table(write(tmp_path / "a.csv", text))
    assert table.index.tolist() == [4, 8, 9, 12]
    assert [lines[row - 1].split(",")[0].strip('"') for row in table.index] == table["a"].str.split(
        "\n"
    ).str[0].tolist()


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("a,b\n\n\n1\n", "row 4: has 1 cells where the header has 2"),
        ('a,b\n"x\ny",2\n\n1,2,3\n', "row 5: has 3 cells"),
        ('a,b\n1,2\n\n"x"y,2\n', "row 4: is not readable CSV"),
        ('a,b\n1,2\n"never closed,2\n3,4\n', "row 3: is not readable CSV"),
        ("b,c\n1,2\n", "column 'a' is missing; none of its 2 columns is known"),
    ],
)
def test_what_is_wrong_is_named_with_its_line(tmp_path, text, sentence):
    path = write(tmp_path / "a.csv", text)
    with pytest.raises(UserError, match=sentence) as caught:
        read_table(path, required=("a",))
    assert str(path) in str(caught.value)


@pytest.mark.parametrize(
    ("name", "content", "sentence"),
    [
        ("a.csv", "a,b\n1,\u00e9\n".encode("latin-1"), "is not UTF-8 text"),
        ("a.csv.gz", CUT, "the gzip file is truncated"),
        ("a.csv.gz", b"a,b\n1,2\n", "the gzip file is truncated"),
        ("a.parquet", b"PAR1", "is not a readable Parquet table"),
    ],
)
def test_what_is_no_such_file_is_refused(tmp_path, name, content, sentence):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(UserError, match=f"{name}: {sentence}"):
        read_table(tmp_path / name)


def test_parquet_rows_count_from_one_and_blank_cells_are_empty(tmp_path):
    cells = {" a ": [1, None], "b": ["x ", None], "tags": [["x", "y"], None]}
    pd.DataFrame(cells, index=[7, 9]).to_parquet(tmp_path / "a.parquet")
    table = read_table(tmp_path / "a.parquet")
    expected = {"a": ["1.0", ""], "b": ["x", ""], "tags": ["['x', 'y']", ""]}
    assert table.to_dict("list") == expected
    assert table.index.tolist() == [1, 2]


def test_a_header_may_end_with_commas_that_its_rows_lack(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("a,b,,\n1,2\n3,4,,\n")
    assert read_table(path)[["a", "b"]].values.tolist() == [["1", "2"], ["3", "4"]]
    path.write_text("a,b,,\n1,2,\n")
    with pytest.raises(UserError, match="row 2: has 3 cells where the header has 4"):
        read_table(path)


@pytest.mark.parametrize("name", ["a.csv", "a.csv.gz", "a.parquet"])
def test_a_pipe_and_a_loop_of_links_are_refused_and_not_waited_for(tmp_path, name):
    os.mkfifo(tmp_path / name)
    (tmp_path / "b.csv").symlink_to("b.csv")
    for path, said in ((tmp_path / name, "is a pipe"), (tmp_path / "b.csv", "cannot be read")):
        with pytest.raises(UserError, match=f"{path.name}: {said}"):
            read_table(path)


def test_a_table_of_more_rows_than_are_read_is_refused_before_it_fills_the_memory(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(tables, "MAX_ROWS", 100)
    frame = pd.DataFrame({"image": ["a"] * 101})
    frame.to_csv(tmp_path / "a.csv", index=False)
    frame.to_parquet(tmp_path / "a.parquet")
    with pytest.raises(UserError, match="has more than 100 rows"):
        read_table(tmp_path / "a.csv")
    with pytest.raises(UserError, match="has 101 rows, more than the 100"):
        read_table(tmp_path / "a.parquet")


def test_a_line_without_end_is_refused(tmp_path, monkeypatch):
    """As in a file of holes, whose gigabytes need no disk."""
    monkeypatch.setattr(tables, "_MOST_OF_A_LINE", 1 << 20)
    (tmp_path / "a.csv").touch()
    os.truncate(tmp_path / "a.csv", 1 << 33)
    with pytest.raises(UserError, match="has a line of more than 1,048,576 characters"):
        read_table(tmp_path / "a.csv")
