"""From prompt scores to decisions: probabilities, another prevalence, thresholds, abstention."""
