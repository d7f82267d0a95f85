"""One module for each relation endpoint: what is read from it and what is written to it."""
