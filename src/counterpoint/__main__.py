"""`python -m counterpoint` is the command line."""

from counterpoint.cli.main import main

main()
