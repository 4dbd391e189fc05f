"""Training: from data and settings to a fitted model."""
