"""From a source to a prepared set: select, cut reports into sentences, turn files into rows."""

from medclip_debias.data.prepare.reading import Reading
from medclip_debias.data.prepare.run import merge, prepare, prepare_part

__all__ = ["Reading", "merge", "prepare", "prepare_part"]
