"""Rolling out: one loop for the truth and for fitted models."""
