"""What can be done, what it is worth, and simulators that know the truth."""
