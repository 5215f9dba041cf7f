"""Errors, settings, seeding, artifacts, provenance and statistics."""
