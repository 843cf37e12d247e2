"""A model folder to the hub: what would go out is listed, and goes only when asked to."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path

from medclip_debias.errors import UserError
from medclip_debias.hub.public import CARD, EVAL_RESULTS, FILES, public_config

_REPO = re.compile(r"[A-Za-z0-9][\w.-]{0,95}/[A-Za-z0-9][\w.-]{0,95}")


@dataclass(frozen=True)
class Outgoing:
    """One file of an upload.

    Attributes:
        name: in the repository.
        content: its bytes, or the file that holds them.
        size: in bytes.
    """

    name: str
    content: bytes | Path
    size: int


def outgoing(folder: Path) -> tuple[list[Outgoing], list[str]]:
    """What an upload of a model folder holds, and the names of what stays here.

    Raises:
        UserError: it is no model folder of this project, or lacks a file or its card.
    """
    folder = Path(folder)
    config = public_config(folder)
    for name in FILES:
        if not (folder / name).is_file() and name != "golden.json":
            hint = "; write it with 'medclip-debias card'" if name == CARD else ""
            raise UserError(f"{folder}: holds no {name}{hint}.")
    found = []
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        name = path.relative_to(folder).as_posix()
        if name == "config.json":
            text = (json.dumps(config, indent=2, allow_nan=False) + "\n").encode()
            found.append(Outgoing(name, text, len(text)))
        elif name in FILES or re.fullmatch(rf"{re.escape(EVAL_RESULTS)}/[\w.-]+\.yaml", name):
            found.append(Outgoing(name, path, path.stat().st_size))
    sent = {one.name for one in found}
    every = (path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())
    return found, sorted(set(every) - sent)


def push(
    folder: Path,
    repo: str,
    *,
    private: bool = True,
    endpoint: str | None = None,
    token: str | None = None,
    message: str = "Upload a model",
) -> str:
    """Upload `outgoing` as one commit, and nothing else.

    Args:
        folder: of the model, with its card.
        repo: ``group/name``; made if it is not there.
        private: whether a repository that is made is seen by its owner alone.
        endpoint: of the hub; by default the client's (``HF_ENDPOINT``).
        token: of the hub; by default the one that its client keeps.
        message: of the commit.

    Returns:
        Address of the commit.

    Raises:
        UserError: as of `outgoing`; or the hub cannot be reached, or refuses.
    """
    from huggingface_hub import CommitOperationAdd, HfApi

    check_repo(repo)
    files, _ = outgoing(folder)
    api = HfApi(endpoint=endpoint, token=token)
    operations = [
        CommitOperationAdd(
            one.name, one.content if isinstance(one.content, bytes) else str(one.content)
        )
        for one in files
    ]
    try:
        api.create_repo(repo, private=private, exist_ok=True, repo_type="model")
        made = api.create_commit(repo, operations, commit_message=message, repo_type="model")
    except Exception as error:  # the hub's and its client's many ways to say no
        status = getattr(getattr(error, "response", None), "status_code", None)
        answer = type(error).__name__ if status is None else f"its answer is {status}"
        raise UserError(
            f"{repo}: could not be uploaded ({answer}); log in with 'hf auth login', and see"
            " whether the hub can be reached and the name is yours."
        ) from error
    return str(made.commit_url)


def check_repo(repo: str) -> None:
    """Refuse what names no repository.

    Raises:
        UserError: it is not ``group/name``.
    """
    if not _REPO.fullmatch(repo):
        raise UserError(f"'{repo}' names no repository; write GROUP/NAME.")
