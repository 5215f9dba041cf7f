"""What learns a policy from logged transitions."""
