"""What sentences claim: findings present or absent, where, how sure, how severe, how changed."""

from medclip_debias.data.text.claims.claim import Claim, Parsed
from medclip_debias.data.text.claims.lexicon import Lexicon, load_lexicon
from medclip_debias.data.text.claims.rules import RuleParser

__all__ = ["Claim", "Lexicon", "Parsed", "RuleParser", "load_lexicon"]
