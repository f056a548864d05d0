"""Files that other engines load."""
