"""What follows from a trace: answers in words and numbers. Knows nothing of how they are drawn."""
