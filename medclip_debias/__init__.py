"""Image-text learning from chest radiographs and their reports, corrected for false negatives."""

__version__ = "0.1.0"
