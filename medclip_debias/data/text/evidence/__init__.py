"""What the claims of a report decide about the sentence of any other report."""

from medclip_debias.data.text.evidence.pairs import Evidence

__all__ = ["Evidence"]
