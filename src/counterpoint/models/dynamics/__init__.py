"""Models of the next state that cannot abduct."""
