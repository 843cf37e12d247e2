"""Claims that another program wrote are checked before they are believed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from medclip_debias.data.text.claims.claim import FIELDS, Claim
from medclip_debias.data.text.claims.lexicon import Lexicon
from medclip_debias.errors import UserError, did_you_mean

_DEFAULTS = {"certainty": "certain"}


def checked_claim(where: str, values: Mapping[Any, Any], lexicon: Lexicon) -> Claim:
    """Make a claim of a row, or of an answer, that another program wrote.

    Args:
        where: file and row, for the message.
        values: ``finding`` and ``polarity``, and what else is said; blank where it is not.
        lexicon: says which findings there are.

    Raises:
        UserError: the lexicon has no such finding, or a field cannot have its value.
    """
    finding = str(values["finding"])
    named = lexicon.named(finding)
    if named not in lexicon.ancestors:
        raise UserError(
            f"{where}: the lexicon '{lexicon.name}' has no finding of that name"
            f"{did_you_mean(finding, lexicon.names)}; rename it, or add it with --lexicon."
        )
    said: dict[str, str] = {}
    for column, allowed in FIELDS.items():
        value = str(values.get(column) or _DEFAULTS.get(column, ""))
        if value not in allowed:
            shown = ", ".join(v or "blank" for v in allowed)
            raise UserError(f"{where}: column '{column}' must be one of: {shown}.")
        said[column] = value
    return Claim(named, **said)
