from __future__ import annotations

import html
import json
import math
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.special import ndtr, ndtri

from galton.accountants import ACCOUNTANTS, Calculated, Certified, Curve, default_accountant, find_accountant
from galton.accounting import Options
from galton.batching import BallsInBins, RedrawnBallsInBins, smallest_padded_batch_size, truncation
from galton.cache import Cache
from galton.gaussian import gaussian_delta
from galton.guarantee import Adjacency, Guarantee
from galton.plan import Alternative, Plan, make_plan, save_plan
from galton.plan.leak import Leak, leaked, leaked_mu
from galton.report import privacy_curve, render, words
from galton.report.correlation import WINDOW, noise_correlation
from galton.report.figures import batch_sizes
from galton.report.numbers import DIGITS, short, written
from galton.strategies import Blt, Dense, Scaled, Strategy, Tree, identity, square_root
from tests.marks import slow_after
from tests.test_cli import galton

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
browser = pytest.mark.skipif(
    CHROMIUM is None, reason="needs a headless browser: apt-get update && apt-get install -y chromium"
)
VOID = {"meta", "link", "br", "hr", "img", "input"}
HOSTILE = "<script>alert(1)</script>\"'><img src=http://evil.example/x onerror=alert(2)> $x_{ & `"
CLAIMS = {adjacency: Guarantee(2.0, 1e-3, adjacency) for adjacency in Adjacency}
CLAIM = CLAIMS[Adjacency.ADD_OR_REMOVE]
SMALL: dict[str, Any] = {"epsilon": CLAIM, "examples": 64, "batch_size": 8, "epochs": 2}
CALCULATED: dict[str, dict[str, Any]] = {
    "poisson": {"batching": "poisson"},
    "cyclic-poisson": {"batching": "cyclic-poisson", "strategy": "sqrt:2"},
    "mmcc": {"batching": "poisson", "accountant": "mmcc", "strategy": "sqrt:2"},
    "unamplified": {"batching": "fixed-order", "strategy": "sqrt", "epsilon": CLAIMS[Adjacency.ZERO_OUT]},
    "tree, replace": {"batching": "shuffle-once", "strategy": "tree", "epsilon": CLAIMS[Adjacency.REPLACE]},
}
KINDS = ("balls-in-bins", *CALCULATED)
PAGES = ("balls-in-bins", "poisson", "unamplified", "tree, replace")
MULTIPLIER = 1.1
"""More than calibrate gives for the balls-in-bins plan (0.957), so that it is certified at once."""


def certified_plan(
    other: Plan, guarantee: Guarantee = CLAIM, kind: type[BallsInBins] | type[RedrawnBallsInBins] = BallsInBins
) -> Plan:
    """A plan with a certificate of its own; what it costs to calibrate and to compare is left out."""
    strategy, scheme = square_root(16, 4), kind(64, 8, 16)
    padded_batch_size = smallest_padded_batch_size(scheme, 1e-12)
    claim = guarantee.with_delta(0.9999e-3)
    evidence = default_accountant(scheme).prove(strategy, 8, claim, Options(), guarantee.sides * MULTIPLIER)
    multiplier = evidence.noise_multiplier
    made = replace(
        other,
        guarantee=guarantee,
        scheme=scheme,
        padded_batch_size=padded_batch_size,
        truncation=truncation(scheme, padded_batch_size),
        strategy=strategy,
        spec="sqrt:4",
        sensitivity=strategy.sensitivity(8),
        noise_multiplier=multiplier,
        evidence=evidence,
        rmse=multiplier * strategy.sensitivity(8) * strategy.rmse(),
    )
    return replace(made, leak=leaked(made))


@pytest.fixture(scope="module")
def plans(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Plan]]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GALTON_STATE", str(tmp_path_factory.mktemp("state")))
        made = {name: make_plan(**(SMALL | wanted)) for name, wanted in CALCULATED.items()}
        yield {"balls-in-bins": certified_plan(made["poisson"]), **made}


@pytest.fixture(scope="module")
def curves(plans: dict[str, Plan], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Curve]:
    cache = Cache(tmp_path_factory.mktemp("cache"))
    return {name: privacy_curve(plan, cache=cache, points=4, deltas=()) for name, plan in plans.items()}


@pytest.fixture(scope="module")
def pages(plans: dict[str, Plan], curves: dict[str, Curve]) -> dict[str, str]:
    return {name: render(plans[name], curves[name]) for name in PAGES}


class Reader(HTMLParser):
    """Reads a page as a browser would, refusing tags that are left open or closed twice."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(page)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] not in ("style", "title"):
            self.text += data

    def of(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.tags if name == tag]


# The page


@pytest.mark.parametrize("name", PAGES)
def test_page_is_well_formed_and_stands_alone(pages: dict[str, str], name: str) -> None:
    page = Reader(pages[name])
    assert page.of("html") == [{"lang": "en"}]
    assert len(page.of("title")) >= 1
    ids = [attributes["id"] for _, attributes in page.tags if "id" in attributes]
    assert len(ids) == len(set(ids))
    assert "http:" not in pages[name]
    assert "https:" not in pages[name]
    assert not {"script", "link", "iframe", "object", "embed", "base"} & {tag for tag, _ in page.tags}
    for _, attributes in page.tags:
        assert not [key for key in attributes if key.startswith("on")]
        for key in ("src", "href", "xlink:href"):
            assert (attributes.get(key) or "#").startswith(("#", "data:image/png;base64,"))
    wanted = [target[1:] for attributes in page.of("a") if (target := attributes["href"])]
    wanted += re.findall(r"url\(#([^)]*)\)", pages[name])
    wanted += [(attributes["href"] or "")[1:] for attributes in page.of("use")]
    assert set(wanted) <= set(ids)


@pytest.mark.parametrize("name", PAGES)
def test_headings_are_in_order_and_pictures_have_words(pages: dict[str, str], name: str) -> None:
    page = Reader(pages[name])
    levels = [int(tag[1]) for tag, _ in page.tags if re.fullmatch("h[1-6]", tag)]
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(later <= earlier + 1 for earlier, later in pairwise(levels))
    ids = {attributes.get("id") for _, attributes in page.tags}
    for svg in page.of("svg"):
        assert svg["role"] == "img"
        assert set((svg["aria-labelledby"] or "").split()) <= ids
    assert len(page.of("svg")) >= 4


@pytest.mark.parametrize("name", PAGES)
def test_colours_of_pictures_are_those_of_the_page(pages: dict[str, str], name: str) -> None:
    for svg in re.findall(r"<svg.*?</svg>", pages[name], flags=re.DOTALL):
        assert not re.findall(r"(?:fill|stroke): #\w+", svg)
        assert "DejaVu" not in svg


@pytest.mark.parametrize("name", PAGES)
def test_numbers_of_the_plan_are_told(plans: dict[str, Plan], pages: dict[str, str], name: str) -> None:
    plan, claim, text = plans[name], plans[name].guarantee, Reader(pages[name]).text
    told = [plan.digest, plan.strategy.digest, claim.adjacency.value, plan.scheme.kind, plan.spec]
    told += [written(plan.statement), written(f"δ = {short(claim.delta)}")]
    numbers = (plan.noise_multiplier, plan.stddev, plan.rmse, plan.clip_norm, plan.sensitivity)
    told += [short(number, DIGITS) for number in numbers]
    told += [repr(plan.noise_multiplier), repr(plan.rmse)]  # in plan.json, with all digits
    told += [alternative.description for alternative in plan.alternatives] + list(plan.versions.values())
    if isinstance(plan.evidence, Certified):
        certificate = plan.evidence.certificate
        told += [f"{certificate.samples:,}", str(certificate.seed), "the operating system"]
    assert [fact for fact in told if fact not in text] == []


@pytest.mark.parametrize("name", PAGES)
def test_numbers_are_as_people_write_them(pages: dict[str, str], name: str) -> None:
    """Few digits, and one way to write a power of ten; plan.json alone has them all, and the versions of packages."""
    visible = re.sub(r"<details>.*?</details>|<style>.*?</style>", "", pages[name], flags=re.DOTALL)
    text = Reader(visible).text
    assert not re.findall(r"\d+(?:\.\d+)?e[-+]\d+", text)
    assert not re.findall(r"\b\d+\.\d{7,}", text)


@pytest.fixture(scope="module")
def plan_of(
    plans: dict[str, Plan], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[[str, Adjacency], Plan]]:
    """Makes a plan of an accountant for an adjacency."""

    def make(accountant: str, adjacency: Adjacency) -> Plan:
        claim = CLAIMS[adjacency]
        if accountant == "balls-in-bins":
            return certified_plan(plans["poisson"], claim)
        if accountant == "redrawn":
            return certified_plan(plans["poisson"], claim, RedrawnBallsInBins)
        if accountant == "min-separation":
            return make_plan(**SMALL | {"epsilon": claim, "strategy": "sqrt:2", "batching": "min-separation"})
        if accountant == "allocation":  # with more noise than needed, for its package need not be here
            plan = make_plan(**SMALL | {"epsilon": claim, "strategy": "identity", "accountant": "unamplified"})
            statement = find_accountant(accountant).stated(claim)
            return replace(plan, evidence=Calculated(accountant, plan.noise_multiplier, plan.claim, statement))
        words = {"accountant": "unamplified", "strategy": "sqrt"} if accountant == "unamplified" else {}
        return make_plan(**SMALL | (words or CALCULATED[accountant]) | {"epsilon": claim})

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GALTON_STATE", str(tmp_path_factory.mktemp("state")))
        yield make


SUPPORTED = [
    case
    for name, accountant in ACCOUNTANTS.items()
    for case in slow_after(
        1 if name in ("balls-in-bins", "poisson", "cyclic-poisson", "unamplified") else 0,
        [(name, adjacency) for adjacency in Adjacency if accountant.supports(adjacency)],
    )
]


@pytest.mark.parametrize(("name", "adjacency"), SUPPORTED)
def test_every_accountant_and_adjacency_is_told(
    plan_of: Callable[[str, Adjacency], Plan], tmp_path: Path, name: str, adjacency: Adjacency
) -> None:
    plan = plan_of(name, adjacency)
    plan.check()
    page = render(plan, privacy_curve(plan, cache=Cache(tmp_path), points=2, deltas=()))
    told = [*asdict(adjacency.wording).values(), f"{adjacency} adjacency"]
    assert [text for text in told if text not in Reader(page).text] == []
    assert f'<th scope="row">accountant</th><td>{name}</td>' in page
    own = re.search(r'<tr class="own">.*?<td class="word">(.*?)</td>', page)
    assert own is not None
    assert own[1] == plan.evidence.standing.value == plan.accountant.statement.standing.value


def test_what_a_plan_says_cannot_become_markup_and_a_chosen_seed_is_told(
    plans: dict[str, Plan], curves: dict[str, Curve]
) -> None:
    plan, curve = plans["balls-in-bins"], curves["balls-in-bins"]
    assert isinstance(plan.evidence, Certified)
    assert not plan.evidence.certificate.seed_chosen_by_user
    certificate = replace(
        plan.evidence.certificate,
        bound=HOSTILE,
        created=HOSTILE,
        seed_chosen_by_user=True,
        by_direction=tuple(replace(verdict, sampler=HOSTILE) for verdict in plan.evidence.certificate.by_direction),
    )
    evil = replace(
        plan,
        strategy=identity(16),
        spec=HOSTILE,
        workload=HOSTILE,
        versions={HOSTILE: HOSTILE},
        alternatives=(Alternative(HOSTILE, HOSTILE, 3.0, HOSTILE),),
        evidence=Certified(HOSTILE, certificate),
    )
    page = Reader(render(evil, replace(curve, words=HOSTILE)))
    assert not {"script", "img"} & {tag for tag, _ in page.tags}
    assert page.text.count(HOSTILE) >= 12
    assert "CHOSEN BY THE USER" in page.text
    assert "the operating system" not in page.text


def test_a_plan_says_what_is_left_if_batches_leak(plans: dict[str, Plan], pages: dict[str, str]) -> None:
    assert "does not rely on the batches being secret" in Reader(pages["unamplified"]).text
    leaking = replace(plans["unamplified"], leak=Leak(epsilon_at_delta=7.5, delta_at_epsilon=0.25))
    assert "still gives ε = 7.5 at δ = 0.001 (or δ = 0.25 at ε = 2)" in words.leak(leaking)
    assert "stay secret" in words.conditions(leaking)[0]
    without = replace(plans["poisson"], leak=Leak(epsilon_at_delta=None, delta_at_epsilon=0.9))
    mu, displaced = leaked_mu(without), without.truncation.displacement
    told = re.search(r"still gives ε = ([\d.]+) at δ = 0.001 \(or δ = 0.9 at ε = 2\)", words.leak(without))
    assert told is not None
    epsilon = float(told[1])
    assert 0.99e-3 < (1 - displaced) * gaussian_delta(epsilon, mu) + displaced <= 1e-3


def test_a_page_says_what_is_not_covered_and_what_is_public(plans: dict[str, Plan], pages: dict[str, str]) -> None:
    page = Reader(pages["unamplified"]).text
    assert "last digits of noisy sums may tell is not part of the guarantee" in page
    assert "They are public." in page
    assert "Warning:" not in page
    plan = plans["unamplified"]
    large = replace(plan, guarantee=plan.guarantee.with_delta(0.5))
    curve = privacy_curve(plan, Options(seed=1), deltas=())
    assert "Warning: delta = 0.5 is above 1 / examples" in Reader(render(large, curve)).text


# The curve


@pytest.mark.parametrize("name", KINDS)
def test_curve_has_the_point_of_the_plan(plans: dict[str, Plan], curves: dict[str, Curve], name: str) -> None:
    claim, curve = plans[name].guarantee, curves[name]
    at = min(range(len(curve.epsilons)), key=lambda index: abs(curve.epsilons[index] - claim.epsilon))
    assert curve.epsilons[at] == pytest.approx(claim.epsilon)
    assert (0.1 if name == "balls-in-bins" else 0.8) * claim.delta < curve.uppers[at] <= claim.delta
    assert sorted(curve.uppers, reverse=True) == list(curve.uppers)
    assert all(guess <= upper * 1.001 for guess, upper in zip(curve.estimates, curve.uppers, strict=False))


def test_curve_without_amplification_is_the_gaussian_one(plans: dict[str, Plan], curves: dict[str, Curve]) -> None:
    for name, sides in (("unamplified", 1), ("tree, replace", 2)):
        mu, curve = sides / plans[name].noise_multiplier, curves[name]
        assert curve.uppers == pytest.approx([gaussian_delta(epsilon, mu) for epsilon in curve.epsilons], rel=1e-6)
        assert curve.advantage == pytest.approx(math.erf(mu / math.sqrt(8)), rel=1e-9)
        exact = float(ndtr(ndtri(0.01) + mu))
        assert exact <= curve.hits(0.01) <= 1.2 * exact


def test_curve_is_kept_by_plan_and_seed(plans: dict[str, Plan], tmp_path: Path) -> None:
    plan, cache = plans["balls-in-bins"], Cache(tmp_path)
    first = privacy_curve(plan, cache=cache, points=2, deltas=())
    assert privacy_curve(plan, cache=cache, points=2, deltas=()) == first
    assert privacy_curve(plan, Options(seed=1), cache, points=2, deltas=()) != first


def test_curve_of_other_versions_is_computed_anew(
    plans: dict[str, Plan], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan, cache = plans["unamplified"], Cache(tmp_path)
    privacy_curve(plan, cache=cache, points=2, deltas=())
    kept = len(list(tmp_path.iterdir()))
    monkeypatch.setattr("galton.report.curves.versions", lambda: {"jax": "another"})
    privacy_curve(plan, cache=cache, points=2, deltas=())
    assert len(list(tmp_path.iterdir())) == kept + 1


def test_truncation_is_part_of_the_curve(plans: dict[str, Plan], curves: dict[str, Curve], tmp_path: Path) -> None:
    plan = plans["poisson"]
    tight = replace(plan, truncation=replace(plan.truncation, displacement=1e-4))
    curve = privacy_curve(tight, cache=Cache(tmp_path), points=4, deltas=())
    assert curve.uppers[0] == pytest.approx(curves["poisson"].uppers[0] + 1e-4)


# What the pictures show


@pytest.mark.parametrize(
    "strategy",
    [
        identity(1),
        square_root(7),
        Blt(300, [0.9, 0.5], [0.2, 0.1]),
        Scaled(square_root(90, 5), np.linspace(1, 3, 90)),
        Dense(np.tril(np.random.default_rng(1).random((60, 60))) + 3 * np.eye(60)),
        Tree(50),
    ],
    ids=lambda strategy: f"{strategy.kind}-{strategy.rounds}",
)
def test_correlation_is_that_of_the_noise(strategy: Strategy) -> None:
    correlation = noise_correlation(strategy)
    assert correlation is not None
    inverse = strategy.inverse()
    covariance = inverse @ inverse.T
    deviations = np.sqrt(covariance.diagonal())
    exact = covariance / np.outer(deviations, deviations)
    np.testing.assert_allclose(correlation.window, exact[-WINDOW:, -WINDOW:], atol=1e-12)
    np.testing.assert_allclose(correlation.with_last, exact[-1, strategy.rounds - 1 - correlation.lags], atol=1e-12)
    np.testing.assert_allclose(correlation.deviations, deviations[correlation.places], rtol=1e-10)
    assert correlation.independent == (strategy.rounds == 1)


def test_long_runs_are_shown_in_part() -> None:
    long, short = Blt(50_000, [0.9], [0.2]), Blt(4096, [0.9], [0.2])
    shown, whole = noise_correlation(long), noise_correlation(short)
    assert shown is not None
    assert whole is not None
    assert shown.rounds == 4096
    np.testing.assert_allclose(shown.window, whole.window, atol=1e-12)
    assert noise_correlation(Tree(3000)) is None


def test_batch_sizes_are_binomial() -> None:
    from scipy.stats import binom

    sizes, chances = batch_sizes(1000, 0.02, 60)
    np.testing.assert_allclose(chances, binom.pmf(sizes, 1000, 0.02), rtol=1e-9)
    assert chances.sum() == pytest.approx(1, abs=1e-4)
    assert sizes[-1] > 60
    assert batch_sizes(10**8, 0.01, 1_010_000)[0].size <= 300
    assert batch_sizes(5, 1.0, 5)[1].tolist()[-1] == 1


# The command


def test_command_writes_beside_the_plan_or_elsewhere(
    plans: dict[str, Plan], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GALTON_CACHE", str(tmp_path / "cache"))
    folder = save_plan(plans["unamplified"], tmp_path / "plan")
    result = galton("report", str(folder), "--json")
    assert result.code == 0
    assert json.loads(result.out)["path"] == str(folder / "report.html")
    other = tmp_path / "new" / "page.html"
    assert galton("report", str(folder), "-o", str(other)).code == 0
    assert other.read_bytes() == (folder / "report.html").read_bytes()
    assert galton("verify", str(folder)).code == 0


def test_command_refuses_and_leaves_what_is_there(plans: dict[str, Plan], tmp_path: Path) -> None:
    folder = save_plan(plans["unamplified"], tmp_path / "plan")
    (folder / "report.html").write_text("old")
    assert galton("report", str(folder), "-o", str(tmp_path)).code == 2
    (folder / "plan.json").write_text((folder / "plan.json").read_text().replace("zero-out", "zero-in"))
    result = galton("report", str(folder))
    assert result.code == 2
    assert "was changed" in result.err
    assert (folder / "report.html").read_text() == "old"
    assert galton("report", str(tmp_path / "nothing")).code == 2


# In a browser

MEASURE = """<!DOCTYPE html><html><body><script>
addEventListener("load", () => {
  const measured = [...document.querySelectorAll("iframe")].map(frame => {
    const page = frame.contentDocument, root = page.documentElement;
    const wide = [...page.querySelectorAll("body *:not(svg *)")].filter(
      element => element.getBoundingClientRect().right > root.clientWidth + 0.5 && element.getClientRects().length);
    return {name: frame.title, width: root.clientWidth, scroll: root.scrollWidth,
            wide: wide.map(element => element.outerHTML.slice(0, 80)),
            broken: [...page.querySelectorAll(".number, .facts dd")].filter(cell => [...cell.childNodes].some(node => {
              const range = page.createRange();
              range.selectNodeContents(node);
              return new Set([...range.getClientRects()].map(box => Math.round(box.top))).size > 1;
            })).map(cell => cell.textContent),
            split: [...page.querySelectorAll("th, td")].flatMap(cell => {
              const walk = page.createTreeWalker(cell, NodeFilter.SHOW_TEXT), words = [];
              while (walk.nextNode()) for (const word of walk.currentNode.data.matchAll(/\\b[a-z]{2,14}\\b/gi)) {
                const range = page.createRange();
                range.setStart(walk.currentNode, word.index);
                range.setEnd(walk.currentNode, word.index + word[0].length);
                if (new Set([...range.getClientRects()].map(box => Math.round(box.top))).size > 1) words.push(word[0]);
              }
              return words;
            }),
            svgs: [...page.querySelectorAll("svg")].map(element => element.getBoundingClientRect()).map(
              box => [box.width, box.height])};
  });
  const result = document.createElement("pre");
  result.id = "result";
  result.textContent = JSON.stringify(measured);
  document.body.append(result);
});
</script>"""


def chromium(folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    assert CHROMIUM is not None
    quiet = ["--disable-quic", "--no-first-run", "--disable-background-networking", "--disable-component-update"]
    fixed = [CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--disable-sync", "--hide-scrollbars", *quiet]
    profile = f"--user-data-dir={folder / 'profile'}"
    done = subprocess.run(
        [*fixed, profile, "--enable-logging=stderr", *options],
        capture_output=True,
        text=True,
        timeout=1800,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "CONSOLE" not in done.stderr
    return done


@browser
def test_fits_phone_and_desktop(pages: dict[str, str], tmp_path: Path) -> None:
    frames = "".join(
        f'<iframe title="{name}" style="border:0;width:{width}px;height:800px" srcdoc="{html.escape(page)}"></iframe>'
        for name, page in pages.items()
        for width in (360, 390, 768, 1280)
    )
    (tmp_path / "all.html").write_text(MEASURE + frames)
    done = chromium(tmp_path, "--virtual-time-budget=10000", "--dump-dom", (tmp_path / "all.html").as_uri())
    result = re.search(r'<pre id="result">(.*?)</pre>', done.stdout, flags=re.DOTALL)
    assert result is not None
    measured = json.loads(html.unescape(result[1]))
    assert len(measured) == 4 * len(pages)
    for frame in measured:
        assert frame["scroll"] <= frame["width"], frame
        assert frame["wide"] == []
        assert frame["broken"] == [], "a number breaks across lines"
        assert frame["split"] == [], "a word of a table breaks across lines"
        assert len(frame["svgs"]) >= 4
        assert all(min(size) > 100 for size in frame["svgs"])


@browser
@pytest.mark.parametrize("mode", ["light", "dark"])
def test_is_readable_by_day_and_night(pages: dict[str, str], tmp_path: Path, mode: str) -> None:
    from matplotlib.image import imread

    page, picture = tmp_path / "report.html", tmp_path / "picture.png"
    page.write_text(pages["balls-in-bins"])
    extra = ["--force-dark-mode"] if mode == "dark" else []
    chromium(tmp_path, *extra, "--window-size=1280,1000", f"--screenshot={picture}", page.as_uri())
    brightness = imread(picture)[..., :3].mean(axis=-1)
    background = np.median(brightness)
    assert background < 0.2 if mode == "dark" else background > 0.9
    assert np.mean(np.abs(brightness - background) > 0.5) > 0.01
