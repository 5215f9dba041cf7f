"""How good is it, really."""
