"""Settings of the CIFAR-10 study tried on held-out training images; a run adds a line to results/cifar_search.jsonl.

A proxy of a run, several times cheaper: the plan's rounds, its C and the noise of its batches of 500, but the mean of
`batch` examples instead of 500. In 2000 rounds the noise moves a model several times as far as the choice of examples
does, so little changes but the time. Products are in bfloat16 (torch), weights, norms and noise are not.
The noise of a plan and a seed is drawn once: runs that share it are paired.

python benchmarks/cifar_search.py rate=0.25 momentum=0.95,0.9,0 batch=50
"""

from __future__ import annotations

import itertools
import json
import math
import os
import sys
import tempfile
import time
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.linalg import solve_triangular
from torch import Tensor
from torch.nn import functional

from benchmarks.common import markdown
from galton.errors import InvalidArgument
from galton.optimization import unamplified_optimum
from galton.plan import load_plan
from galton.strategies import Strategy
from galton.workloads import cooldown, momentum
from reproduction.cifar.data import Part, load_cifar
from reproduction.cifar.models import NETWORKS

RESULTS = Path(__file__).parent / "results" / "cifar_search.jsonl"
PLANS = Path(__file__).parents[1] / "reproduction" / "results" / "cifar" / "plans"
SCRATCH = Path(os.environ.get("GALTON_SCRATCH", Path(tempfile.gettempdir()) / "galton-cifar-search"))
HELD_OUT, EXPECTED, SEED = 10_000, 500, 1
CHUNK = 16_384
AT_ONCE = 50
"""Examples whose gradients are in the cache together."""
Params = dict[str, Tensor]


@dataclass(frozen=True)
class Run:
    """What is tried.

    Attributes:
      model: name of the network.
      plan: folder of the plan whose C and noise are taken.
      scale: of that noise.
      workload: choose C for momentum and the falling rate instead of prefix sums (for an unamplified plan).
      rate: learning rate at the start.
      momentum: of gradient descent.
      start: share of the run after which the rate falls.
      final: share of the rate that is left in the end.
      batch: examples in a round.
      clip: clip norm; the sum is divided by it, so that the noise stays the same.
      normalize: every gradient is brought to the clip norm, small ones too.
      init: `he` as in the study, `glorot`, `torch`; `zero`: he, but the last layer starts at 0.
      gain: of the weights at the start.
      inputs: `pm1` for x / 127.5 - 1, `channels` for mean 0 and deviation 1.
      activation: tanh, relu, or softsign.
      decay: of the weights, in a round at rate 1.
      augment: `flip`, `shift` (up to 4 pixels) or both in one word.
      seed: of the start, the order of examples and the noise.
      held_out: train on 40,000 images and measure on the other 10,000 training images; else train on all, in the same
        order in every epoch as the plan has it, and measure on the test set.
    """

    model: str = "vgg"
    plan: str = "unamplified-epsilon8"
    scale: float = 1.0
    workload: bool = False
    rate: float = 0.25
    momentum: float = 0.95
    start: float = 0.25
    final: float = 0.05
    batch: int = 50
    clip: float = 1.0
    normalize: bool = False
    init: str = "he"
    gain: float = 1.0
    inputs: str = "pm1"
    activation: str = "tanh"
    decay: float = 0.0
    augment: str = ""
    seed: int = SEED
    held_out: bool = True


def shapes(model: str) -> dict[str, tuple[int, ...]]:
    """Of all parameters, biases after their weights."""
    network = NETWORKS[model]
    layers: dict[str, tuple[int, ...]] = {}
    inputs = 3
    for index, convolution in enumerate(network.convolutions):
        layers[f"conv{index}"] = (convolution.channels, inputs, 3, 3)
        inputs = convolution.channels
    layers |= {"dense": (2048, network.dense), "classes": (network.dense, 10)}
    both: dict[str, tuple[int, ...]] = {}
    for name, shape in layers.items():
        both |= {name: shape, f"{name}_bias": (shape[0] if name.startswith("conv") else shape[1],)}
    return both


SHAPES = {model: shapes(model) for model in NETWORKS}
SIZES = {model: sum(math.prod(shape) for shape in SHAPES[model].values()) for model in NETWORKS}
MOST = max(SIZES.values())


def split(flat: Tensor, run: Run) -> Params:
    """The parameters that a vector holds."""
    ends = itertools.accumulate(math.prod(shape) for shape in SHAPES[run.model].values())
    named, pairs = SHAPES[run.model].items(), itertools.pairwise((0, *ends))
    return {name: flat[first:end].view(shape) for (name, shape), (first, end) in zip(named, pairs, strict=True)}


def pieces(x: Tensor, size: int) -> list[Tensor]:
    """A tensor in pieces of at most this many rows."""
    return [x[first : first + size] for first in range(0, len(x), size)]


def start(run: Run) -> Tensor:
    """Weights at the start."""
    generator = torch.Generator().manual_seed(run.seed)
    flat = torch.zeros(SIZES[run.model])
    for name, part in split(flat, run).items():
        if name.endswith("_bias"):
            continue
        convolution = name.startswith("conv")
        inputs = math.prod(part.shape[1:]) if convolution else part.shape[0]
        outputs = part.shape[0] * 9 if convolution else part.shape[1]
        variance = 2 / (inputs + outputs)
        if run.init in ("he", "zero") and convolution:
            variance = 2 / inputs
        if run.init == "torch":
            variance = 1 / (3 * inputs)
        if run.init == "zero" and name == "classes":
            variance = 0.0
        part.copy_(torch.randn(part.shape, generator=generator) * math.sqrt(variance) * run.gain)
    return flat


def noise(run: Run) -> NDArray[np.float16]:
    """Noise of all rounds, drawn once for a plan and a seed."""
    path = SCRATCH / f"{run.plan}{f'-{run.momentum:g}-{run.start:g}' if run.workload else ''}-{run.seed}.npy"
    if not path.exists():
        plan = load_plan(PLANS / run.plan)
        strategy: Strategy = plan.strategy
        if run.workload:
            if plan.scheme.kind != "shuffle":
                raise InvalidArgument("workload", run.workload, "is for plans without amplification")
            used = momentum(plan.rounds, run.momentum, cooldown(plan.rounds, run.start, run.final))
            strategy = unamplified_optimum(plan.spec, plan.bins, plan.rounds, used)
        draw(strategy.matrix(), plan.noise_multiplier * strategy.sensitivity(plan.bins), path, run.seed)
    kept: NDArray[np.float16] = np.load(path, mmap_mode="r")
    return kept[:, : SIZES[run.model]]


def draw(matrix: Any, deviation: float, path: Path, seed: int) -> None:
    """Writes deviation * C^-1 z."""
    import jax.numpy as jnp

    rounds = matrix.shape[0]
    inverse = jnp.asarray(solve_triangular(matrix, np.eye(rounds), lower=True) * deviation, jnp.float32)
    path.parent.mkdir(parents=True, exist_ok=True)
    there = path.with_suffix(".part")
    rows = np.lib.format.open_memmap(there, "w+", np.float16, (rounds, MOST))
    random = np.random.default_rng(seed)
    for first in range(0, MOST, CHUNK):
        width = min(CHUNK, MOST - first)
        z = random.standard_normal((rounds, width), np.float32)
        rows[:, first : first + width] = np.asarray(jnp.matmul(inverse, z)).astype(np.float16)
    rows.flush()
    there.rename(path)


def prepared(run: Run, part: Part) -> Tensor:
    """Images, (count, 3, 32, 32)."""
    x = torch.from_numpy(part.images).permute(0, 3, 1, 2).float() / 127.5 - 1
    if run.inputs == "channels":
        mean = torch.tensor([0.4914, 0.4822, 0.4465]).view(1, 3, 1, 1) * 2 - 1
        x = (x - mean) / (2 * torch.tensor([0.247, 0.2435, 0.2616]).view(1, 3, 1, 1))
    return x.to(torch.bfloat16).contiguous(memory_format=torch.channels_last)


ACTIVATIONS = {"tanh": torch.tanh, "relu": torch.relu, "softsign": functional.softsign}


def forward(run: Run, params: Params, x: Tensor, kept: dict[str, tuple[Tensor, Tensor]] | None = None) -> Tensor:
    """Logits; `kept` receives inputs and outputs of every layer."""
    active = ACTIVATIONS[run.activation]

    def layer(name: str, x: Tensor, stride: int = 1) -> Tensor:
        weights, bias = params[name], params[f"{name}_bias"]
        if name.startswith("conv"):
            y = functional.conv2d(x, weights, bias, stride, padding=1)
        else:
            y = torch.addmm(bias, x, weights)
        if kept is not None:
            y.requires_grad_()
            kept[name] = (x.detach(), y)
        return y

    for index, convolution in enumerate(NETWORKS[run.model].convolutions):
        x = layer(f"conv{index}", x, convolution.stride)
        x = active(functional.max_pool2d(x, 2) if convolution.pooled else x)
    x = active(layer("dense", x.permute(0, 2, 3, 1).flatten(1)))
    return layer("classes", x)


def patches(x: Tensor, stride: int = 1) -> Tensor:
    """(count, places, 9 channels), the channel first in a column as in the weights."""
    count, channels, height, width = x.shape
    wide = functional.pad(x.permute(0, 2, 3, 1), (0, 0, 1, 1, 1, 1))
    shifts = [wide[:, i : i + height : stride, j : j + width : stride] for i in range(3) for j in range(3)]
    return torch.cat(shifts, dim=-1).view(count, -1, 9 * channels)


def clipped_mean(run: Run, params: Params, x: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """The mean of clipped gradients, over the clip norm, as a vector; and the norms."""
    pairs = zip(pieces(x, AT_ONCE), pieces(labels, AT_ONCE), strict=True)
    sums, norms = zip(*(clipped_sum(run, params, *pair) for pair in pairs), strict=True)
    return torch.stack(sums).sum(0) / len(labels), torch.cat(norms)


def clipped_sum(run: Run, params: Params, x: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """The sum over a few examples."""
    count = len(labels)
    layers: dict[str, tuple[Tensor, Tensor]] = {}
    loss = functional.cross_entropy(forward(run, params, x, layers).float(), labels, reduction="sum")
    reaching = dict(zip(layers, torch.autograd.grad(loss, [y for _, y in layers.values()]), strict=True))
    squares, parts = torch.zeros(count), {}
    for name, (inputs, _) in layers.items():
        g = reaching[name].detach()
        if name.startswith("conv"):
            width = g.shape[-1]
            g = g.permute(0, 2, 3, 1).reshape(count, -1, g.shape[1])
            kernel = torch.bmm(g.transpose(1, 2), patches(inputs, inputs.shape[-1] // width))
            bias = g.float().sum(1)
            flat = kernel.flatten(1)
            squares += torch.linalg.vector_norm(flat, dim=1).float().square() + bias.square().sum(1)
            parts[name] = (kernel, bias)
        else:
            squares += (inputs.float().square().sum(1) + 1) * g.float().square().sum(1)
            parts[name] = (inputs, g)
    norms = squares.sqrt()
    weight = 1 / norms.clamp(min=1e-6 if run.normalize else run.clip)
    sums = []
    for name, (first, second) in parts.items():
        if name.startswith("conv"):
            total = torch.mv(first.flatten(1).t(), weight.to(first.dtype)).float().view(first.shape[1], 3, 3, -1)
            sums += [total.permute(0, 3, 1, 2).flatten(), (weight[:, None] * second).sum(0)]
        else:
            weighted = second.float() * weight[:, None]
            sums += [(first.float().t() @ weighted).flatten(), weighted.sum(0)]
    return torch.cat(sums), norms


def varied(run: Run, x: Tensor, random: np.random.Generator) -> Tensor:
    """One view of every example."""
    if "flip" in run.augment:
        chosen = torch.from_numpy(random.random(len(x)) < 0.5)
        x = torch.where(chosen[:, None, None, None], x.flip(3), x)
    if "shift" in run.augment:
        wide = functional.pad(x, (4, 4, 4, 4))
        moves = random.integers(0, 9, (len(x), 2))
        x = torch.stack([image[:, i : i + 32, j : j + 32] for image, (i, j) in zip(wide, moves, strict=True)])
    return x.contiguous(memory_format=torch.channels_last)


def score(run: Run, flat: Tensor, x: Tensor, labels: Tensor) -> tuple[float, float]:
    """Accuracy and mean loss."""
    params = split(flat.to(torch.bfloat16), run)
    with torch.no_grad():
        logits = torch.cat([forward(run, params, some).float() for some in pieces(x, 250)])
    loss = float(functional.cross_entropy(logits, labels))
    return float((logits.argmax(1) == labels).float().mean()), round(loss, 4)


def train(run: Run, train_set: Part, held_out: Part) -> dict[str, Any]:
    """One run."""
    z = noise(run) if run.scale else None
    rounds = 2000 if z is None else len(z)
    x, labels = prepared(run, train_set), torch.from_numpy(train_set.labels).long()
    other, other_labels = prepared(run, held_out), torch.from_numpy(held_out.labels).long()
    random = np.random.default_rng(run.seed)
    flat, velocity = start(run), torch.zeros(SIZES[run.model])
    schedule = run.rate * cooldown(rounds, run.start, run.final)
    curve, order = list[tuple[float, ...]](), random.permutation(len(x))
    shares: list[float] = []
    begun, at = time.process_time(), 0
    for turn in range(rounds):
        if at + run.batch > len(order):
            order, at = random.permutation(len(x)) if run.held_out else order, 0
        chosen = order[at : at + run.batch]
        at += run.batch
        params = split(flat.to(torch.bfloat16), run)
        for name in params:
            if name.startswith("conv") and not name.endswith("_bias"):
                params[name] = params[name].contiguous(memory_format=torch.channels_last)
        mean, norms = clipped_mean(run, params, varied(run, x[chosen], random), labels[chosen])
        shares.append(float((norms > run.clip).float().mean()))
        if z is not None:
            mean += torch.from_numpy(np.array(z[turn])).float() * (run.scale / EXPECTED)
        velocity.mul_(run.momentum).add_(mean)
        flat.mul_(1 - schedule[turn] * run.decay).sub_(velocity, alpha=float(schedule[turn]))
        if (turn + 1) % (rounds // 5) == 0 and turn + 1 < rounds:
            curve.append((turn + 1, *score(run, flat, other[:2500], other_labels[:2500])))
            print(curve[-1], f"{time.process_time() - begun:.0f} s", flush=True)
            if not math.isfinite(curve[-1][2]) or (turn + 1 >= 800 and curve[-1][1] < 0.2):
                break
    accuracy, loss = score(run, flat, other, other_labels)
    return {
        **asdict(run),
        "accuracy": accuracy,
        "loss": loss,
        "curve": curve,
        "share_clipped": [round(float(np.mean(part)), 3) for part in np.array_split(shares, 5)],
        "weights": round(float(flat.square().mean().sqrt()), 5),
        "cpu_seconds": round(time.process_time() - begun, 1),
        "date": time.strftime("%Y-%m-%dT%H:%M:%S"),
    }


def wishes(words: list[str]) -> list[Run]:
    """All combinations of what is asked for."""
    kinds = {name: type(value) for name, value in asdict(Run()).items()}
    lists: dict[str, list[Any]] = {}
    for word in words:
        name, _, values = word.partition("=")
        kind = kinds[name]
        lists[name] = [value == "yes" if kind is bool else kind(value) for value in values.split(",")]
    return [Run(**dict(zip(lists, values, strict=True))) for values in itertools.product(*lists.values())]


def earlier() -> list[dict[str, Any]]:
    """The lines of earlier runs."""
    return [json.loads(line) for line in RESULTS.read_text().splitlines()] if RESULTS.exists() else []


def settings_of(line: dict[str, Any]) -> Run:
    """The run of a line; what an older line does not know is as by default."""
    return Run(**{field.name: line[field.name] for field in fields(Run) if field.name in line})


def write_table(lines: list[dict[str, Any]]) -> None:
    """Writes results/cifar_search.md: what is not as by default, and how it ended."""
    body = []
    for line in lines:
        run, usual = asdict(settings_of(line)), asdict(Run())
        shown = ("model", "batch", "rate", "start")
        other = [f"{name}={value}" for name, value in run.items() if value != usual[name] and name not in shown]
        way = ", ".join(f"{100 * point[1]:.1f}" for point in line["curve"])
        clipped = f"{line['share_clipped'][0]:.0%} to {line['share_clipped'][-1]:.0%}"
        end = [f"{100 * line['accuracy']:.2f}", f"{line['loss']:.2f}", way, clipped, f"{line['cpu_seconds']:.0f}"]
        body.append([*(str(run[name]) for name in shown), "; ".join(other), *end])
    header = ["model", "batch", "rate", "falls after", "other", "accuracy", "loss", "on the way", "clipped", "CPU s"]
    markdown("cifar_search", header, body)


def main() -> None:
    """Runs what is asked for and not yet there."""
    torch.set_num_threads(1)
    data = load_cifar()
    images, labels = data.train.images, data.train.labels
    halves = {
        True: (Part(images[:-HELD_OUT], labels[:-HELD_OUT]), Part(images[-HELD_OUT:], labels[-HELD_OUT:])),
        False: (data.train, data.test),
    }
    for run in wishes(sys.argv[1:]):
        if run in map(settings_of, earlier()):
            continue
        print(run, flush=True)
        result = train(run, *halves[run.held_out])
        with RESULTS.open("a") as file:
            file.write(json.dumps(result) + "\n")
        print({name: result[name] for name in ("accuracy", "loss", "share_clipped", "weights", "cpu_seconds")})
    write_table(earlier())


if __name__ == "__main__":
    main()
