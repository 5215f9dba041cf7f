"""What a policy is worth, from the log of others alone: estimators, how sure they are, and when they cannot know."""
