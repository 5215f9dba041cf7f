"""What learns to act."""
