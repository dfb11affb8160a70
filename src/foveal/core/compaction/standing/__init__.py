"""What the user said that still holds: rules, corrections and facts."""
