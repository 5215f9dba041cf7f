"""Tasks that only the reproduction uses."""
