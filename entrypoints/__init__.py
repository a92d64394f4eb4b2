"""The programs that the outside starts: command line, in-container train, built-in training programs."""
