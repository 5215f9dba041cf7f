"""The one exception that a user sees: one line that names the thing and the fix."""


class CounterpointError(ValueError):
    """Something in the user's input is wrong; the message says what, where, and how to mend it."""


def require(holds: bool, complaint: str) -> None:
    """Refuse with one line where something does not hold."""
    if not holds:
        raise CounterpointError(complaint)


class CounterpointWarning(UserWarning):
    """What a user should know was done to their data; one line."""
