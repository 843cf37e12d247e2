"""The secret of a prepared set, with which results name its images, studies and patients.

Results hold digests in the place of ids. Ids are few and of known form (eight digits, in
MIMIC-CXR), so a digest that anybody can compute names nobody for a minute only: all ids are tried.
With a secret that stays beside the images, only those who hold the images can do that.
"""

from __future__ import annotations

import secrets
from pathlib import Path

from medclip_debias.errors import UserError
from medclip_debias.files import atomic_file, remove_leftovers

FILE = "items.key"
"""In the folder of the prepared set, readable by its owner alone."""

_BYTES = 32


def read_secret(folder: Path) -> bytes:
    """Return the secret of a prepared set; a set from before there were any gets one."""
    path = folder / FILE
    try:
        if not path.exists():
            _write(path, secrets.token_bytes(_BYTES))
        text = path.read_text(encoding="ascii")
        secret = bytes.fromhex(text)
    except OSError as error:
        raise UserError(
            f"{path}: cannot be read or written ({error.strerror or type(error).__name__}); results"
            " name items with the secret in it. Run the set's 'prepare' command again where its"
            " folder can be written (it adds this file alone), or ask its owner to let you read it."
        ) from error
    except ValueError:
        secret = b""
    if len(secret) != _BYTES:
        raise UserError(
            f"{path}: is damaged; copy it again, or remove it (new results then pair only with"
            " results written after that)."
        )
    return secret


def keep_secret(new: Path, old: Path) -> None:
    """Give the set ``new`` the secret of ``old``, in whose place it comes, else one of its own.

    So results from before and after an update that changed nothing still pair.
    """
    if (old / FILE).is_file():
        (new / FILE).unlink(missing_ok=True)
        _write(new / FILE, read_secret(old))
    read_secret(new)
    remove_leftovers(new)  # of a run that was killed while it wrote the secret


def _write(path: Path, secret: bytes) -> None:
    """Write the file whole, readable by its owner alone; what another process wrote first stays."""
    with atomic_file(path, private=True, first=True) as temporary:
        temporary.write_text(secret.hex() + "\n", encoding="ascii")
