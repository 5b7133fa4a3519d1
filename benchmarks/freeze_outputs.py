"""Keep the output of the commands on the documentation pages, one file per command in docs/results/output.

    python benchmarks/freeze_outputs.py production mixed             run the commands of these files again, and rewrite them
    python benchmarks/freeze_outputs.py NAME --command "rollmux ..."  write a file for another command
    python benchmarks/freeze_outputs.py shift --remarks               rewrite the remarks below a suite, and run nothing

The first line of a file is the command. `tests/test_outputs.py` compares README and the pages with these files. Output of commands
that measure real runs is kept too. It contains other times when they run again, so the page changes with it.
"""

from __future__ import annotations

import argparse
import io
import re
import shlex
import subprocess
import sys
from contextlib import redirect_stdout
from pathlib import Path

from rollmux_env.bench.suite import shortened
from rollmux_env.bench.suites import find_suite
from rollmux_env.files import write_whole
from rollmux_env.report.suites import remarks
from rollmux_env.report.tables import show

FOLDER = Path(__file__).parents[1] / "docs" / "results" / "output"


def command_of(file: Path) -> str:
    """Return the command whose output a file contains."""
    return file.read_text(encoding="utf-8").partition("\n")[0].removeprefix("$ ")


def text_of(command: str) -> str:
    """Return the text of a command's file: the command, and its standard output without blanks at the ends of lines.

    Raises:
        subprocess.CalledProcessError: The command fails.
    """
    program, *words = shlex.split(command)
    runs = [sys.executable] if program == "python" else [str(Path(sys.executable).with_name(program))]
    printed = subprocess.run([*runs, *words], stdout=subprocess.PIPE, text=True, check=True, cwd=FOLDER.parents[2]).stdout
    return "\n".join([f"$ {command}", *(line.rstrip() for line in printed.strip("\n").splitlines())]).rstrip("\n") + "\n"


def with_remarks(text: str) -> str:
    """Return the text of a suite's file with the remarks that the suite prints today below its table."""
    words = shlex.split(text.partition("\n")[0])
    suite = find_suite(words[words.index("--suite") + 1], [words[k + 1] for k, word in enumerate(words) if word == "--set"])
    printed = io.StringIO()
    with redirect_stdout(printed):
        show(*remarks(shortened(suite) if "--quick" in words else suite))
    table = re.split(r"^(?:Note|Why it differs): ", text, maxsplit=1, flags=re.M)[0]
    return table + "".join(f"{line.rstrip()}\n" for line in printed.getvalue().splitlines())


def main() -> None:
    """Run the commands of the named files, and write their output."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="+", help="files, without .txt")
    parser.add_argument("--command", help="of a file that there is not yet")
    parser.add_argument("--remarks", action="store_true", help="write the remarks of suites alone, and keep their tables")
    options = parser.parse_args()
    for name in options.names:
        file = FOLDER / f"{name}.txt"
        old = file.read_text(encoding="utf-8") if options.remarks else ""
        write_whole(file, with_remarks(old) if options.remarks else text_of(options.command or command_of(file)))


if __name__ == "__main__":
    main()
