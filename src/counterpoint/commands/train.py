"""`counterpoint train`: a policy from real and imagined rows."""

from dataclasses import dataclass
from pathlib import Path

import tyro

from counterpoint.commands.console import AUGMENTED, DATA, POLICY, Saving, existing, load_task, say, watching
from counterpoint.data import storage
from counterpoint.policies.d3qn import D3QN


@dataclass(frozen=True)
class Train:
    """Learn a D3QN policy. Reads augmented.parquet if it is there, else data.parquet; writes policy/."""

    run: Path
    """Run folder."""
    real_only: bool = False
    """Leave the imagined rows out: the paper's D3QN on the original data."""
    policy: tyro.conf.OmitArgPrefixes[D3QN] = D3QN()
    seed: int = 0
    """Seed of everything random."""
    device: str = "cpu"
    """cpu, cuda or auto."""
    saving: tyro.conf.OmitArgPrefixes[Saving] = Saving()

    def execute(self) -> None:
        augmented = self.run / AUGMENTED
        path = (
            augmented
            if augmented.exists() and not self.real_only
            else existing(self.run / DATA, "run simulate or fit first")
        )
        data, task = storage.read(path), load_task(self.run)
        with watching(self.run, self.saving) as monitor:
            policy = self.policy.fit(data, task, self.seed, monitor.stage("policy"), self.device)
        policy.save(self.run / POLICY)
        say(f"policy learned on {len(data)} rows of {path.name}, in {self.run / POLICY}")
