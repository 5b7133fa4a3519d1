"""The command `rollmux doctor`."""

from __future__ import annotations

from policies.commands.options import TableOrJson
from policies.commands.printed import Printed
from runtime.commands.options import Format
from runtime.doctor import as_report, examine, findings_table


def doctor(format: Format = TableOrJson.table) -> None:
    """Show what this machine has, what a run would use, and what to install.

    Example: `rollmux doctor`
    """
    findings = examine()
    Printed(as_report(findings), [findings_table(findings)]).show(format)
