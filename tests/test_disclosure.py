"""What officers read: numbers against closed forms and quadrature, the table, the printed page."""

from __future__ import annotations

import json
import math
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from scipy.special import ndtr, ndtri

from galton.accountants import Curve
from galton.accounting import Options
from galton.budget.composed import compose
from galton.budget.events import GaussianEvent
from galton.budget.tuning import TunedEvent
from galton.cache import Cache
from galton.gaussian import gaussian_delta, gaussian_epsilon
from galton.guarantee import Adjacency, Direction, Guarantee
from galton.plan import Plan, make_plan, save_plan
from galton.plan.make import for_search
from galton.plan.tuning import Tuning
from galton.report import disclose, disclose_composition, privacy_curve, render_sheet, words
from galton.report.curves import DELTAS
from galton.report.disclosure import RHO
from galton.report.numbers import written
from galton.report.risk import RATES, risk_if_known, risk_if_secret
from tests import truth
from tests.marks import SLOW
from tests.test_cli import galton
from tests.test_report import CHROMIUM, HOSTILE, Reader, browser, chromium

CLAIM = Guarantee(2.0, 1e-5, Adjacency.ZERO_OUT)
MU = 1.3


def gaussian_curve(mu: float, epsilons: list[float], adjacency: Adjacency = Adjacency.ZERO_OUT) -> Curve:
    return Curve(tuple(epsilons), tuple(truth.gaussian(epsilon, mu) for epsilon in epsilons), (), "exact", adjacency)


@pytest.fixture(scope="module")
def fixed() -> Plan:
    """Known order: everything in closed form."""
    return make_plan(CLAIM, examples=64, batch_size=8, epochs=2, batching="fixed-order", strategy="sqrt:2")


@pytest.fixture(scope="module")
def poisson() -> Plan:
    """Amplified, calculated, and with truncation that counts."""
    return make_plan(
        Guarantee(2.0, 1e-5), examples=512, batch_size=64, epochs=2, batching="poisson", strategy="identity"
    )


@pytest.fixture(scope="module")
def curve(poisson: Plan, tmp_path_factory: pytest.TempPathFactory) -> Curve:
    return privacy_curve(poisson, cache=Cache(tmp_path_factory.mktemp("cache")), points=7, deltas=DELTAS[:3])


# Curves


def test_epsilon_lies_between_the_truth_and_the_next_point() -> None:
    curve = gaussian_curve(MU, np.linspace(0.0, 8.0, 17).tolist())
    for delta in (0.1, 1e-3, 1e-5, 1e-7):
        exact, told = gaussian_epsilon(delta, MU), curve.epsilon(delta)
        assert told is not None
        assert exact <= told <= min(epsilon for epsilon in curve.epsilons if epsilon >= exact)
        assert told <= 1.05 * exact  # the chord; the next point is up to 16% away
    assert curve.epsilon(0.999) == 0.0
    assert curve.epsilon(1e-30) is None


def test_mu_of_a_gaussian_curve_is_its_own() -> None:
    told = gaussian_curve(MU, np.linspace(0.0, 6.0, 61).tolist()).dominating_mu()
    assert told is not None
    assert MU <= told <= 1.01 * MU
    coarse = gaussian_curve(MU, [0.0, 3.0, 6.0]).dominating_mu()
    assert coarse is not None
    assert coarse > told
    assert gaussian_curve(MU, [0.0, 1.0], Adjacency.ADD).dominating_mu() is None
    assert replace(gaussian_curve(MU, [0.0, 1.0]), uppers=(1.0, 0.5)).dominating_mu() is None


def test_mu_dominates_a_mixture_by_quadrature() -> None:
    """Two modes: the truth is under the Gaussian curve between the points, too, and mu is that of no pure claim."""
    gram = np.array([[1.5, 0.3], [0.3, 1.5]])

    def exact(epsilon: float) -> float:
        return max(
            truth.two_bins(gram, epsilon, direction) for direction in (Direction.MIXTURE_FIRST, Direction.NOISE_FIRST)
        )

    points = np.linspace(0.0, 4.0, 13).tolist()
    curve = Curve(tuple(points), tuple(exact(epsilon) for epsilon in points), (), "", Adjacency.ZERO_OUT)
    mu = curve.dominating_mu()
    assert mu is not None
    assert 0.7 < mu < math.sqrt(1.5)
    for epsilon in np.linspace(0.05, 6.0, 11).tolist():
        assert exact(epsilon) <= max(gaussian_delta(epsilon, mu), curve.uppers[-1])
    assert exact(9.0) > gaussian_delta(9.0, mu)  # 14.2: it holds but for a delta


def test_one_direction_says_less_about_the_advantage() -> None:
    """P = (1 - q) Q + q R with R apart from Q: H(Q, P) is 0 from -log(1 - q) on, and the advantage is q."""
    q = 0.2
    epsilons = (0.0, -math.log1p(-q))
    curve = Curve(epsilons, (q, 0.0), (), "exact", Adjacency.ADD)
    assert curve.advantage == pytest.approx(q)
    assert replace(curve, adjacency=Adjacency.ZERO_OUT).advantage == pytest.approx(q / (2 - q))
    assert replace(curve, uppers=(1.0, 0.0)).advantage == pytest.approx(q)


# Numbers of plans


def test_the_mechanism_is_named_as_it_is(fixed: Plan, poisson: Plan, curve: Curve) -> None:
    """Noise is correlated only if C is not diagonal; users are called users where they are the unit."""
    assert "correlated Gaussian noise, strategy sqrt:2" in str(disclose(fixed, privacy_curve(fixed)))
    assert "independent Gaussian noise, strategy identity" in str(disclose(poisson, curve))
    assert "which users were in which batch" in words.leak(replace(poisson, per_user=3))


def test_numbers_of_a_known_order_are_those_of_the_gaussian_mechanism(fixed: Plan, tmp_path: Path) -> None:
    mu = 1 / fixed.noise_multiplier
    disclosure = disclose(fixed, privacy_curve(fixed, cache=Cache(tmp_path)))
    assert not disclosure.amplified
    assert disclosure.known is not None
    for risk, loose in ((disclosure.known, 1e-6), (disclosure.secret, 0.02)):
        assert risk.mu == pytest.approx(mu, rel=1e-6)
        assert (risk.mu_delta, risk.rho_delta) == (0.0, 0.0)
        assert risk.rho == pytest.approx(mu * mu / 2, rel=1e-6)
        assert risk.advantage == pytest.approx(math.erf(mu / math.sqrt(8)), rel=loose)
        exact = [float(ndtr(ndtri(rate) + mu)) for rate in RATES]
        assert list(risk.true_positive_rates) == pytest.approx(exact, rel=loose)
        epsilons = [gaussian_epsilon(delta, mu) for delta in DELTAS]
        assert [epsilon or 0.0 for epsilon in risk.epsilons] == pytest.approx(epsilons, rel=loose)


def test_truncation_is_left_out_with_its_probability(fixed: Plan) -> None:
    """The test that sees a displaced example, and the Gaussian one otherwise, is what the limits allow."""
    plan = replace(
        fixed,
        guarantee=replace(CLAIM, adjacency=Adjacency.ADD_OR_REMOVE),
        truncation=replace(fixed.truncation, displacement=1e-3),
    )
    risk, mu = risk_if_known(plan), 1 / plan.noise_multiplier
    for rate, limit in zip(RATES, risk.true_positive_rates, strict=True):
        power = 1e-3 + 0.999 * float(ndtr(ndtri(rate / 0.999) + mu))
        assert power <= limit <= power * 1.000001
    assert risk.epsilons == (None,) * len(DELTAS)
    assert risk.mu_delta == risk.rho_delta == 1e-3


def test_amplification_lowers_all_but_rho(poisson: Plan, curve: Curve) -> None:
    secret, known = risk_if_secret(poisson, curve), risk_if_known(poisson)
    assert secret.advantage < 0.7 * known.advantage
    assert all(
        low < 0.7 * high for low, high in zip(secret.true_positive_rates, known.true_positive_rates, strict=True)
    )
    assert secret.mu is not None
    assert known.mu is not None
    assert secret.mu < 0.7 * known.mu
    assert secret.mu_delta == curve.uppers[-1] < 1e-7
    assert secret.rho == known.rho == pytest.approx(known.mu**2 / 2)
    assert known.rho_delta == poisson.truncation.displacement > 0
    assert secret.epsilons[0] is not None
    assert secret.epsilons[0] <= poisson.guarantee.epsilon
    told = [epsilon for epsilon in secret.epsilons if epsilon is not None]
    assert told == sorted(told)
    assert secret.epsilons[-1] is None  # less than truncation costs
    for delta, epsilon in zip(DELTAS[:3], secret.epsilons, strict=False):
        assert epsilon is not None
        cost = poisson.truncation.delta(epsilon)
        exact = [poisson.accountant.delta(poisson.run, Guarantee(factor * epsilon, delta)) for factor in (1.0, 0.97)]
        assert exact[0] + cost <= delta * (1 + 1e-6) < exact[1] + cost


@pytest.mark.slow
def test_sampled_curves_have_a_point_for_every_delta(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GALTON_STATE", str(tmp_path))
    plan = make_plan(CLAIM, examples=800, batch_size=50, epochs=3, batching="balls-in-bins", strategy="sqrt:4")
    curve = privacy_curve(plan, Options(seed=1), Cache(tmp_path))
    for delta in DELTAS:
        told, exact = curve.epsilon(delta), plan.accountant.epsilon(plan.run, delta, Adjacency.ZERO_OUT)
        assert told is not None
        assert 0.95 * exact <= told <= 1.03 * exact


# The table


def test_the_table_says_what_is_asked(poisson: Plan, curve: Curve) -> None:
    disclosure = disclose(poisson, curve)
    rows = dict(disclosure.rows)
    assert list(rows)[:4] == ["guarantee", "setting", "unit of privacy", "adjacency"]
    assert "one example" in rows["unit of privacy"]
    assert rows["adjacency"].startswith("add-or-remove. ")
    assert "relies on it" in rows["sampling assumption"]
    assert rows["accountant"].startswith("poisson (upper bound)")
    assert rows["hyperparameter tuning"].startswith("not covered")
    assert poisson.digest in rows["to verify"]
    text = disclosure.markdown()
    assert all(f"| {name} |" in text for name in rows)
    tables = [line for line in text.splitlines() if line.startswith("|")]
    assert {line.count(" | ") for line in tables if not line.startswith("|-")} == {1, 2}
    assert f"| ε at δ = 10⁻⁵ | {disclosure.figures()[1][4][1]} |" in text


def test_a_note_says_why_secret_batches_have_the_numbers_of_known_ones(poisson: Plan, curve: Curve) -> None:
    disclosure = disclose(poisson, curve)
    assert disclosure.known is not None
    pairs = list(zip(disclosure.secret.epsilons, disclosure.known.epsilons, strict=True))
    same = [secret == known and secret is not None for secret, known in pairs]
    assert True in same  # truncation costs half of the smaller deltas
    assert False in same
    assert "Where ε is the same in both columns" in disclosure.notes[0]
    smaller = tuple(None if known is None else 0.9 * known for known in disclosure.known.epsilons)
    different = replace(disclosure, secret=replace(disclosure.secret, epsilons=smaller))
    assert "Where ε is the same" not in different.notes[0]
    assert "Where ε is the same" not in replace(disclosure, amplified=False).notes[0]


def test_what_a_plan_says_stays_in_its_cell(poisson: Plan, curve: Curve) -> None:
    disclosure = disclose(replace(poisson, spec="a|b\n| c | d |\n" + HOSTILE), replace(curve, words=HOSTILE))
    lines = disclosure.markdown().splitlines()
    assert (
        len([line for line in lines if line.startswith("|")]) == len(disclosure.rows) + len(disclosure.figures()[1]) + 4
    )
    assert "<script" not in disclosure.markdown().replace("\\<script", "").split("Sampled")[0].split("\n\n")[0]
    assert not {"script", "img"} & {tag for tag, _ in Reader(render_sheet(disclosure)).tags}


@pytest.fixture
def folder(fixed: Plan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("GALTON_CACHE", str(tmp_path / "cache"))
    return save_plan(fixed, tmp_path / "plan")


def test_command_tells_writes_and_refuses(fixed: Plan, folder: Path, tmp_path: Path) -> None:
    told = galton("disclose", str(folder))
    assert told.code == 0
    assert "unit of privacy\tone example" in told.out
    assert written(fixed.statement) in told.out.replace("\n", " ")
    assert not re.search(r"\de-\d", told.out)
    result = json.loads(galton("disclose", str(folder), "--json", "--output", str(tmp_path / "sheet.html")).out)
    assert result["path"] == str(tmp_path / "sheet.html")
    assert result["risk"]["batches_known"]["zcdp"]["rho"] == pytest.approx(fixed.noise_multiplier**-2 / 2, rel=1e-6)
    assert result["risk"] == json.loads(galton("report", str(folder), "--json").out)["risk"]
    assert Reader((tmp_path / "sheet.html").read_text()).of("html") == [{"lang": "en"}]
    assert galton("disclose", str(folder), "--markdown").out.startswith("| field | statement |\n")
    both = galton("disclose", str(folder), "--markdown", "--json")
    assert both.code == 2
    assert both.err.startswith("galton: --markdown: is another output than JSON")
    assert galton("disclose", str(folder), "--output", str(tmp_path)).code == 2


# Several releases


def test_numbers_of_a_composition_are_those_of_one_gaussian_mechanism() -> None:
    """sigma = 3 and 4 are one of 2.4, in closed form."""
    mu = 1 / 2.4
    disclosure = disclose_composition(compose(["gaussian:sigma=3", "gaussian:sigma=4"], delta=1e-6))
    risk = disclosure.secret
    assert not disclosure.amplified
    assert risk.advantage == pytest.approx(math.erf(mu / math.sqrt(8)), rel=0.01)
    exact = [float(ndtr(ndtri(rate) + mu)) for rate in RATES]
    assert all(1 <= told / true < 1.05 for told, true in zip(risk.true_positive_rates, exact, strict=True))
    for delta, epsilon in zip(DELTAS, risk.epsilons, strict=True):
        assert epsilon is not None
        assert 1 <= epsilon / gaussian_epsilon(delta, mu) < 1.02
    assert risk.mu is not None
    assert 1 <= risk.mu / mu < 1.03
    assert risk.rho == pytest.approx(mu**2 / 2, rel=1e-6)
    assert risk.mu_delta < 1e-13


@SLOW
def test_a_composition_without_amplification_counts_every_sample_in_full() -> None:
    composed = compose(["gaussian:sigma=2,probability=0.1", "laplace:scale=20"], delta=1e-5)
    disclosure = disclose_composition(composed)
    assert disclosure.amplified
    assert disclosure.known is not None
    full = disclose_composition(compose(["gaussian:sigma=2", "laplace:scale=20"], delta=1e-5))
    assert disclosure.known.advantage == pytest.approx(full.secret.advantage, rel=0.01)
    assert disclosure.secret.advantage < 0.3 * disclosure.known.advantage
    assert disclosure.known.rho == disclosure.secret.rho == pytest.approx(1 / 8 + 1 / 800)
    unknown = disclose_composition(compose(["dp:epsilon=0.1,delta=1e-8"], delta=1e-5))
    assert unknown.secret.rho is None
    assert "none" in dict(row for row in unknown.figures()[1] if len(row) == 2)[f"{RHO} of zCDP"]
    assert disclose_composition(compose(["dp:epsilon=0.1"], delta=1e-5)).secret.rho == pytest.approx(0.005)


def test_known_batches_cost_truncation_once_in_a_composition_too() -> None:
    """Not e^epsilon times, as by the curve for secret batches, which have the smaller limit of the two."""
    sums = GaussianEvent(sigma=1.0, displacement=1e-7)
    composed = compose([sums], delta=1e-4)
    disclosure = disclose_composition(composed)
    assert disclosure.known is not None
    for delta, known, secret in zip(DELTAS, disclosure.known.epsilons, disclosure.secret.epsilons, strict=True):
        if delta <= 1e-7:
            assert known is secret is None
        else:
            exact = gaussian_epsilon((delta - 1e-7) / (1 - 1e-7), 1.0)
            assert secret == known
            assert known is not None
            assert exact <= known < 1.03 * exact
            assert composed.whole is not None
            assert composed.whole.delta(known) > delta
    assert disclosure.known.rho_delta == 1e-7


def test_a_search_without_amplification_has_an_epsilon() -> None:
    """Its curve begins with limits of 1 at several epsilons, and falls later."""
    run, tuning = GaussianEvent(sigma=0.5, probability=0.001), Tuning(10.0, 1.0)
    known = disclose_composition(compose([TunedEvent(run, tuning)], delta=1e-3)).known
    full = compose([TunedEvent(replace(run, probability=1.0), tuning)], delta=1e-5)
    assert known is not None
    assert known.epsilons[0] == pytest.approx(full.epsilon, rel=0.02)


@SLOW
def test_a_composition_says_what_is_released(fixed: Plan, tmp_path: Path) -> None:
    disclosure = disclose_composition(compose([fixed, "gaussian:sigma=5"], delta=1e-5))
    rows = dict(disclosure.rows)
    assert "gaussian:sigma=5" in rows["what is covered"]
    assert fixed.digest[7:19] in rows["what is covered"]
    assert rows["hyperparameter tuning"].startswith("not covered")
    assert rows["adjacency"].startswith("zero-out. ")
    searched = disclose_composition(compose([for_search(fixed, Tuning(5.0, 1.0))], delta=1e-4))
    assert dict(searched.rows)["hyperparameter tuning"].startswith("the best of geometric:mean=5 runs")
    assert "Risk in numbers" in render_sheet(disclosure)


def test_compose_tells_what_officers_read(tmp_path: Path) -> None:
    page = tmp_path / "sheet.html"
    words = ["compose", "gaussian:sigma=3", "laplace:scale=20", "--delta", "1e-5"]
    result = json.loads(galton(*words, "--output", str(page), "--json").out)
    assert result["risk"]["batches_secret"]["epsilon_at"][0]["epsilon"] == pytest.approx(result["epsilon"], rel=1e-3)
    assert [row["false_positive_rate"] for row in result["risk"]["batches_secret"]["true_positive_rates"]] == list(
        RATES
    )
    assert {row["field"] for row in result["disclosure"]} >= {"unit of privacy", "adjacency", "accountant"}
    assert Reader(page.read_text()).of("html") == [{"lang": "en"}]
    assert galton(*words, "--output", str(tmp_path)).code == 2


@browser
@pytest.mark.parametrize("paper", ["A4", "letter"])
def test_the_sheet_is_one_page(poisson: Plan, curve: Curve, tmp_path: Path, paper: str) -> None:
    assert CHROMIUM is not None
    page, printed = tmp_path / "sheet.html", tmp_path / "sheet.pdf"
    sheet = render_sheet(disclose(poisson, curve))
    page.write_text(sheet.replace("@page {", f"@page {{ size: {paper};"))
    chromium(tmp_path, "--no-pdf-header-footer", f"--print-to-pdf={printed}", page.as_uri())
    assert re.findall(rb"/Count (\d+)", printed.read_bytes()) == [b"1"]
