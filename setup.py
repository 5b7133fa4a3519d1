"""What pyproject.toml cannot say: examples/ is installed inside `rollmux_env`, where commands find its files by name."""

from setuptools import find_namespace_packages, setup

PACKAGES = find_namespace_packages(include=["rollmux_env*", "policies*", "trainers*", "runtime*"])
setup(packages=[*PACKAGES, "rollmux_env.examples"], package_dir={"rollmux_env.examples": "examples"})
