"""Settings that come with the program: a run, a grid or a study is a YAML file of ``configs/``.

Its path there without ``.yaml`` is its name, as ``mimic_cxr/debiased``. Wherever a verb takes the
file of a run, grid or study it takes a name, too, and ``extends: config:NAME`` inherits one.
"""

from __future__ import annotations

from pathlib import Path

from medclip_debias.errors import UserError, did_you_mean
from medclip_debias.files import write_text

_PACKAGE = Path(__file__).parent
_IN_WHEEL = _PACKAGE / "configs"
# In a checkout they lie beside the package.
_FOLDER = _IN_WHEEL if any(_IN_WHEEL.glob("*/*.yaml")) else _PACKAGE.parent / "configs"


def names() -> list[str]:
    """Every name, sorted."""
    return sorted(path.relative_to(_FOLDER).as_posix()[:-5] for path in _FOLDER.rglob("*.yaml"))


def config_file(config: Path | str) -> Path:
    """The file that ``config`` is or names; a file that is there goes before a name."""
    path = Path(config)
    if path.exists():
        return path
    name = path.as_posix()
    if name in names():
        return named_file(name)
    hint = did_you_mean(name.removesuffix(".yaml").removeprefix("configs/"), names())
    raise UserError(
        f"{config}: there is no such file; give the path of a YAML file, or a name that "
        f"`medclip-debias config list` shows{hint}."
    )


def named_file(name: str, where: str = "config:NAME") -> Path:
    """The file of a name, as ``phantom/demo``; ``where`` names it in the message."""
    listed = names()
    if name not in listed:
        raise UserError(
            f"{where}: the program comes with no settings named '{name}'"
            f"{did_you_mean(name, listed)}; `medclip-debias config list` shows their names."
        )
    return _FOLDER / f"{name}.yaml"


def copy(name: str, file: Path, *, overwrite: bool = False) -> None:
    """Copy a named file as it is, comments and all, into ``file``, whose folder is made."""
    text = named_file(name, "config new").read_text(encoding="utf-8")
    if file.is_dir() or (file.exists() and not overwrite):
        raise UserError(f"{file}: is already there; give another file or --overwrite.")
    file.parent.mkdir(parents=True, exist_ok=True)
    write_text(file, text)


def about(name: str) -> str:
    """What a named file is: its title if it has one, or its first line, a comment."""
    lines = named_file(name).read_text(encoding="utf-8").splitlines()
    titles = [line.removeprefix("title: ") for line in lines if line.startswith("title: ")]
    return titles[0].strip("\"'") if titles else lines[0].removeprefix("# ")
