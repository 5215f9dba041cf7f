"""What `test_hd.py` shares with other test modules."""

from reproduction.logs import Protocol

PROTOCOL = Protocol(logged_trials=3, steps=10, evaluation_trials=2)
