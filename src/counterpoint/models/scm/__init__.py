"""Structural causal models: abduct the noise, change the action, predict."""
