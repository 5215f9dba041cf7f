"""Tables in, one table type inside."""
