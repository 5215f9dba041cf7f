"""Read a user's table as transitions, and inspect it before."""
