"""Search: find studies by a sentence or an image, in two stages (docs/search.md)."""
