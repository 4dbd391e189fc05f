"""Do tests and intervals hold their level? ``python -m benchmarks.calibration``."""
