"""Benchmarks against other tools: ``python -m benchmarks.<name>`` prints a table."""
