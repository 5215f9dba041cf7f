"""From a user's table to transitions: roles of columns, time, missing values, inspection."""
