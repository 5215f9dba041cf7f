"""What `test_evaluation_bench.py` shares with other test modules."""

import torch

CHANCE = torch.tensor([[[0.4, 0.2, 0.2, 0.2], [0.2, 0.2, 0.1, 0.5]], [[0.3, 0.4, 0.1, 0.2], [0.2, 0.3, 0.4, 0.1]]])

EXPERT = torch.tensor([[0.6, 0.4], [0.5, 0.5]])
