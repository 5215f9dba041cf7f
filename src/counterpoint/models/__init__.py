"""Models of the dynamics: structural causal models and baselines."""
