"""The papers' studies: each a grid of cells, a measurement, a plot and a page of findings.

They stand on `medclip_debias.experiments` and are no part of the installed package.
"""

from __future__ import annotations

import sys
from collections.abc import Callable

from medclip_debias.errors import UserError


def as_script(main: Callable[[], object]) -> None:
    """Run a script; what a user can mend is one sentence, and the exit status 2."""
    try:
        main()
    except (UserError, FileNotFoundError) as error:
        print(error, file=sys.stderr)
        sys.exit(2)
