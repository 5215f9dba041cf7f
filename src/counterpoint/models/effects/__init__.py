"""Effects of doses estimated from a log for their own sake, apart from any model of the dynamics."""
