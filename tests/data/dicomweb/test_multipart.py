"""Multipart answers, against the writer of Python's own email package and by their grammar."""

from email import policy
from email.mime.application import MIMEApplication
from email.mime.multipart import MIMEMultipart

import pytest
from hypothesis import given
from hypothesis import strategies as st

from medclip_debias.data.dicomweb.client import media_type, parts_of


@given(st.lists(st.binary(max_size=60), min_size=1, max_size=4), st.booleans(), st.booleans())
def test_any_bytes_come_back(contents, preamble, headers):
    mark = "0123abcdXYZ"
    body = b"words to skip\r\n" if preamble else b""
    for content in contents:
        head = b"Content-Type: application/dicom\r\n" if headers else b""
        body += b"--" + mark.encode() + b"\r\n" + head + b"\r\n" + content + b"\r\n"
    body += b"--" + mark.encode() + b"--\r\nepilogue"
    assert parts_of(body, mark) == contents
    cut = body[: body.rindex(b"--" + mark.encode()) - 1]
    if cut.count(mark.encode()):
        with pytest.raises(ValueError):  # noqa: PT011
            parts_of(cut, mark)


def test_what_another_writer_writes_is_read():
    message = MIMEMultipart("related", boundary="=_1", type="application/dicom")
    for text in ("first", "second\r\nline"):
        message.attach(MIMEApplication(text.encode(), "dicom", lambda part: None))
    _, _, body = message.as_bytes(policy=policy.HTTP).partition(b"\r\n\r\n")
    kind, parameters = media_type(message["Content-Type"])
    assert kind == "multipart/related"
    assert parts_of(body, parameters["boundary"]) == [b"first", b"second\r\nline"]


@pytest.mark.parametrize("body", [b"", b"--x", b"no mark", b"--x\r\nhead without end\r\n--x--"])
def test_what_is_no_multipart_is_refused(body):
    with pytest.raises(ValueError):  # noqa: PT011
        parts_of(body, "x")


def test_parameters_are_their_texts():
    kind, found = media_type('Multipart/Related; TYPE="application/dicom"; boundary="a b;c"')
    assert kind == "multipart/related"
    assert (found["type"], found["boundary"]) == ("application/dicom", "a b;c")
    assert media_type("")[1] == {}
    # RFC 2231; the email package gives such a value as three.
    assert media_type("multipart/related; boundary*=utf-8''B%20b")[1]["boundary"] == "B b"
