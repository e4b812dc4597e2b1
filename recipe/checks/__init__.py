"""What is refused before Ray starts: what would be something else, or fail late."""
