"""`python -m reproduction`: the experiments of the paper and the benchmarks against known truth."""

from reproduction.command import main

main()
