"""Counts in words that a reader meets: singular and plural, and no count that a rounding makes 0."""


def counted(count: int, noun: str) -> str:
    """A count with its noun.

    Example:
        >>> counted(1, "subject"), counted(1200, "subject")
        ('1 subject', '1,200 subjects')
    """
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def amount(value: float) -> str:
    """A positive number of things that need not be whole: one decimal below ten.

    Example:
        >>> amount(41.3), amount(0.42), amount(0.003), amount(0.0)
        ('41', '0.4', 'under 0.1', '0')
    """
    if 0 < value < 0.05:
        return "under 0.1"
    return f"{value:.1f}" if 0 < value < 9.95 else f"{value:,.0f}"


def discounted(discount: float) -> str:
    """How later rewards count in a return, as every command and page says it.

    Example:
        >>> discounted(1.0), discounted(0.98)
        ('undiscounted', 'discounted by 0.98 a step')
    """
    return "undiscounted" if discount == 1 else f"discounted by {discount:g} a step"
