"""`python -m counterpoint` is the command line."""

from counterpoint.cli import main

main()
