"""The paper's methods as compositions of recipes."""
