"""The commands; each is a frozen dataclass whose fields are its flags and whose `execute` does the work."""
