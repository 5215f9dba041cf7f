"""Subjects that differ: dynamics with random effects, whose posterior is a sum over a subject's rows."""
