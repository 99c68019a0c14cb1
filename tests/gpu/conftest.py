"""A table of what was measured, at the end of the run."""

FIGURES = ("peak_allocated", "peak_active", "peak_reserved", "peak_requested", "allocated")


def pytest_terminal_summary(terminalreporter):
    """Print one row a case: the trace's figures, and by how much torch's counters differ."""
    rows = []
    for outcome in ("passed", "failed"):
        for result in terminalreporter.stats.get(outcome, ()):
            report = dict(getattr(result, "user_properties", ())).get("report")
            if report is not None and result.when == "call":
                rows.append((outcome, report))
    if not rows:
        return
    line = terminalreporter.write_line
    first = rows[0][1]
    line("")
    line(f"{first['device']}, torch {first['torch']}; bytes, and in brackets the difference to torch's own counters")
    line("")
    line("| case | events | " + " | ".join(figure.replace("_", " ") for figure in FIGURES) + " | checks |")
    line("| --- |" + " ---: |" * (1 + len(FIGURES)) + " --- |")
    for outcome, report in rows:
        cells = [report["case"], f"{report.get('events', 0):,}"]
        for figure in FIGURES:
            if figure in report.get("compared", ()):
                found = report["trace"][figure]
                cells.append(f"{found:,} ({found - report['truth'][figure]:+,})")
            else:
                cells.append("")
        checks = report.get("checks", {})
        cells.append(f"{sum(checks.values())} of {len(checks)}" + ("" if outcome == "passed" else ", FAILED"))
        line("| " + " | ".join(cells) + " |")
