"""Puts the committed results together as docs/benchmarks.md."""

from __future__ import annotations

import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.common import RESULTS
from galton import files

PARTS = [
    (
        "Certificates",
        "certificates",
        "16 epochs of 128 batches; claims at 1.25 times the true delta, failure probability 0.0015 * delta over both "
        "directions. Samples and seconds are of the default betting certificate, both directions together. Figures "
        "marked * are extrapolated: the samples that the same guarantee takes with plain values in [0, 1] "
        "(Chernoff-KL, for a mean that just passes), times the time a sample measured in the same run. jax-privacy is "
        "its balls-in-bins accountant on the same Toeplitz C, PLD_accounting one upper bound in one direction "
        "for C = I. Run: `python benchmarks/certificates.py`.",
    ),
    (
        "Beside other packages",
        "peers",
        "Each package in a process and an environment of its own. Times are processor seconds, all threads together, "
        "imports left out, compiling included; * is extrapolated from a measured rate; - is not offered; a cell that "
        'used up its budget says "more than". Run: `python benchmarks/peers.py`.',
    ),
    (
        "Sampling rate",
        "sampling",
        "Samples a second at 128 bins, two cores, 64-band C. Run: `python benchmarks/sampling.py`.",
    ),
    (
        "Optimising C",
        "optimize_figures",
        "16 epochs of 128 batches, delta 1e-5: prefix RMSE with the noise multiplier calibrated on fresh samples "
        "(tau 1.05, confidence 0.999), and the time of everything, compilation included, in a process of its own. "
        "The column before the multiplier is the best banded Toeplitz C with Poisson sampling. "
        "Run: `python benchmarks/optimize.py figures`.",
    ),
    (
        "Bins redrawn in every epoch",
        "redrawn",
        "Prefix RMSE at delta 1e-5, C optimised for each way to draw batches, noise calibrated on fresh samples (tau "
        "1.05) and then certified; cyclic Poisson has the best banded Toeplitz C. Seconds are processor time, "
        "compilation included where it was not kept from before. Measured on busy cores, in several runs while the "
        "search was being changed (epsilon 0.5, 1 and 4 before the others); rows for one draw, epsilon 0.25 and 2, and "
        "most of 128 bins are missing (epsilon 4: error 12.18, calibrated, not certified). 16 bands were tried only at "
        "epsilon 16, after the BLT. "
        "Run: `python benchmarks/redrawn.py`.",
    ),
    (
        "The paper's timing table",
        "optimize_timing",
        "Seconds for 300 iterations of the paper's method (plain samples drawn anew, bisection, gradient descent, BLT "
        "with 4 buffers, epsilon 1) on this machine, extrapolated (*) from one or two iterations, and what it reports "
        "for its V100. It is given our Gram reduction, without which it would be slower by the number of epochs. "
        "Ours is the whole of `galton optimize blt:4`, certified calibration included. The RMSE of 300 steps is "
        "that of the same descent with 512 importance samples a step, which takes minutes instead of hours. "
        "Run: `python benchmarks/optimize.py timing`.",
    ),
    (
        "How many samples the search needs",
        "optimize_samples",
        "RMSE, judged on 32,768 fresh importance samples, after at most 12 L-BFGS iterations of BLT-4 on so many "
        "frozen samples a direction, plain and tilted, at epsilon 0.5, 1, 2 and 4 (2048 rounds, 128 bins, delta 1e-5). "
        "Too few: no draw had a positive value. Run: `python benchmarks/optimize.py samples`.",
    ),
    (
        "Ten thousand rounds",
        "optimize_rounds",
        "Scaled families at epsilon 1, delta 1e-5, with the peak of resident memory. Time grows with the square of the "
        "number of bins: at 500 bins the search had not ended after ten minutes on busy cores. "
        "Run: `python benchmarks/optimize.py rounds`.",
    ),
    (
        "Noise",
        "noise",
        "Milliseconds a round of noise against jax-privacy's, in one run. Run: `python benchmarks/noise.py`.",
    ),
    (
        "Noise without buffers",
        "noise_memory",
        "The two forms of the noise: `buffers`, and `recompute`, which keeps nothing and draws z of earlier rounds "
        "again (`auto:2GB` takes buffers if they fit, else recomputes). From round 64 on, in processes of their own; "
        "the peak is above that of the process before, and has the noise itself (0.04 and 0.4 GB). An inverse of W "
        "bands takes W draws in every round; a short banded C those that are not lost in rounding (docs/math.md, "
        "section 7). Measured on busy cores. Run: "
        "`python benchmarks/noise.py --memory`.",
    ),
    (
        "A step on CIFAR-10",
        "cifar",
        "Seconds a training step on 500 images, clipping, noise and update included (torch.func: the clipped sum "
        "only), taking turns in one run. Run: `python benchmarks/cifar.py`.",
    ),
    (
        "How far a step on CIFAR-10 is from the processor's rate",
        "cifar_rate",
        "Processor seconds (on two idle cores half as many pass) of a clipped sum of 500 images, least of 7 turns: how "
        "long its products of matrices would take at the rate of a large one (2,048 rows and columns), how long they "
        "take by themselves in the shapes that they have, and how long the step takes, with patches, tanh, pooling and "
        "norms. Run: `python benchmarks/cifar_rate.py`.",
    ),
    (
        "Many bins",
        "many_bins",
        "Certificates of (1, 1e-5)-DP for the full square root, each in a process of its own: without a matrix of bins "
        "times bins, and with the Gram matrix at the same noise where both run. CPU seconds are those of the process, "
        "compiling included; wall time was measured on a busy machine. The noise is found by the quick estimator with "
        "a factor of 1.05 in delta to spare (1.25 at a million bins). Up to 8,192 bins compiling is most of it "
        "(programs for 10,000 bins were cached). Run: `python benchmarks/many_bins.py`.",
    ),
    (
        "What merging costs",
        "merging",
        "delta with f neighbouring bins merged over delta with none: nearly free for long memory, not for identity.",
    ),
    (
        "Agreement",
        "agreement",
        "Mixture-first delta by the default sampler with its certified 99.9% interval, at most 200,000 samples, "
        "against an independent run: plain sampling at 1e-4, the importance-sampling mixture below. Where R/delta is "
        "in the thousands (C near identity, small epsilon, tiny delta) the interval is honest and wide, and no "
        "independent run is affordable. Run: `python benchmarks/agreement.py`.",
    ),
]

PICTURES = {
    "certificates": "seconds of a certificate against epsilon",
    "many_bins": "processor time and memory of a certificate against bins",
    "redrawn": "error against epsilon, relative to banded C with cyclic Poisson",
}
"""What the picture of a part shows."""

LIMITS = """## Independent noise

`benchmarks/independent.py`: C = I without samples, by sums of likelihoods ([math.md](math.md), section 11), at epsilon
0.25 to 16, delta 1e-5, 1e-8, 1e-10, 1e-12 and 32, 128, 1,000 bins, noise at which delta is the claim / 1.05. All 84
claims are certified, with 0 samples. R/delta is what the tilted sampler, the method before, would need in samples.

| bins | certificate, CPU | calibration, CPU | distance of the two bounds | R/delta, tilted |
|---|---|---|---|---|
| 32 | 0.02 to 0.2 s | 0.6 to 1.0 s | at most 1.6% | 5 to 4.6e7 |
| 128 | 0.1 to 0.3 s | 1.0 to 1.8 s | at most 3.2% | 6 to 5.7e8 |
| 1,000 | 0.8 to 2.9 s | 3.5 to 8.8 s | at most 2.7% | 6 to 7.2e9 |

On a machine that was busy with other work; all rows are in `benchmarks/results/independent.md`. PLD_accounting took 20
to 160 s for brackets of 0.3 to 5% in the cells of `tests/data/random_allocation.json`,
at deltas above 1e-9; the bounds agree in all of them.

## Where it is slow, and why

For C near the identity, with small epsilon and tiny delta, the range of the tilted sampler is far above delta: the
tilt is a moment of the privacy loss, and there the moments come from rare samples in which one mode dominates, while
delta comes from many modes that are each slightly raised. The sampler stays unbiased and its interval valid, but
proving a claim takes R/delta samples, which is why some rows of few bands say "not proved". For C = I itself nothing is
sampled any more (see "Independent noise" above; the identity rows of the certificates table are from before that); for
every C with a long memory the problem fades.

## How far these figures can be trusted

They are single runs on two noisy cores. "Not proved" means not with 8 million samples per direction. The certificates
table compares one accepted run of galton with the number of samples at which a plain mean just passes; its plain and
jax-privacy columns are that number divided by the rate measured in the same run, calculated afterwards. In the
agreement table the importance-sampling mixture also placed the noise multiplier, with other seeds, and plain sampling
at 1e-4 is itself only good to 2 to 9 percent.

The optimiser's tables are single runs with one seed. Timing was measured at the highest priority while tests ran at a
low priority; a quiet run of the same cells an hour before was up to 40% faster in both columns. Extrapolated seconds
vary by a factor of two between neighbouring cells, as bisection takes more or fewer steps. RMSE includes the spread
of the calibration, about 0.1%. The table of sample counts was made by the code before `Study` was moved out of the
benchmark, with one seed: plain rows scatter by a percent.
"""


def main() -> None:
    """Writes docs/benchmarks.md."""
    about = json.loads((RESULTS / "certificates.json").read_text())
    versions = ", ".join(f"{name} {value}" for name, value in about["versions"].items())
    text = ["# Speed and agreement", "", f"Measured on {about['date']}, {about['machine']}; {versions}.", ""]
    for title, name, words in PARTS:
        path = RESULTS / f"{name}.md"
        if path.exists():
            text += [f"## {title}", "", words, "", path.read_text()]
        if name in PICTURES:
            text += [f"![{PICTURES[name]}](../benchmarks/results/{name}.png)", ""]
    files.write_text(Path(__file__).parents[1] / "docs" / "benchmarks.md", "\n".join([*text, LIMITS]))


if __name__ == "__main__":
    main()
