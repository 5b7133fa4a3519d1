"""What pyproject.toml cannot say: where examples and the client are installed, and the README of an index page.

examples/ is installed inside `rollmux_env`, where commands find its files by name. The modules of clients/python are installed
beside `rollmux`, which uses them too; `rollmux-client` has them alone, for environments without RollMux. `rollmux-stubs` has the
types of the module `rollmux` (PEP 561).

ROLLMUX_REPOSITORY is the address at which the repository is published, as in https://example.org/us/rollmux. Without it no address
is in the metadata, and links of README.md that lead to other files are plain text.
"""

import os
import re
import tomllib
from pathlib import Path

from setuptools import find_namespace_packages, setup
from setuptools.command.build_py import build_py

HERE = Path(__file__).parent
CLIENT = {path.stem: f"clients/python/{path.stem}" for path in sorted((HERE / "clients" / "python").glob("*.py"))}
PACKAGES = find_namespace_packages(str(HERE), include=["rollmux_env*", "policies*", "trainers*", "runtime*"])
_BLOCK = re.compile(r"(^```.*?^```$)", re.S | re.M)
_LINK = re.compile(r"(!?)(\[[^\]]*\])\((?!\w+:)([^)\s]+)\)")


def with_whole_links(text: str, source: str, version: str) -> str:
    """Return a page whose relative links lead to the repository as it was at a version, so that they hold on any page.

    Args:
        text: Text of the page, in Markdown.
        source: Address of the repository, or an empty text if it is not known: then such links become plain text, and pictures go.
        version: Version, which follows the v of its tag.
    """

    def whole(link: re.Match[str]) -> str:
        image, words, target = link.groups()
        if not source:
            return "" if image else words[1:-1]
        page = "README.md" if target.startswith("#") else ""
        return f"{image}{words}({source}/{'raw' if image else 'blob'}/v{version}/{page}{target})"

    parts = _BLOCK.split(text)
    parts[::2] = [_LINK.sub(whole, prose) for prose in parts[::2]]
    return "".join(parts)


class BuildModules(build_py):
    """Finds each top-level module where `package_dir` has it: setuptools looks for all of them in one folder."""

    def find_modules(self) -> list[tuple[str, str, str]]:
        """Return (package, module, file) of every top-level module."""
        return [("", name, f"{self.package_dir.get(name, name)}.py") for name in self.py_modules]


if __name__ == "__main__":
    project = tomllib.loads((HERE / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    source = os.environ.get("ROLLMUX_REPOSITORY", "").rstrip("/")
    addresses = {"Source": source, "Issues": f"{source}/issues", "Changelog": f"{source}/blob/main/CHANGELOG.md"}
    readme = (HERE / "README.md").read_text(encoding="utf-8")
    setup(
        packages=[*PACKAGES, "rollmux_env.examples", "rollmux-stubs"],
        package_dir={"rollmux_env.examples": "examples", **CLIENT},
        py_modules=["rollmux", *CLIENT],
        cmdclass={"build_py": BuildModules},
        long_description=with_whole_links(readme, source, project["version"]),
        project_urls=addresses if source else {},
        long_description_content_type="text/markdown",
    )
