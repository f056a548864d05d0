"""What other engines call a rank's tensors and how they lay them out, as data."""
