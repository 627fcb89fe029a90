"""One picture of all measured losses, as shares of their prices."""

from __future__ import annotations

from pathlib import Path

from matplotlib.figure import Figure

from terrine_server.audit.findings import AuditFinding, AuditReport

KEPT, BROKEN, CLAIM = "#2f6f8f", "#b3261e", "#c77700"


def draw(report: AuditReport, path: Path) -> None:
    """Write a PNG of the measured lower bounds; the line at 1 is the price."""
    shown = [f for f in report.findings if f.measured is not None and f.price]
    figure = Figure(figsize=(9, 1.2 + 0.5 * len(shown)), layout="constrained")
    axes = figure.subplots()
    shares = [(f.measured or 0.0) / (f.price or 1.0) for f in shown]
    axes.barh(
        [f"{f.subject}\n{f.unit} ≥ {f.measured:.3g}, price {f.price:.3g}" for f in shown],
        shares,
        color=[_colour(finding) for finding in shown],
        height=0.62,
    )
    axes.axvline(1.0, color="black", linewidth=1.2)
    axes.text(1.0, -0.9, "price", ha="center", va="bottom", fontsize=9)
    axes.set_xlim(0, 1.05 * max([1.0, *shares]))
    axes.invert_yaxis()
    axes.set_xlabel(
        f"proven privacy loss as a share of its price (confidence {report.confidence:g})"
    )
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(axis="y", labelsize=9)
    figure.savefig(path, dpi=150, format="png")


def _colour(finding: AuditFinding) -> str:
    if finding.verdict.startswith("claim"):
        return CLAIM
    return KEPT if finding.passed else BROKEN
