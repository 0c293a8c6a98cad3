"""The page: words, pictures and tables in one HTML file. Everything from the plan is escaped here."""

from __future__ import annotations

from html import escape

from galton.accountants import Curve
from galton.accounting import Certificate
from galton.plan import Plan
from galton.report import figures, words
from galton.report.correlation import Correlation, noise_correlation
from galton.report.curves import relies_on_secrecy
from galton.report.disclosure import Disclosure, disclose
from galton.report.markup import columns, paragraphs, settings_table, table, table_head
from galton.report.numbers import DIGITS, TIMES, percent_at_most, short, written
from galton.report.risk import RATES, Risk
from galton.report.style import CSS, POLICY

_SECTIONS = {
    "meaning": "What it means",
    "evidence": "How sure it is",
    "risk": "Risk in numbers",
    "curves": "Privacy curve",
    "noise": "Noise",
    "batches": "Batches",
    "error": "Error",
    "disclosure": "Disclosure",
    "settings": "Settings",
}


def render(plan: Plan, curve: Curve) -> str:
    """Returns the report of a plan as one HTML page.

    Args:
      plan: the plan.
      curve: its privacy curve (`privacy_curve`).

    Returns:
      The page.
    """
    title = f"Privacy report: ε = {short(plan.guarantee.epsilon)}, δ = {short(plan.guarantee.delta)}"
    disclosure = disclose(plan, curve)
    parts = [
        _meaning(plan, curve, disclosure.secret),
        _evidence(plan),
        _risk(disclosure),
        _curves(plan, curve),
        _noise(plan),
    ]
    main = "\n".join([*parts, _batches(plan), _error(plan), _disclosure(disclosure), _settings(plan)])
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{escape(POLICY)}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="generator" content="galton">
<title>{escape(title)}</title>
<style>{CSS}</style>
</head>
<body>
{_header(plan, disclosure.secret)}
<main>
{main}
</main>
<footer>
<p class="small">Written by <code>galton report</code> from the plan <code>{escape(plan.digest)}</code>.
<code>galton verify</code> checks that plan against fresh samples.</p>
</footer>
</body>
</html>
"""


def _header(plan: Plan, risk: Risk) -> str:
    facts = [
        ("guarantee (ε, δ)", f"({short(plan.guarantee.epsilon)}, {short(plan.guarantee.delta)})"),
        ("best guess right at most", percent_at_most((1 + risk.advantage) / 2)),
        ("noise multiplier", short(plan.noise_multiplier, DIGITS)),
        ("error (RMSE)", short(plan.rmse, DIGITS)),
    ]
    cells = "\n".join(f"<div><dt>{escape(name)}</dt><dd>{escape(value)}</dd></div>" for name, value in facts)
    links = "\n".join(f'<li><a href="#{name}">{title}</a></li>' for name, title in _SECTIONS.items())
    return f"""<header>
<h1>Privacy report</h1>
<p class="lead">Differentially private training on {plan.examples:,} {plan.unit}s: {plan.rounds:,} rounds,
{plan.epochs:,} {"epoch" if plan.epochs == 1 else "epochs"}, {escape(plan.scheme.name)} batches,
{escape(plan.guarantee.adjacency.value)} adjacency.</p>
<dl class="facts">
{cells}
</dl>
<nav aria-label="Sections"><ul>
{links}
</ul></nav>
</header>"""


def _meaning(plan: Plan, curve: Curve, risk: Risk) -> str:
    limits = zip(RATES, risk.true_positive_rates, strict=True)
    rows = [(percent_at_most(rate), percent_at_most(limit)) for rate, limit in limits]
    person = [
        "<h3>For a person whose data is used</h3>",
        paragraphs(words.meaning(plan, risk, bool(curve.estimates))),
        table(("false alarms", "hits, at most"), rows, f"The best possible test of {words.question(plan)}"),
        "<h3>Which data sets are compared</h3>",
        paragraphs([plan.worded(plan.guarantee.adjacency.wording.neighbours)]),
    ]
    run = [
        "<h3>If the batches leak</h3>",
        paragraphs([words.leak(plan)]),
        "<h3>What must be true of the training run</h3>",
        "<ul>\n" + "\n".join(f"<li>{escape(condition)}</li>" for condition in words.conditions(plan)) + "\n</ul>",
    ]
    claim = f'<p class="claim">{escape(written(plan.statement))}</p>'
    claim += "".join(f'\n<p class="claim">Warning: {escape(written(warning))}.</p>' for warning in plan.warnings)
    return _section("meaning", claim, columns("\n".join(person), "\n".join(run)))


def _evidence(plan: Plan) -> str:
    evidence = plan.evidence
    if evidence.certificate is not None:
        return _certificate(evidence.certificate)
    proved = evidence.proved
    rows = [
        ("accountant", evidence.accountant),
        *((name, f"{text} (bins: {plan.bins:,})" if " bins" in text else text) for name, text in evidence.details),
        ("proved", f"δ ≤ {short(proved.delta)} at ε = {short(proved.epsilon)}, {proved.adjacency} adjacency"),
        ("noise multiplier proved", short(evidence.noise_multiplier, DIGITS)),
    ]
    text = "The guarantee was calculated, not sampled: there is no certificate, no seed and no probability of failure."
    return _section("evidence", paragraphs([text]), settings_table(rows))


def _certificate(certificate: Certificate) -> str:
    chosen, failure = certificate.seed_chosen_by_user, certificate.failure_probability
    text = "The claim was fixed first and then put to the test, and a run is to be released only because it passed. "
    text += certificate.how_sure
    source = "CHOSEN BY THE USER: valid only if not chosen for its outcome" if chosen else "from the operating system"
    rows = [
        ("verdict", "accepted" if certificate.accepted else "rejected"),
        ("proved", f"δ ≤ {short(certificate.delta_upper, DIGITS)} at ε = {short(certificate.guarantee.epsilon)}"),
        ("samples", f"{certificate.samples:,}"),
        ("failure probability", short(failure, 4)),
        ("attempts", f"{certificate.attempts:,}"),
        ("seed", f"{certificate.seed}, {source}"),
        ("bound", certificate.bound),
        ("made", f"{_readable_time(certificate.created)}, in {short(certificate.seconds, 3)}\N{NO-BREAK SPACE}s"),
    ]
    verdicts = [
        (verdict.direction.value, verdict.sampler, short(verdict.estimate, 3), f"{verdict.samples:,}")
        for verdict in certificate.by_direction
    ]
    head = ("direction", "sampler", "δ, estimate", "samples")
    by_direction = table(head, verdicts, "By direction of the comparison", text=2)
    return _section("evidence", paragraphs([text]), columns(settings_table(rows), by_direction))


def _risk(disclosure: Disclosure) -> str:
    names, rows = disclosure.figures()
    return _section("risk", table(names, rows, "Upper limits, rounded up"), paragraphs(disclosure.notes))


def _disclosure(disclosure: Disclosure) -> str:
    ahead = "What a reviewer asks for, in one table; galton disclose writes it as text, Markdown or one printed page."
    return _section("disclosure", paragraphs([ahead]), settings_table(disclosure.rows))


def _curves(plan: Plan, curve: Curve) -> str:
    ahead = "The guarantee is one point of a curve: the same run has a δ for every ε."
    leak = " Dashed: if the batches become known." if relies_on_secrecy(plan) else ""
    pictures = [
        _figure(
            "δ for every ε",
            figures.profile_picture(plan, curve),
            f"Every point on or above the line is a guarantee of this run.{leak}",
        ),
        _figure(
            "What no test can do",
            figures.trade_off_picture(plan, curve),
            f"No test of {words.question(plan)} gets into the shaded area, by the upper limits.{leak}",
        ),
    ]
    details = f"<details><summary>The curve in numbers</summary>{_curve_table(curve)}</details>"
    return _section("curves", paragraphs([ahead, curve.words]), columns(*pictures), details)


def _curve_table(curve: Curve) -> str:
    step = max(1, (len(curve.epsilons) - 1) // 18)
    series = [("ε", curve.epsilons), ("δ, estimate", curve.estimates), ("δ, at most", curve.uppers)]
    filled = [(name, [short(value, 3) for value in values[::step]]) for name, values in series if values]
    rows = zip(*(values for _, values in filled), strict=True)
    return table([name for name, _ in filled], rows, "Limits are rounded to three digits.")


def _noise(plan: Plan) -> str:
    correlation = noise_correlation(plan.strategy)
    independent = correlation is not None and correlation.independent
    text, pictures = [words.noise(plan, independent)], []
    if not independent:
        caption = "How much a round's gradient counts in later rounds of Cx, to which independent noise z is added."
        pictures.append(_figure("Strategy C", figures.strategy_picture(plan.strategy), caption))
    if correlation is None:
        text.append("The correlation of the noise is not drawn: a tree of so many rounds takes too much memory.")
    else:
        if correlation.rounds < plan.rounds:
            text.append(f"The pictures of the noise show the first {correlation.rounds:,} of {plan.rounds:,} rounds.")
        pictures += _noise_pictures(plan, correlation)
    return _section("noise", paragraphs(text), columns(*pictures))


def _noise_pictures(plan: Plan, correlation: Correlation) -> list[str]:
    caption = "Standard deviation of the noise that is added to the sum of one round."
    deviation = _figure("Noise by round", figures.deviation_picture(plan, correlation), caption)
    if correlation.independent:
        return [deviation]
    caption = (
        f"Correlation C⁻¹C⁻ᵀ of the last {correlation.window.shape[0]} rounds"
        f"{'' if correlation.rounds == plan.rounds else ' shown'}. Orange takes noise back, blue adds to it."
    )
    heat = _figure("Noise between rounds", figures.heat_picture(correlation), caption)
    caption = "Correlation of the last round's noise with that of earlier rounds."
    return [heat, _figure("Noise by distance", figures.lag_picture(correlation), caption), deviation]


def _batches(plan: Plan) -> str:
    text = paragraphs([plan.worded(words.batches(plan))])
    if plan.scheme.inclusion is None:
        return _section("batches", text)
    caption = "Probability of every batch size. Sums are divided by the expected batch size, whatever the size is."
    return _section("batches", columns(text, _figure("Batch sizes", figures.batch_picture(plan), caption)))


def _error(plan: Plan) -> str:
    own = _error_row("this plan", plan.spec, plan.evidence.standing.value, plan.rmse, 1.0, "own")
    others = [
        _error_row(other.name, other.description, other.standing, other.rmse, other.rmse / plan.rmse)
        for other in plan.alternatives
    ]
    head = table_head(("mechanism", "standing", "RMSE"), text=2)
    body = "\n".join([own, *others])
    errors = f"<table>\n<thead><tr>{head}</tr></thead>\n<tbody>\n{body}\n</tbody>\n</table>"
    picture = _figure("Against the alternatives", figures.error_picture(plan), "Root-mean-square error.")
    return _section("error", paragraphs([words.error(plan)]), columns(picture, errors))


def _error_row(name: str, description: str, standing: str, rmse: float, ratio: float, kind: str = "") -> str:
    return (
        f'<tr class="{kind}"><th scope="row">{escape(name)}<small>{escape(description)}</small></th>'
        f'<td class="word">{escape(standing)}</td>'
        f'<td class="number">{short(rmse, DIGITS)}<small>{TIMES}{short(ratio, 3)}</small></td></tr>'
    )


def _settings(plan: Plan) -> str:
    groups: dict[str, list[tuple[str, str]]] = {
        "Guarantee": [
            ("epsilon", short(plan.guarantee.epsilon, 6)),
            ("delta", short(plan.guarantee.delta, 6)),
            ("adjacency", plan.guarantee.adjacency.value),
            ("accountant", plan.evidence.accountant),
        ],
        "Batches": [
            ("scheme", plan.scheme.name),
            (f"{plan.unit}s", f"{plan.examples:,}"),
            *([] if plan.per_user is None else [("examples of a user in a round", f"at most {plan.per_user:,}")]),
            ("batches per epoch", f"{plan.bins:,}"),
            ("epochs", f"{plan.epochs:,}"),
            ("rounds", f"{plan.rounds:,}"),
            ("expected batch size", short(plan.expected_batch_size, 6)),
            ("padded batch size", f"{plan.padded_batch_size:,}"),
            ("truncation of a batch", short(plan.truncation.per_batch, 3)),
            ("truncation in the run", short(plan.truncation.probability, 3)),
        ],
        "Strategy and noise": [
            ("strategy", plan.spec),
            ("kind of C", plan.strategy.kind),
            ("hash of C", plan.strategy.digest),
            ("sensitivity of C", short(plan.sensitivity, DIGITS)),
            ("noise multiplier", short(plan.noise_multiplier, DIGITS)),
            ("clip norm", short(plan.clip_norm, DIGITS)),
            ("standard deviation of z", short(plan.stddev, DIGITS)),
            ("workload", plan.workload),
            ("RMSE", short(plan.rmse, DIGITS)),
        ],
        "Provenance": [
            ("plan", plan.digest),
            ("made", _readable_time(plan.created)),
            *((f"version of {name}", str(value)) for name, value in plan.versions.items()),
        ],
    }
    tables = columns(*(f"<h3>{title}</h3>\n{settings_table(rows)}" for title, rows in groups.items()))
    source = f"<details><summary>plan.json, with all digits</summary><pre>{escape(plan.text)}</pre></details>"
    return _section("settings", tables, source)


def _readable_time(text: str) -> str:
    """Returns a time of `provenance.now` in the form that people write it."""
    return text.replace("T", " ").replace("+00:00", " UTC")


def _section(name: str, *parts: str) -> str:
    body = "\n".join(parts)
    return f'<section aria-labelledby="{name}">\n<h2 id="{name}">{_SECTIONS[name]}</h2>\n{body}\n</section>'


def _figure(title: str, svg: str, caption: str) -> str:
    return f"<figure>\n<h3>{escape(title)}</h3>\n{svg}\n<figcaption>{escape(caption)}</figcaption>\n</figure>"
