"""What `test_search_commands.py` shares with other test modules."""

FIT = ["scm:density", "--scm.ensemble", "2", "--scm.hidden", "8", "--scm.likelihood.schedule.steps", "100"]

TABLE = ["--subject", "id", "--time", "t", "--state", "lactate", "--action", "dose", "--reward", "r", "--done", "died"]
