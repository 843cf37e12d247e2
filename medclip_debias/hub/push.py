"""A model folder to the hub: what would go out is listed, and goes only when asked to.

Others see files by name, and a provenance without paths.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path, PurePath
from tempfile import TemporaryDirectory
from typing import Any

from medclip_debias.errors import UserError
from medclip_debias.files import check_guarded
from medclip_debias.models.limits import read_model_json

CARD = "README.md"
EVAL_RESULTS = ".eval_results"
FILES = ("config.json", "model.safetensors", "tokenizer.json", "golden.json", CARD)
"""Files of a model folder that go out; of `EVAL_RESULTS` its YAML files go, too."""
_PLACES = ("prepared", "out", "model", "preprocessing")
"""Fields of a provenance that name this machine's folders, or say again what the folder says."""
_ABSOLUTE = re.compile(r"(?<![\w.])(?:[A-Za-z]:)?[\\/](?:[^\s\\/]+[\\/])*([^\s\\/]+)")
_REPO = re.compile(r"[A-Za-z0-9][\w.-]{0,95}/[A-Za-z0-9][\w.-]{0,95}")


def public_config(folder: Path) -> dict[str, Any]:
    """``config.json`` as others may see it: the same model and hash, no path of this machine."""
    if (folder / "peer.yaml").is_file():
        raise UserError(
            f"{folder}: is a peer, whose weights are its authors' to publish; give a model of this"
            " project."
        )
    content = read_model_json(folder / "config.json")
    if "architecture" not in content or "preprocessing" not in content:
        raise UserError(f"{folder}: is not a model folder of this project; give RUN/model.")
    provenance = content.get("provenance") or {}
    if not isinstance(provenance, Mapping):
        raise UserError(f"{folder}/config.json: the field 'provenance' is not a JSON object.")
    return content | {"provenance": public_provenance(provenance)}


def public_provenance(provenance: Mapping[str, Any]) -> dict[str, Any]:
    """The same without paths: of a text that looks like one the last part stays.

    >>> public_provenance({"out": "runs/a", "loss": {"lm": "/home/me/lm"}, "studies": 5})
    {'loss': {'lm': 'lm'}, 'studies': 5}
    """
    public = {name: value for name, value in provenance.items() if name not in _PLACES}
    cleaned: dict[str, Any] = _without_paths(public)
    return cleaned


def _without_paths(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _without_paths(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_without_paths(item) for item in value]
    if not isinstance(value, str):
        return value
    return pathless(value) if " " in value else PurePath(value.replace("\\", "/")).name


def pathless(sentence: str) -> str:
    """A sentence in which the last part of an absolute path stands for it.

    >>> pathless("/home/me/set: new and/or old")
    'set: new and/or old'
    """
    return _ABSOLUTE.sub(r"\1", sentence)


def outgoing(folder: Path) -> tuple[dict[str, int], list[str]]:
    """What an upload of a model folder holds: names and bytes; and the names of what stays here."""
    folder = Path(folder)
    config = public_config(folder)
    for name in FILES:
        if not (folder / name).is_file() and name != "golden.json":
            hint = "; write it with 'medclip-debias hub card'" if name == CARD else ""
            raise UserError(f"{folder}: holds no {name}{hint}.")
    sizes: dict[str, int] = {}
    staying: list[str] = []
    for path in sorted(path for path in folder.rglob("*") if not path.is_dir()):
        name = path.relative_to(folder).as_posix()
        if name in FILES or re.fullmatch(rf"{re.escape(EVAL_RESULTS)}/[\w.-]+\.yaml", name):
            check_guarded(path, "make the model folder again", folder=folder)
            sizes[name] = path.stat().st_size
        else:
            staying.append(name)
    return sizes | {"config.json": len(_json(config))}, staying


def _json(content: Mapping[str, Any]) -> bytes:
    return (json.dumps(content, indent=2, allow_nan=False) + "\n").encode()


def push(folder: Path, repo: str, *, private: bool = True) -> str:
    """Upload `outgoing` as one commit, and nothing else.

    Args:
        folder: of the model, with its card.
        repo: ``group/name``; made if it is not there.
        private: whether a repository that is made is seen by its owner alone.

    Returns:
        Address of the commit.
    """
    from huggingface_hub import HfApi

    check_repo(repo)
    api = HfApi()
    try:
        with TemporaryDirectory() as name:
            stage, place = Path(name), Path(folder)
            for file in outgoing(place)[0]:
                (stage / file).parent.mkdir(exist_ok=True)
                (stage / file).symlink_to((place / file).resolve())
            (stage / "config.json").unlink()
            (stage / "config.json").write_bytes(_json(public_config(place)))
            api.create_repo(repo, private=private, exist_ok=True, repo_type="model")
            made = api.upload_folder(
                repo_id=repo, folder_path=stage, commit_message="Upload a model"
            )
    except UserError:
        raise
    except Exception as error:  # the hub's and its client's many ways to say no
        status = getattr(getattr(error, "response", None), "status_code", None)
        answer = type(error).__name__ if status is None else f"its answer is {status}"
        raise UserError(
            f"{repo}: could not be uploaded ({answer}); log in with 'hf auth login', and check that"
            " the hub can be reached and the name is yours."
        ) from error
    return str(made.commit_url)


def check_repo(repo: str) -> None:
    """Refuse what names no repository."""
    if not _REPO.fullmatch(repo):
        raise UserError(f"'{repo}' names no repository; write GROUP/NAME.")
