"""Clinical worlds: simulators with hidden states and differing subjects, logged as a table by a behaviour policy."""
