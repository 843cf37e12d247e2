"""Where in an image a sentence scores high: heatmaps, box features, pictures."""
