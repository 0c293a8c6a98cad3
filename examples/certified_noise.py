"""Calibrates and certifies a real mechanism: 16 epochs of 128 batches, 64-band square root, epsilon 1, delta 1e-5."""

from __future__ import annotations

import galton
from galton.cli.show import print_table
from galton.progress import progress_bar

BINS, EPOCHS, EPSILON, DELTA = 128, 16, 1.0, 1e-5


def main() -> None:
    """Finds the noise, puts the claim to the test, and says what may be stated."""
    strategy = galton.square_root(rounds=BINS * EPOCHS, bands=64)
    pair = galton.dominating_pair(strategy, BINS)
    with progress_bar() as progress:
        options = galton.Options(progress=progress)
        calibration = galton.calibrate(pair, EPSILON, DELTA, options=options)
        certificate = galton.certify(pair.at(calibration.noise_multiplier), EPSILON, DELTA, options=options)
    multiplier = calibration.noise_multiplier
    sigma = multiplier * strategy.sensitivity(BINS)
    print_table(
        "balls-in-bins with correlated noise",
        [
            ("mechanism", f"{BINS * EPOCHS} rounds in {EPOCHS} epochs of {BINS} batches, square root with 64 bands"),
            ("target", f"({EPSILON:g}, {DELTA:g})-DP, add-or-remove adjacency"),
            ("noise multiplier", f"{multiplier:.4f} (sensitivity 1 over the whole run)"),
            ("unamplified", f"{calibration.unamplified:.4f}, {calibration.unamplified / multiplier:.2f} times as much"),
            ("prefix-sum error", f"{sigma * strategy.rmse():.2f} root mean square, clip norm 1"),
            ("verdict", "ACCEPTED" if certificate.accepted else "REJECTED"),
            ("samples", f"{certificate.samples:,}, failure probability {certificate.failure_probability:.1e}"),
            ("statement", certificate.statement),
            ("time", f"{calibration.seconds:.1f} s to calibrate, {certificate.seconds:.1f} s to certify"),
        ],
    )


if __name__ == "__main__":
    main()
