"""The exact values of ICU-Sepsis' policies: `python benchmarks/icu_sepsis_values.py` (extra `bench`).

A random action is drawn uniformly from all 25. The last line is JSON.
"""

import json

import torch

from reproduction.tasks.icu_sepsis import icu_sepsis


def main() -> None:
    process, expert = icu_sepsis()
    policies = {"random": torch.full_like(expert, 1 / expert.shape[1]), "expert": expert, "optimal": process.optimal()}
    print(json.dumps({"values": {name: round(process.value(policy), 4) for name, policy in policies.items()}}))


if __name__ == "__main__":
    main()
