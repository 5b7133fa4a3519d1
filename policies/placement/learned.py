"""The policy `learned`: a network that scores the candidate table and, after every event, the possible moves."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from policies.named import SHIPPED_NAMES
from policies.placement.chains import Chain, NextSteps, after, best_chain, best_rows, joint_search, promising
from policies.placement.policy_file import PolicyConfig, read_policy
from policies.placement.scorer import random_weights, score
from rollmux_env.cluster.candidates import CandidateTable, candidates, part_of
from rollmux_env.cluster.events import Arrived, Event
from rollmux_env.cluster.features import features
from rollmux_env.cluster.plan import Move, Place, Plan, Wait
from rollmux_env.cluster.regroupings import regroupings
from rollmux_env.cluster.state import State
from rollmux_env.errors import InputError
from rollmux_env.kernel.features import (
    CANDIDATE_FEATURES,
    CLUSTER_FEATURES,
    JOB_FEATURES,
    MOVE_FEATURES,
    PLACE,
    SHAPE_FEATURES,
)
from rollmux_env.kernel.neighbourhood.table import GROUPS_MOST
from rollmux_env.kernel.pools import own_usd
from rollmux_env.kernel.tables import Ints
from rollmux_env.kernel.valuation import present_rates
from rollmux_env.validation_errors import describe

_PART = 256  # most groups to look at for a placement; fewer for a job with several shapes
_FEW_ROWS, _MANY_ROWS = 32, 96  # rows of moves to score in a state, including `stop`; the first number is the environment's
_PLACES = 3  # placements to try after each move that may come before one
_WIDE_GROUPS = 12  # number of groups above which a joint search looks at fewer rows and chains
_SHAPED_GROUPS = 8  # groups to look at for moves in a large cluster whose jobs have shapes
SHIPPED = Path(__file__).parent / "weights"
_ROWS = CANDIDATE_FEATURES + MOVE_FEATURES + SHAPE_FEATURES


class _Network(NamedTuple):
    """A network's weights, and the indices of the features of the job, the rows and the cluster that it reads, in its order."""

    weights: dict[str, NDArray[np.float32]]
    of_job: list[int]
    of_row: list[int]
    of_cluster: list[int]


class Learned:
    """Placement policy that places arriving jobs and moves running ones by the scores of a trained network.

    An arriving job gets the feasible candidate with the highest score. Then, and after departures, the policy carries out the moves
    with the highest score, row after row, until `stop` scores highest. It also tries chains that begin with other rows.

    Args:
        path: Path of a policy file, `default` for the one that RollMux ships, or `random` for that network with random weights.
            `default` uses another network for decisions with a row whose shape is not the job's own.
        seed: Seed of the weights of `random`.
        moves: Whether to move running jobs, if the network was trained to. Without it `default` uses a network trained without
            moves.
        known_stays: Whether to read when jobs will leave, if the network was trained to. Without it they are expected to stay as in
            `rollmux_env.kernel.valuation`. `default` without moves has a network trained for that.
        tries: Number of rows, including `stop`, with which a chain of moves may begin. With 1 the policy acts as in the
            environment.

    Attributes:
        config: Description of the network from the file, with `known_stays` as it applies here.
        weights: Weights of the network for jobs in their own shape.

    Raises:
        InputError: The file is missing, damaged, or reads features that this version does not have.
    """

    keeps_slo = True

    def __init__(self, path: str = "default", seed: int = 0, moves: bool = True, known_stays: bool = True, tries: int = 8) -> None:
        for name, value in (("moves", moves), ("known_stays", known_stays)):
            if not isinstance(value, bool):
                raise InputError(f"{name}: must be true or false, not {describe(value)}")
        if isinstance(tries, bool) or not isinstance(tries, int) or tries < 1:
            raise InputError(f"tries: must be a whole number, 1 or more, not {describe(tries)}")
        shipped = "moves" if moves else "admission" if known_stays else "admission-unknown"
        config, weights = read_policy(SHIPPED / f"{shipped}.safetensors" if path in SHIPPED_NAMES else path)
        columns = _columns(path, config)
        if path == "random":
            of_job, of_row, of_cluster = columns
            weights = random_weights(len(of_job), len(of_row), len(of_cluster), config.widths, seed)
        self._network = self._of_shapes = _Network(weights, *columns)
        if path == "default":
            config_of_shapes, of_shapes = read_policy(SHIPPED / f"{shipped}-shapes.safetensors")
            self._of_shapes = _Network(of_shapes, *_columns(path, config_of_shapes))
        self.config = config.model_copy(update={"known_stays": known_stays and config.known_stays})
        self.tries = tries
        self.weights = weights
        self._moves = moves and config.moves

    def decide(self, state: State, event: Event) -> Plan:
        """Answer an arrival with a placement or a wait, and every event with worthwhile moves."""
        arrived = event.job.id if isinstance(event, Arrived) else None
        if self._moves and self.tries > 1 and state.tables.order.size <= GROUPS_MOST and _is_shaped(state):
            return self._jointly(state, arrived)
        plan = () if arrived is None else self._places(state, arrived, 1)[0].plan
        if not self._moves or any(isinstance(action, Wait) for action in plan):
            return plan
        if state.tables.order.size > _PART:
            return plan + self._one_row(state, plan)
        large = state.tables.order.size > GROUPS_MOST
        return plan + best_chain(after(state, plan), self._rows, 1 if large else self.tries, large)

    def _jointly(self, state: State, arrived: str | None) -> Plan:
        """Search for a placement and moves together.

        For an arrival the search starts with chains that place the job, directly or after a row of moves that makes room for it.
        """
        width, most_first, most_begun = (4, 48, 16) if state.tables.order.size <= _WIDE_GROUPS else (2, 8, 6)
        if arrived is None:
            return joint_search([Chain(0.0, (), state)], self._many_rows, self.tries, width)
        begun = self._places(state, arrived, self.tries)
        if any(isinstance(action, Wait) for action in begun[0].plan):
            return begun[0].plan
        rows = self._many_rows(state)
        usd, _, work, _ = present_rates(state.view)
        work_usd = (usd + own_usd(state.view.jobs[state.row(arrived)], state.limits)) / (work + 1)
        for k in promising(rows, most_first, self.tries):
            there = after(state, rows.plans[k])
            begun += [
                Chain(float(rows.worths[k]) + chain.worth, rows.plans[k] + chain.plan, there)
                for chain in self._places(there, arrived, _PLACES, work_usd)
                if isinstance(chain.plan[0], Place)
            ]
        begun.sort(key=lambda chain: -chain.worth)
        chains = [chain._replace(state=after(chain.state, chain.plan[-1:])) for chain in begun[:most_begun]]
        return joint_search(chains, self._many_rows, self.tries, width)

    def _places(self, state: State, job_id: str, most: int, work_usd: float = 0.0) -> list[Chain]:
        """Return the `most` best-scored placements of a job as chains, best first.

        If no candidate is feasible, the only chain lets the job wait, or places it in the new group that `part_of` found room for.
        The worths are comparable between states and with those of rows of moves. The best placement has its value at the shortest
        horizon, which the observation contains. The others are lower by the differences of their scores. The unit is that of rows
        of moves.
        """
        shapes = len(state.job(job_id).shapes) + 1
        part = part_of(state, max(GROUPS_MOST, _PART // shapes), job_id)
        table = candidates(state, job_id, state.tables.order[part.positions])
        # The environment's order, which breaks ties between equal scores: a new group first, then the rest of the table.
        rows = table.own_first()
        rows = rows[table.feasible[rows]]
        if rows.size == 0:
            placement = part.cheapest_placement
            return [Chain(0.0, (Wait(job_id) if placement is None else Place(job_id, placement),), state)]
        wide, scores = self._score_rows(state, table, rows)
        best = int(np.argmax(scores))
        if most == 1:
            return [Chain(0.0, (Place(job_id, table.placement(int(rows[best]))),), state)]
        own, (usd, others, work, running) = own_usd(state.view.jobs[state.row(job_id)], state.limits), present_rates(state.view)
        price = (usd + own) / (work + 1)
        unit = own * (running + 1) / (own + others) if own > 0.0 else 1.0
        worths = (scores - scores[best] + _worth(wide[best], (work_usd or price) / price)) * unit
        return [
            Chain(float(worths[k]), (Place(job_id, table.placement(int(rows[k]))),), state) for k in best_rows(worths, most, None)
        ]

    def scores(self, state: State, table: CandidateTable) -> NDArray[np.float32]:
        """Return the network's score of each of the R rows of a candidate table, shape (R,), NaN for infeasible rows."""
        scores = np.full(len(table), np.nan, dtype=np.float32)
        rows = table.own_first()
        rows = rows[table.feasible[rows]]
        if rows.size:
            scores[rows] = self._score_rows(state, table, rows)[1]
        return scores

    def _score_rows(self, state: State, table: CandidateTable, rows: Ints) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Return the observation of some rows of a candidate table, and their scores."""
        inputs = features(state, table, state.first_arrival_s, self.config.known_stays, rows)
        wide = np.zeros((rows.size, len(_ROWS)), dtype=np.float32)
        wide[:, : len(CANDIDATE_FEATURES)] = inputs.candidates
        wide[:, -len(SHAPE_FEATURES) :] = inputs.shapes
        return wide, self._scores(inputs.job, wide, inputs.cluster)

    def _one_row(self, state: State, begun: Plan) -> Plan:
        """Return the best-scored row that is compatible with the plan so far, without copying the state.

        A row is compatible if it touches none of the groups of the plan and there is room for both.
        """
        placed = {action.job_id: action.placement for action in begun if isinstance(action, Place | Move)}
        taken = {placement.group for placement in placed.values()} - {None}
        rows = self._rows(state, _SHAPED_GROUPS if _is_shaped(state) else GROUPS_MOST)
        for k in best_rows(rows.worths, len(rows.worths), None):
            moves = {action.job_id: action.placement for action in rows.plans[k] if isinstance(action, Place | Move)}
            changed = {state.group_of(job_id).id for job_id in moves} | {placement.group for placement in moves.values()}
            if k == 0 or (not changed & taken and state.has_room(placed | moves)):
                return rows.plans[k]
        return ()

    def _many_rows(self, state: State) -> NextSteps:
        return self._rows(state, limit=_MANY_ROWS)

    def _rows(self, state: State, groups_most: int = GROUPS_MOST, limit: int = _FEW_ROWS) -> NextSteps:
        """List and score the possible moves, `stop` first."""
        rows = regroupings(state, state.first_arrival_s, self.config.known_stays, limit, groups_most=groups_most)
        opens = rows.candidates[:, PLACE.new_group] > 0
        if len(rows.plans) == 1:
            return NextSteps(rows.plans, np.zeros(1, dtype=np.float32), opens)
        scores = self._scores(rows.job, rows.candidates, rows.cluster)
        return NextSteps(rows.plans, scores - scores[0], opens)

    def _scores(self, job: NDArray[np.float32], rows: NDArray[np.float32], cluster: NDArray[np.float32]) -> NDArray[np.float32]:
        network = self._of_shapes if rows[:, -len(SHAPE_FEATURES) :].any() else self._network
        return score(network.weights, job[network.of_job], rows[:, network.of_row], cluster[network.of_cluster])


def _is_shaped(state: State) -> bool:
    return len(state.tables.models) > state.arrived  # each further shape has another row


def _worth(row: NDArray[np.float32], times: float) -> float:
    """Return the observed value of a placement at the shortest horizon, in units of the price of the job's own nodes.

    Args:
        row: Features of the placement.
        times: Factor on the value of work.
    """
    work, more = (float(row[_ROWS.index(name)]) for name in ("work_1h", "more_1h"))
    return times * work / (1 - min(abs(work), 0.9999)) - more / (1 - min(abs(more), 0.9999))


def _columns(path: str, config: PolicyConfig) -> tuple[list[int], list[int], list[int]]:
    """Return the indices of the features of job, rows and cluster that the network of a file reads, in its order."""
    known = {"job_features": JOB_FEATURES, "candidate_features": _ROWS, "cluster_features": CLUSTER_FEATURES}
    columns = []
    for field, names in known.items():
        for name in getattr(config, field):
            if name not in names:
                raise InputError(f"{path}: {field}: there is no feature {describe(name)} in this version")
        columns.append([names.index(name) for name in getattr(config, field)])
    return columns[0], columns[1], columns[2]
