"""What a tensor parallel size buys: capacity, time and advice, from a config or headers alone."""
