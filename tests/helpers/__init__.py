"""What several test modules share: small tables, tasks and recipes, and ways of calling commands."""
