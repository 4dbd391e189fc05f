"""Speed, measured beside other tools: `python -m benchmarks.<name>` prints a table."""
