"""Other projects' names for the same ops."""
