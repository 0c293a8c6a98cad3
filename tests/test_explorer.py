"""The explorer: figures that come with it, the grid of one's own, the page, and the page in a browser."""

from __future__ import annotations

import html
import itertools
import json
import math
import re
from base64 import b64encode
from collections import Counter
from hashlib import sha256
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.explorer import AXES
from galton.accountants import Statement
from galton.accountants.statement import Standing
from galton.comparison import Comparison, Row, compare
from galton.errors import InvalidArgument
from galton.explorer import MECHANISMS, Axes, Results, compute_results, render, shipped_results
from galton.explorer.page import embedded
from galton.explorer.results import LONG, is_redrawn, rounded_up
from galton.guarantee import Adjacency
from tests.marks import SLOW
from tests.test_cli import galton
from tests.test_report import MEASURE, browser, chromium
from tests.truth import gaussian

DOCS = Path(__file__).parents[1] / "docs"
SHIPPED = shipped_results()
POINTS = [(*run, epsilon) for run in SHIPPED.axes.runs() for epsilon in SHIPPED.axes.epsilons]
SERIES = {series.mechanism: series for series in SHIPPED.series}


# Figures


def test_the_shipped_grid_is_that_of_the_script_and_every_figure_is_a_guarantee() -> None:
    assert SHIPPED.axes == AXES
    assert tuple(SERIES) == MECHANISMS
    standings = {series.mechanism: Standing(series.standing) for series in SHIPPED.series}
    assert standings["dpsgd-unamplified"] is standings["memf-unamplified"] is Standing.EXACT
    assert standings["dpsgd-poisson"] is standings["bandmf-cyclic-poisson"] is Standing.UPPER_BOUND
    assert standings["bandmf-balls-in-bins"] is standings["bandmf-redrawn"] is Standing.CERTIFIED
    for series in SHIPPED.series:
        for (_, bins, epochs, _), error in zip(POINTS, series.rmse, strict=True):
            assert (error is None) == (series.mechanism == LONG and not is_redrawn(bins, epochs))
    assert Results.from_json(json.loads(json.dumps(SHIPPED.to_json()))) == SHIPPED


def test_shipped_figures_of_independent_noise_are_those_of_the_gaussian_mechanism() -> None:
    """The error of prefix sums of n rounds is sigma sqrt((n + 1) / 2)."""
    series = SERIES["dpsgd-unamplified"]
    figures = zip(POINTS, series.rmse, series.noise_multiplier, series.epsilon_if_known, strict=True)
    for (delta, bins, epochs, epsilon), error, multiplier, known in figures:
        assert error is not None
        assert multiplier is not None
        assert gaussian(epsilon, 1 / multiplier) == pytest.approx(delta, rel=0.02)
        assert gaussian(epsilon, 1 / multiplier) <= delta
        assert error == pytest.approx(multiplier * math.sqrt(epochs * (bins * epochs + 1) / 2), rel=1e-4)
        assert known == pytest.approx(epsilon, rel=1e-4)


def test_shipped_figures_are_those_of_compare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GALTON_CACHE", str(tmp_path))
    point = (1e-5, 16, 4, 2.0)
    place, (delta, bins, epochs, epsilon) = POINTS.index(point), point
    rows = compare(bins, epochs, (epsilon,), delta, ("dpsgd-poisson",), baseline="dpsgd-poisson").rows
    for row in rows:
        series = SERIES[row.mechanism]
        assert series.rmse[place] == rounded_up(row.rmse)
        assert series.noise_multiplier[place] == rounded_up(row.noise_multiplier)
        assert row.epsilon_if_known is not None
        assert series.epsilon_if_known[place] == rounded_up(row.epsilon_if_known)
        assert series.memory[place] == row.memory


@SLOW
def test_shipped_figures_of_every_mechanism_come_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sampled ones to 2%: their noise is calibrated on other samples."""
    monkeypatch.setenv("GALTON_CACHE", str(tmp_path))
    place = POINTS.index((1e-5, 16, 4, 4.0))
    for row in compare(16, 4, (4.0,), 1e-5, MECHANISMS, baseline=MECHANISMS[0]).rows:
        assert SERIES[row.mechanism].rmse[place] == pytest.approx(row.rmse, rel=0.02)


def test_shipped_figures_make_sense() -> None:
    """More privacy costs more; secrecy of batches never costs noise, and correlation never adds error."""
    errors = {name: np.array([math.nan if error is None else error for error in SERIES[name].rmse]) for name in SERIES}
    shape = (-1, len(SHIPPED.axes.epsilons))
    for series in errors.values():
        falling = np.diff(series.reshape(shape), axis=1)
        assert np.all((falling < 0) | np.isnan(falling))
    assert np.all(errors["dpsgd-poisson"] < errors["dpsgd-unamplified"])
    assert np.all(errors["memf-unamplified"] < errors["dpsgd-unamplified"])
    assert np.all(errors["bandmf-cyclic-poisson"] <= errors["dpsgd-poisson"] * 1.001)
    assert np.all(errors["bandmf-balls-in-bins"] <= errors["memf-unamplified"] * 1.01)
    for name in SERIES:
        for (_, _, _, epsilon), known in zip(POINTS, SERIES[name].epsilon_if_known, strict=True):
            assert known is None or known >= epsilon * (1 - 1e-4)


def test_the_page_on_choosing_tells_the_shipped_figures() -> None:
    """What the best correlated noise takes off the error of DP-SGD with Poisson batches, in per cent."""

    def saved(epochs: int, epsilon: float) -> int:
        place = POINTS.index((1e-5, 64, epochs, epsilon))
        errors = [series.rmse[place] for series in SHIPPED.series]
        return round(100 * (1 - min(error for error in errors[3:] if error is not None) / (errors[1] or math.nan)))

    text = " ".join((DOCS / "choose.md").read_text().split())
    words = (
        "it lowers the error of DP-SGD with Poisson batches by {}% in one epoch, by {}% in 4 epochs and by {}% in 16."
    )
    assert words.format(*(saved(epochs, 4.0) for epochs in (1, 4, 16))) in text
    assert [saved(epochs, 0.5) for epochs in (1, 4, 16)] == [22, 2, 0]
    assert "At epsilon 0.5 the figures are 22%, 2% and nothing" in text


@pytest.mark.parametrize("value", [1.0, 0.1, 2.00001, 3.14159265, 99999.5, 123456.7, 1e-7 / 3, 0.0])
def test_rounding_is_upwards_to_five_digits(value: float) -> None:
    rounded = rounded_up(value)
    assert value <= rounded <= value * (1 + 1e-4)
    assert len(f"{rounded:.15g}".replace(".", "").partition("e")[0].strip("0")) <= 5


# A grid of one's own


def stand_in(bins: int, epochs: int, epsilons: Any, delta: float, names: Any, **_: Any) -> Comparison:
    """A comparison whose figures tell where they belong."""
    statement = Statement(Adjacency.ADD_OR_REMOVE, "any", Standing.EXACT, "a test")
    rows = tuple(
        Row(name, epsilon, delta, bins + epochs / 100 + epsilon / 1000, 1.0, None, 2, 0, 1, 9.0, "", statement, 0.0)
        for name in names
        for epsilon in epsilons
    )
    return Comparison(bins, epochs, delta, tuple(epsilons), "prefix", rows, names[0], {}, 0.0)


def test_results_are_in_the_order_of_the_axes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("galton.explorer.results.compare", stand_in)
    axes = Axes.of_run(100, [50, 10], [3, 1], [2.0, 1.0], [1e-5, 1e-6])
    assert axes == Axes(deltas=(1e-6, 1e-5), bins=(2, 10), epochs=(1, 3), epsilons=(1.0, 2.0))
    results = compute_results(axes, 100)
    points = itertools.product(axes.deltas, axes.bins, axes.epochs, axes.epsilons)
    wanted = [bins + epochs / 100 + epsilon / 1000 for _, bins, epochs, epsilon in points]
    for series in results.series:
        shown = [error for error in series.rmse if error is not None]
        assert series.mechanism == LONG or shown == pytest.approx(wanted)
    assert [error is None for error in results.series[-1].rmse] == [True, True, False, False] * 4


@pytest.mark.parametrize(
    ("axes", "argument"),
    [
        ({"deltas": (1e-5, 2.0)}, r"deltas\[1\]"),
        ({"epsilons": (-1.0,)}, r"epsilons\[0\]"),
        ({"bins": ()}, "bins"),
        ({"epochs": (4, 2)}, "epochs"),
        ({"bins": (10**6,), "epochs": (10**6,)}, "epochs"),
    ],
    ids=["delta", "epsilon", "empty", "order", "rounds"],
)
def test_a_grid_that_makes_no_sense_is_refused(axes: dict[str, Any], argument: str) -> None:
    good: dict[str, Any] = {"deltas": (1e-5,), "bins": (4,), "epochs": (2,), "epsilons": (1.0,)}
    with pytest.raises(InvalidArgument, match=f"^{argument} = "):
        Axes(**good | axes)


# The page


class Elements(HTMLParser):
    """Start tags of a page with their attributes, and the text of its scripts."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        if self.tags and self.tags[-1][0] == "script" and data.strip():
            self.scripts.append(data)


def test_the_page_holds_the_results_and_loads_nothing() -> None:
    page = render(SHIPPED)
    elements = Elements(page)
    data, script = elements.scripts
    shown = json.loads(data)
    for part, series in zip(shown["series"], SHIPPED.to_json()["series"], strict=True):
        assert {name: part[name] for name in series} == json.loads(json.dumps(series))
    assert "<" not in embedded(SHIPPED)
    policy = next(attributes["content"] for tag, attributes in elements.tags if "http-equiv" in attributes)
    digest = b64encode(sha256(script.encode()).digest()).decode()
    assert policy == f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'"
    for tag, attributes in elements.tags:
        assert tag not in ("link", "img", "iframe", "base")
        assert not {"src", "style", "onclick", "action"} & set(attributes)
        assert attributes.get("href", "#")[:1] == "#"  # type: ignore[index]
    assert "http" not in script.replace("http://www.w3.org/2000/svg", "")
    assert "$" not in page.replace(script, "").replace(data, "")


def test_everything_on_the_page_can_be_reached_and_named() -> None:
    elements = Elements(render(SHIPPED))
    ids = Counter(attributes["id"] for _, attributes in elements.tags if "id" in attributes)
    assert set(ids.values()) == {1}
    for name in ("href", "for", "aria-describedby", "aria-labelledby"):
        for _, attributes in elements.tags:
            if name in attributes:
                assert (attributes[name] or "").removeprefix("#") in ids
    sliders = [attributes["id"] for _, attributes in elements.tags if attributes.get("type") == "range"]
    labelled = [attributes["for"] for tag, attributes in elements.tags if tag == "label" and "for" in attributes]
    assert sorted(map(str, sliders)) == sorted(map(str, labelled)) == ["bins", "deltas", "epochs", "epsilons"]
    script = elements.scripts[1]
    assert set(re.findall(r'byId\("([\w-]+)"\)', script)) <= set(ids)


def test_an_axis_with_a_single_value_has_no_slider(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("galton.explorer.results.compare", stand_in)
    axes = Axes(deltas=(1e-6,), bins=(4, 8), epochs=(1,), epsilons=(1.0, 3.0))
    elements = Elements(render(compute_results(axes, 64)))
    ids = {attributes.get("id") for _, attributes in elements.tags}
    assert {"bins", "epsilons", "curve-bins", "curve-epsilons", "deltas-value", "epochs-value"} <= ids
    assert not {"deltas", "epochs", "curve-deltas", "curve-epochs"} & ids
    assert json.loads(elements.scripts[0])["start"] == {"deltas": 0, "bins": 1, "epochs": 0, "epsilons": 1}


# The command


def test_the_command_writes_the_page_at_once(tmp_path: Path) -> None:
    target = tmp_path / "new" / "page.html"
    result = galton("explore", "-o", str(target), "--json")
    assert json.loads(result.out) == {"path": str(target), "points": SHIPPED.axes.points}
    assert target.read_text() == render(SHIPPED)


def test_the_command_computes_a_grid_of_ones_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("galton.explorer.results.compare", stand_in)
    target = tmp_path / "page.html"
    words = ("--examples", "64", "--batch-size", "8,16", "--epochs", "2", "--epsilons", "1,2", "--delta", "1e-4")
    result = galton("explore", *words, "-o", str(target), "--json")
    assert json.loads(result.out)["points"] == 4
    shown = json.loads(Elements(target.read_text()).scripts[0])
    assert shown["axes"] == {"deltas": [1e-4], "bins": [4, 8], "epochs": [2], "epsilons": [1.0, 2.0]}
    assert shown["examples"] == 64


OWN = {"--examples": "64", "--batch-size": "8", "--epochs": "2"}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ({"--examples": "64"}, "--batch-size and --epochs must be given, for a grid of your own"),
        ({"--epsilon": "2"}, "--examples, --batch-size and --epochs must be given, for a grid of your own"),
        (OWN | {"--batch-size": "8,65"}, "--batch-size[1] = 65.0: must be at most the examples, 64"),
        (OWN | {"--batch-size": "x"}, "--batch-size = 'x': must be numbers separated by commas"),
        (OWN | {"--epochs": "1.5"}, "--epochs = '1.5': must be whole numbers separated by commas"),
        (OWN | {"--epsilons": "0"}, "--epsilons = 0.0: must be greater than 0"),
        (OWN | {"--deltas": "1e-5,1"}, "--deltas[1] = 1.0: must lie strictly between 0 and 1"),
        (OWN | {"--examples": "0"}, "--examples = 0: must be at least 1"),
        ({"--epsilons": "a"}, "--epsilons = 'a': must be numbers separated by commas"),
        ({"--delta": "3"}, "--delta = 3.0: must lie strictly between 0 and 1"),
    ],
    ids=["missing", "no grid", "large", "word", "fraction", "epsilon", "delta", "none", "first word", "first delta"],
)
def test_the_command_refuses(words: dict[str, str], message: str, tmp_path: Path) -> None:
    target = tmp_path / "page.html"
    result = galton("explore", *itertools.chain(*words.items()), "-o", str(target))
    assert result.code == 2
    assert message in result.err
    assert not target.exists()


def test_the_command_refuses_a_folder_before_it_computes(tmp_path: Path) -> None:
    result = galton("explore", *itertools.chain(*OWN.items()), "-o", str(tmp_path))
    assert result.code == 2
    assert "is a folder" in result.err


def test_ctrl_c_says_that_nothing_is_lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("galton.explorer.results.compare", stop)
    result = galton("explore", *itertools.chain(*OWN.items()), "-o", str(tmp_path / "page.html"))
    assert result.code == 130
    assert "the same command goes on from there" in result.err
    assert not (tmp_path / "page.html").exists()


# In a browser

DRIVE = """<script>
addEventListener("load", () => {
  const page = document.querySelector("iframe").contentDocument, seen = [];
  const text = (id) => page.getElementById(id).textContent;
  const figures = (id) => [...page.querySelectorAll(`#${id} .figure`)].map((cell) => cell.firstChild.textContent);
  const note = () => seen.push({summary: text("summary"), errors: figures("error-rows"), leaks: figures("leak-rows"),
    command: text("command"), circles: page.querySelectorAll("#curve-epsilons circle").length,
    labels: ["epsilons", "deltas", "bins", "epochs"].map((name) => text(`${name}-value`)),
    spoken: page.getElementById("deltas").getAttribute("aria-valuetext"), shown: text("error-rows"),
    size: text("bins-hint")});
  const put = (name, place) => {
    const slider = page.getElementById(name);
    slider.value = place;
    slider.dispatchEvent(new Event("input"));
  };
  note();
  put("epsilons", 4), put("bins", 2), put("epochs", 2), put("deltas", 0);
  page.querySelector("input[value=noise_multiplier]").click();
  note();
  page.getElementById("examples").value = 12;
  page.getElementById("examples").dispatchEvent(new Event("input"));
  note();
  const result = document.createElement("pre");
  result.id = "result";
  result.textContent = JSON.stringify(seen);
  document.body.append(result);
});
</script>"""


def frame(page: str, width: int) -> str:
    return (
        f'<iframe title="{width}" style="border:0;width:{width}px;height:800px" srcdoc="{html.escape(page)}"></iframe>'
    )


def in_browser(folder: Path, content: str) -> Any:
    (folder / "frames.html").write_text(content)
    done = chromium(folder, "--virtual-time-budget=10000", "--dump-dom", (folder / "frames.html").as_uri())
    result = re.search(r'<pre id="result">(.*?)</pre>', done.stdout, flags=re.DOTALL)
    assert result is not None
    return json.loads(html.unescape(result[1]))


@browser
def test_sliders_show_the_figures_of_their_point(tmp_path: Path) -> None:
    before, after, few = in_browser(tmp_path, "<!DOCTYPE html><body>" + DRIVE + frame(render(SHIPPED), 1280))
    start = json.loads(embedded(SHIPPED))["start"]
    axes = vars(SHIPPED.axes)
    for seen, places in ((before, start), (after, {"epsilons": 4, "bins": 2, "epochs": 2, "deltas": 0})):
        place = POINTS.index(tuple(axes[name][places[name]] for name in ("deltas", "bins", "epochs", "epsilons")))
        errors = [series.rmse[place] for series in SHIPPED.series if series.rmse[place] is not None]
        assert [float(text.replace(",", "")) for text in seen["errors"]] == pytest.approx(errors, rel=5e-3)
        leaks = [series.epsilon_if_known[place] for series in SHIPPED.series if series.rmse[place] is not None]
        assert [float(text.replace(",", "")) for text in seen["leaks"]] == pytest.approx(leaks, rel=5e-3)
    assert before["labels"] == ["4", "10⁻⁵", "16", "4"]
    assert after["labels"] == ["8", "10⁻⁷", "64", "16"]
    assert after["spoken"] == "10⁻⁷"
    assert "16 epochs of 64 batches" in after["summary"]
    assert "takes long" in after["shown"]
    assert after["circles"] == 5 * (len(MECHANISMS) - 1)
    assert after["command"] == (
        "galton plan --examples 50000 --batch-size 781.25 --epochs 16 --epsilon 8 --delta 1e-7 -o plan/"
    )
    assert before["size"] == "batch size 3,125, of 50,000 examples"
    assert (few["command"], few["size"]) == ("", "")


@browser
def test_the_page_fits_phone_and_desktop(tmp_path: Path) -> None:
    page = render(SHIPPED)
    measured = in_browser(tmp_path, MEASURE + "".join(frame(page, width) for width in (360, 390, 768, 1280)))
    assert len(measured) == 4
    for seen in measured:
        assert seen["scroll"] <= seen["width"]
        assert seen["wide"] == []
        assert seen["broken"] == [], "a number breaks across lines"
        assert seen["split"] == [], "a word of a table breaks across lines"
        assert sum(min(size) > 100 for size in seen["svgs"]) == 4


@SLOW
@browser
@pytest.mark.parametrize("width", [390, 1280])
@pytest.mark.parametrize("mode", ["light", "dark"])
def test_the_page_is_readable_by_day_and_night(tmp_path: Path, mode: str, width: int) -> None:
    from matplotlib.image import imread

    page, picture = tmp_path / "frame.html", tmp_path / "picture.png"
    page.write_text("<!DOCTYPE html><style>body { margin: 0 }</style>" + frame(render(SHIPPED), width))
    extra = ["--force-dark-mode"] if mode == "dark" else []
    chromium(tmp_path, *extra, f"--window-size={max(width, 500)},800", f"--screenshot={picture}", page.as_uri())
    brightness = imread(picture)[:, :width, :3].mean(axis=-1)
    background = np.median(brightness)
    assert background < 0.2 if mode == "dark" else background > 0.9
    assert np.mean(np.abs(brightness - background) > 0.5) > 0.01
