"""What each study's figure shows: predicted lines through measured points, from the data of its parts alone."""

from typing import Any

import numpy as np

from esth import plots
from esth.lemmas import fisher_rate as rate
from esth.noise import FAMILIES
from esth.weighting import uniform
from toy.study import Data


def fisher_rate(title: str, data: Data) -> Any:
    """E[JS] against σ, its ratio to the rate, tightness of the bracket, spread over populations."""
    fig, (a, b, c, d) = plots.figure(title, 4)
    curve = data["curve"]
    sigma = np.array(curve["sigma"])
    for style, noise in enumerate(FAMILIES):
        mean_, se = np.array(curve[noise]["mean"]), np.array(curve[noise]["se"])
        predicted = rate.predict(curve["trace"], sigma, uniform(curve["n"]), antithetic=noise == "antithetic")
        shift = 1.08 ** (style - 1.5)  # side by side: equal rates would hide one another
        plots.measured(a, sigma * shift, mean_, se, style=style, name=noise)
        plots.measured(b, sigma**2 * curve["trace"] * shift, mean_ / predicted, se / predicted, style=style, name=noise)
        if noise in ("gaussian", "antithetic"):
            small = predicted < 4 * np.log(curve["n"])
            plots.predicted(a, sigma[small], predicted[small], style=style, name=f"rate, {noise}")
    plots.level(a, np.log(curve["n"]), name="log N")
    plots.level(b, 1.0, name="rate")
    plots.label(a, "(a) diversity, categorical, V = 8, N = 4", "σ", "E[JS] (nats)", log="xy")
    plots.label(b, "(b) the same over its rate", "σ² tr F (nats)", "E[JS] / rate", log="x")
    b.set_ylim(0, 1.15)
    tight = data["tightness"]
    for style, name in enumerate(("categorical", "autoregressive")):
        plots.predicted(c, tight["sigma"], tight[name]["low"], style=style, name=f"lower / JS, {name}")
        plots.predicted(c, tight["sigma"], tight[name]["high"], style=style + 2, name=f"JS / upper, {name}")
    plots.label(c, "(c) tightness of the bracket, N = 8", "σ", "mean tightness (1: tight)", log="x")
    spread = data["spread"]
    plots.measured(d, spread["n"], spread["measured"], spread["se"], name="Gaussian")
    plots.predicted(d, spread["n"], spread["predicted"], name="√(2/((N−1) r_eff))")
    plots.label(d, "(d) spread over populations", "members N", "sd(JS) / E[JS]", log="xy")
    plots.ticks(d, spread["n"])
    for ax in (a, b, c, d):
        plots.legend(ax)
    return fig


def population_advantage(title: str, data: Data) -> Any:
    """G/JSᵛ between the odds, the rate of the advantage, and the population against three single policies."""
    fig, (a, b, c, d) = plots.figure(title, 4)
    bracket = data["odds_bracket"]
    plots.band(a, bracket["sigma"], bracket["lower"], bracket["upper"], name="odds(p_min) … odds(p_max)")
    plots.measured(a, bracket["sigma"], bracket["gap"], name="G / JSᵛ")
    plots.level(a, 1.0, name="odds(p̄), the limit")
    plots.label(a, "(a) G / JSᵛ, categorical, N = 16, medians", "σ", "in units of odds(p̄)", log="xy")
    a.set_ylim(1e-4, 1e4)
    for style, (name, points) in enumerate(data["rate"].items()):
        plots.measured(b, points["sigma"], points["mean"], points["se"], style=style, name=name)
        plots.predicted(b, points["sigma"], points["predicted"], style=style)
    plots.label(b, "(b) advantage over the mixture, lines: rate", "σ", "E[P_pop − P_mix]", log="xy")
    for ax, letter, shape in ((c, "c", "convex"), (d, "d", "concave")):
        points = data["smoothed"][shape]
        sigma = points["sigma"]
        plots.measured(ax, sigma, points["iid"], points["iid_se"], style=0, name="P_pop, i.i.d.")
        plots.predicted(ax, sigma, points["smoothed"], style=0, name="N draws of the smoothed policy")
        plots.measured(ax, sigma, points["pairs"], points["pairs_se"], style=1, name="P_pop, antithetic")
        plots.predicted(ax, sigma, points["paired"], style=1, name="predicted from Cov(p(ε), p(−ε))")
        plots.measured(ax, sigma, points["mixture"], points["mixture_se"], style=2, name="N draws of the mixture")
        plots.level(ax, points["center"][0], name="N draws of the center")
        plots.label(ax, f"({letter}) success {shape} at the center, N = 4", "σ", "mean success", log="x")
    for ax in (a, b, c, d):
        plots.legend(ax)
    return fig


def reward_weighting(title: str, data: Data) -> Any:
    """Gain against β·ρ·sd(p), its attenuation, its reversal, and the price of weighting."""
    fig, (a, b, c, d) = plots.figure(title, 4)
    plots.measured(a, data["identities"]["predicted"], data["identities"]["gain"], name="one prompt of one population")
    ends = [min(data["identities"]["predicted"]), max(data["identities"]["predicted"])]
    plots.predicted(a, ends, ends, style=1, name="equal (an identity)")
    plots.label(a, "(a) gain of the linear tilt, N = 30, β = ½", "β |ρ| sd(p)", "|p̄_w − p̄|", log="xy")
    for style, (name, points) in enumerate(data["attenuation"].items()):
        shift = 1.08 ** (style - 1)
        plots.measured(b, np.array(points["m"]) * shift, points["ratio"], points["se"], style=style, name=name)
    plots.level(b, 1.0, name="β √reliability sd(p)")
    plots.label(b, "(b) gain of noisy z-scored fitness", "verified responses m a member", "gain / predicted", log="x")
    plots.ticks(b, data["attenuation"]["N = 4"]["m"])
    tilts = data["tilts"]
    plots.predicted(c, tilts["beta"], tilts["ordered"], style=0, name="f ordered like p, 16 members")
    plots.predicted(c, tilts["beta"], tilts["reversing"], style=2, name="f = (0, 1, 3), p = (0, .9, .45)")
    plots.label(c, "(c) softmax tilt: rise and reversal", "β", "success of the mixture p̄_w")
    price = data["diversity_price"]
    for style, name in enumerate(("independent", "linear", "εᵀFε")):
        points = price[name]
        plots.measured(d, price["beta"], points["ratio"], points["se"], style=style, name=f"{name} fitness")
        line = "1 − 1/N_eff" + (" less β²(1−2/N)ĝᵀFĝ/tr F" if name == "linear" else "")
        if name != "εᵀFε":
            plots.predicted(d, price["beta"], points["predicted"], style=style, name=line)
    plots.label(d, "(d) price of weighting in diversity, N = 16", "β", "E[JS_w] / E[JS]")
    for ax in (a, b, c, d):
        plots.legend(ax)
    return fig


def center_update(title: str, data: Data) -> Any:
    """Transfer error against its bound, the books of coverage, drift, and the members at which signal beats it."""
    fig, (a, b, c, d) = plots.figure(title, 4)
    transfer, sigma = data["transfer"], data["transfer"]["sigma"]
    series = [("gain", "gain p̄_w − p̄"), ("error", "transfer error"), ("bound", "its bound")]
    for style, (key, name) in enumerate(series):
        plots.measured(a, sigma, transfer["linear"][key], style=style, name=name)
    plots.predicted(a, sigma, transfer["linear"]["typical"], style=1, name="β σ²‖∇²p‖_F/√2")
    plots.label(a, "(a) transfer, linear, N = 32, β = ½", "σ", "root mean square", log="xy")
    a.set_ylim(top=10)
    books = data["books"]
    for style, name in enumerate(("updated", "population", "mixture", "stratification")):
        shown = {"updated": "new center", "population": "population"}.get(name, f"of it: {name}")
        plots.measured(b, books["sigma"], books[name], books[f"{name}_se"], style=style, name=shown)
    plots.level(b, 0.0)
    plots.label(b, "(b) coverage at K = N, linear, N = 16, β = ½", "σ", "C_N − C_N(center)", log="x")
    for style, (name, points) in enumerate(data["drift"].items()):
        way = "rises" if points["predicted"][0] > 0 else "falls"
        plots.measured(c, points["alpha"], np.abs(points["mean"]), points["se"], style=style, name=f"{name}, {way}")
        plots.predicted(c, points["alpha"], np.abs(points["predicted"]), style=style, name=f"α²|tr H|/(2N), {name}")
    plots.label(c, "(c) drift under random fitness, linear, N = 16", "α", "|E[C_K(θ⁺)] − C_K(θ)|", log="xy")
    needed = data["needed"]
    plots.measured(d, needed["n"], needed["mean"], needed["se"], name="measured")
    plots.predicted(d, needed["line_n"], needed["line"], style=1, name="αρ‖∇C_K‖ + α² tr H/(2N)")
    plots.level(d, 0.0)
    plots.level(d, needed["crossing"], vertical=True, name="α|tr H|/(2ρ‖∇C_K‖)")
    plots.label(d, "(d) signal against drift, linear, K = 8", "members N", "E[C_K(θ⁺)] − C_K(θ)", log="x")
    plots.ticks(d, needed["n"])
    for ax in (a, b, c, d):
        plots.legend(ax)
    return fig


def two_point(title: str, data: Data) -> Any:
    """Variances against σ, their difference against C − C′, and C against the length of a response."""
    fig, (a, b, c) = plots.figure(title, 3, columns=3)
    for style, kind in enumerate(("one-point", "two-point")):
        points, c_name = data["linear"][kind], ("c′ = 0.2", "c = 0.6")[style]
        plots.measured(a, points["sigma"], points["mean"], points["se"], style=style, name=f"{kind}, {c_name}")
        plots.predicted(a, points["sigma"], points["predicted"], style=style)
    plots.label(a, "(a) linear J, noise τ = 0.3, N = 32; lines: predicted", "σ", "variance of a coordinate", log="xy")
    points = data["policy"]
    plots.measured(b, points["wins"], points["difference"], points["se"], name="pairs share random numbers")
    plots.predicted(b, points["wins"], points["predicted"], style=1, name="(C − C′)/(σ²N)")
    plots.level(b, 0.0)
    plots.level(b, 0.0, vertical=True)
    plots.label(b, "(b) binary rewards, N = 64, σ = ½", "C − C′", "one-point − two-point variance")
    points = data["decoupling"]
    plots.measured(c, points["length"], points["correlation"], points["se"], name="one random stream a pair")
    plots.level(c, 0.0)
    plots.label(
        c, "(c) regenerated responses decouple", "longest response (tokens)", "correlation c of the rewards of a pair"
    )
    for ax in (a, b, c):
        plots.legend(ax)
    return fig
