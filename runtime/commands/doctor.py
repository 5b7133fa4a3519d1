"""The command `rollmux doctor`."""

from __future__ import annotations

from policies.commands.options import TableOrJson
from runtime.commands.options import Format
from runtime.commands.printing import print_as
from runtime.doctor import as_report, examine, findings_table


def doctor(format: Format = TableOrJson.table) -> None:
    """Show what this machine has, what a run would use, and what to install.

    Example: `rollmux doctor`
    """
    findings = examine()
    print_as(format, as_report(findings), findings_table(findings))
