"""All simulations of tests and intervals, one after the other."""

from benchmarks.calibration import intervals


def main() -> None:
    from benchmarks.calibration import interleaving

    intervals.main()
    interleaving.main()


if __name__ == "__main__":
    main()
