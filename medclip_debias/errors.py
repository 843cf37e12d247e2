"""The one error that people see: a sentence that says what is wrong, where, and what to do."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from difflib import get_close_matches
from importlib.util import find_spec
from typing import TypeVar

EXIT_CODE = 2
Name = TypeVar("Name", bound=str)


class UserError(Exception):
    """An error that the user can correct: bad input, a bad setting, a file that does not fit.

    The message is one sentence that names the file (and row or key) and what to do. The command
    line prints it without a traceback and exits with code 2. It never holds report text, a
    patient's identity or a DICOM header (`without_patients` cleans paths), and what it quotes from
    a file cannot control a terminal (`printable`).
    """

    def __init__(self, sentence: str) -> None:
        super().__init__(printable(without_patients(sentence)))


_PATIENT = re.compile(
    r"""(^|[\s/\\'"(=])(p|pat|patient|sub|subj|subject)([-_]?)\d{3,}(?=[/\\\s'":;,.)]|$)""",
    re.IGNORECASE,
)
_ARCHIVES = re.compile(
    r"""(?<![^\s/\\'"(=])(?:(id_)[0-9a-f]{8}(?:-[0-9a-f]+)+|(GRDN)[0-9A-Z]{8,}(?=[/\\]))"""
)
"""Folders of patients in BRAX; of patients and of their visits in ReXGradient-160K."""


def without_patients(text: str) -> str:
    """``text`` with a star for the number in every folder that is named after a patient.

    What is left is a pattern that a shell still finds the file by: study and image stay.

    >>> without_patients("files/p10/p10000032/s50414267/a.dcm: is empty.")
    'files/p10/p*/s50414267/a.dcm: is empty.'
    >>> without_patients("/data/CheXpert/train/patient00001/study1/view1_frontal.jpg")
    '/data/CheXpert/train/patient*/study1/view1_frontal.jpg'
    """
    text = _PATIENT.sub(r"\1\2\3*", text)
    return _ARCHIVES.sub(lambda found: f"{found[1] or found[2]}*", text)


_CONTROLS = {
    code: f"\\x{code:02x}" if code < 256 else f"\\u{code:04x}"
    for code in (
        *range(0x20),
        *range(0x7F, 0xA0),
        *(0x200E, 0x200F, 0x2028, 0x2029),
        *range(0x202A, 0x202F),
        *range(0x2066, 0x206A),
    )
    if code != 0x09
}


def printable(text: str) -> str:
    r"""``text`` as one line that is safe to print, whoever wrote the file that it is from.

    Control characters, which can clear a terminal, rename its window or hide what stands before
    them, line ends, marks that turn the direction of writing, and halves of surrogate pairs are
    written as their codes.

    >>> print(printable("a\x1b[2Jb"))
    a\x1b[2Jb
    """
    return text.translate(_CONTROLS).encode("utf-8", "backslashreplace").decode()


class MissingFiles(UserError):
    """Files that a table names and that are not there: row and path of each."""

    def __init__(self, message: str, files: Sequence[tuple[int, str]]) -> None:
        super().__init__(message)
        self.files = files


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Return ``" (did you mean 'x'?)"`` for the closest known word, or an empty string.

    >>> did_you_mean("batchsize", ["batch_size", "steps"])
    " (did you mean 'batch_size'?)"
    """
    close = get_close_matches(word, list(known), n=1)
    return f" (did you mean '{close[0]}'?)" if close else ""


def counted(count: int, noun: str) -> str:
    """A number and what it counts, in the plural unless it is one.

    >>> counted(1, "fault"), counted(1200, "fault"), counted(2, "study"), counted(0, "box")
    ('1 fault', '1200 faults', '2 studies', '0 boxes')
    """
    plural = re.sub("x$", "xe", re.sub("(?<![aeiou])y$", "ie", noun)) + "s"
    return f"{count} {noun if count == 1 else plural}"


def one_of(value: str, known: Sequence[Name], what: str) -> Name:
    """``value``, which has to be one of the names ``known`` of ``what``.

    >>> one_of("sum", ["mean", "max"], "aggregator")
    Traceback (most recent call last):
    medclip_debias.errors.UserError: There is no aggregator 'sum'; it is one of mean, max.
    """
    for name in known:
        if name == value:
            return name
    raise UserError(
        f"There is no {what} '{value}'{did_you_mean(value, known)}; it is one of"
        f" {', '.join(known)}."
    )


def need_packages(what: str, extra: str, *modules: str) -> None:
    """Refuse ``what`` where modules that the package's ``extra`` brings are not installed."""
    missing = [name.replace("_", "-") for name in modules if find_spec(name) is None]
    if missing:
        raise UserError(
            f"{what} need {', '.join(missing)}, not installed here; run pip install"
            f" 'medclip-debias[{extra}]'."
        )


@contextmanager
def explained(sentence: str, *kinds: type[Exception]) -> Iterator[None]:
    """Turn the exceptions ``kinds`` of a library into a `UserError` with ``sentence``."""
    try:
        yield
    except kinds as error:
        raise UserError(f"{sentence} ({type(error).__name__})") from error


class ReportedWarning(UserWarning):
    """A warning that is one sentence for people; the command line shows it without its place."""
