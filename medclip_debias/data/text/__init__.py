"""From the text of a report to its sections and sentences."""
