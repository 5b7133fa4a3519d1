"""What dollars and streams are computed with gives the same bits on every processor."""

from __future__ import annotations

import ast
import math
import os
import subprocess
import sys
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollmux_env import portable
from tests.fixtures import ROOT

_VECTORS = st.lists(st.tuples(st.floats(-1e9, 1e9), st.integers(0, 10_000)), max_size=40)
_OTHER_PROCESSOR = {"OPENBLAS_CORETYPE": "Prescott", "NPY_DISABLE_CPU_FEATURES": "AVX512F AVX512CD AVX512_SKX AVX2 FMA3"}


@given(pairs=_VECTORS)
def test_a_dot_product_is_the_exact_sum_of_its_products_rounded_once(pairs: list[tuple[float, int]]) -> None:
    a, b = [x for x, _ in pairs], [n for _, n in pairs]
    exact = sum((Fraction(x * n) for x, n in pairs), Fraction(0))
    assert portable.dot(a, b) == float(exact)
    assert portable.dot(a[::-1], b[::-1]) == float(exact)


def test_functions_are_those_of_the_c_library() -> None:
    values = np.random.default_rng(0).random((3, 50)) * 5
    for function, plain in ((portable.exp, math.exp), (portable.log, math.log), (portable.log1p, math.log1p)):
        assert function(values).tolist() == [[plain(value) for value in row] for row in values.tolist()]
    assert portable.power(values, 0.3).tolist() == [[value**0.3 for value in row] for row in values.tolist()]
    assert portable.exp([math.inf, -math.inf, 1e4]).tolist() == [math.exp(700), 0.0, math.exp(700)]


def test_nothing_else_is_summed_by_blas_or_computed_by_functions_of_numpy() -> None:
    compiled = {"kernel", "dynamics.py"}  # by Numba, which calls the C library
    # float32 networks; a fit whose result is a constant; a regression, whose module says so
    others = {"scorer.py", "published.py", "portable.py", "learned_lengths.py"}
    names = {"dot", "vdot", "inner", "matmul", "einsum", "exp", "expm1", "log", "log1p", "log2", "log10", "power"}
    uses = []
    for path in [*(ROOT / "rollmux_env").rglob("*.py"), *(ROOT / "policies").rglob("*.py")]:
        if (compiled | others) & set(path.parts):
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            match node:
                case ast.BinOp(op=ast.MatMult()):
                    uses.append(f"{path.relative_to(ROOT)}:{node.lineno}: @")
                case ast.Attribute(value=ast.Name(id="np"), attr=name) if name in names:
                    uses.append(f"{path.relative_to(ROOT)}:{node.lineno}: np.{name}")
    assert uses == []


@pytest.mark.long
def test_quick_results_are_as_frozen_on_another_processor_too() -> None:
    command = [sys.executable, "benchmarks/freeze_results.py", "--check", "--quick"]
    done = subprocess.run(command, cwd=ROOT, env=os.environ | _OTHER_PROCESSOR, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
