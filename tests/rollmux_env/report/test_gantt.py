"""The Gantt: what stands in the figure, and that its bytes are the same every time."""

from __future__ import annotations

import pytest
from matplotlib.colors import to_hex

from rollmux_env.replay.run import PhaseRun
from rollmux_env.report.gantt import GanttBar, bars_of, gantt_figure, gantt_picture
from rollmux_env.report.lanes import NodeUse

LANES = [
    NodeUse(0, "training", 0, 0, 400),
    NodeUse(0, "rollout", 0, 0, 400),
    NodeUse(0, "rollout", 2, 100, 400),
    NodeUse(0, "rollout", 1, 0, 20),
]
PHASES = [
    PhaseRun("_first", "rollout", 3, 0, "rollout", (0,), 0, 100, 10),
    PhaseRun("_first", "training", 3, 0, "training", (0,), 100, 150, 0),
    PhaseRun("second", "rollout", 0, 0, "rollout", (0, 2), 100, 250, 0),
    PhaseRun("second", "training", 0, 0, "training", (0,), 250, 320, 20),
    PhaseRun("elsewhere", "rollout", 0, 1, "rollout", (0,), 0, 400, 0),
]


def test_a_panel_a_pool_and_a_lane_a_node() -> None:
    rollout, training = gantt_figure(PHASES, LANES, 50, 350, "the title").axes
    assert [label.get_text() for label in rollout.get_yticklabels()] == ["node 0", "node 2"], "node 1 is gone by then"
    assert [label.get_text() for label in training.get_yticklabels()] == ["node 0"]
    assert rollout.get_ylim()[0] > rollout.get_ylim()[1], "node 0 on top"


def test_titles_say_the_share_of_bubbles() -> None:
    rollout, training = gantt_figure(PHASES, LANES, 50, 350).axes
    # rollout: 300 + 250 node-seconds, of which 50 + 2 * 150 are held; training: 300, of which 50 + 70 are, 20 of them by a switch
    assert rollout.get_title(loc="left") == f"Rollout pool: bubbles {100 * (1 - 350 / 550):.1f}%"
    assert training.get_title(loc="left") == f"Training pool: bubbles {100 * (1 - 120 / 300):.1f}%, switches {100 * 20 / 300:.1f}%"


def test_a_title_names_the_pool_where_the_cluster_has_others_than_the_two() -> None:
    rollout, _ = gantt_figure(PHASES, [lane._replace(other_pool="A100") for lane in LANES], 50, 350).axes
    assert rollout.get_title(loc="left").startswith("Rollout pool (A100): bubbles")


def test_bars_are_the_phases_within_the_window() -> None:
    rollout = [lane for lane in LANES if lane.pool == "rollout"]
    assert bars_of(PHASES, rollout, 5, 200) == [
        GanttBar("_first", 3, 0, 5, 10, True),
        GanttBar("_first", 3, 0, 10, 100, False),
        GanttBar("second", 0, 0, 100, 200, False),
        GanttBar("second", 0, 2, 100, 200, False),
    ]


def test_a_job_has_one_colour_in_both_panels_and_in_the_legend() -> None:
    figure = gantt_figure(PHASES, LANES, 0, 400)
    legend = figure.legends[0]
    names = [text.get_text().strip() for text in legend.get_texts()]
    assert names == ["_first", "second", "switch", "bubble"]
    colours = dict(zip(names, (to_hex(patch.get_facecolor()) for patch in legend.get_patches()), strict=True))
    assert len(set(colours.values())) == 4
    for axis in figure.axes:
        drawn = {to_hex(patch.get_facecolor()) for patch in axis.patches}
        assert drawn == {colours["_first"], colours["second"], colours["bubble"]}
    hatched = {to_hex(patch.get_facecolor()) for patch in figure.axes[1].patches if patch.get_hatch()}
    assert hatched == {colours["second"]}


def test_the_order_of_jobs_is_the_same_in_every_window() -> None:
    later = [PhaseRun("_first", "rollout", 4, 0, "rollout", (0,), 350, 390, 0)]
    for from_s in (0, 200):
        legend = gantt_figure([*later, *PHASES], LANES, from_s, 400).legends[0]
        assert [text.get_text().strip() for text in legend.get_texts()][:2] == ["_first", "second"]


def test_the_axis_counts_from_the_start_of_the_window_in_a_fitting_unit() -> None:
    short, long = gantt_figure(PHASES, LANES, 50, 350).axes[-1], gantt_figure(PHASES, LANES, 0, 6000).axes[-1]
    assert (short.get_xlabel(), short.get_xlim()) == ("seconds from the start of the window", (0, 300))
    assert (long.get_xlabel(), long.get_xlim()) == ("minutes from the start of the window", (0, 100))


def test_a_pool_without_nodes_has_no_panel() -> None:
    (only,) = gantt_figure(PHASES, LANES[:1], 0, 400).axes
    assert only.get_title(loc="left").startswith("Training pool")


def test_the_same_picture_is_the_same_bytes_in_any_order_of_its_records() -> None:
    png = gantt_picture(PHASES, LANES, 0, 400, "the title")
    assert png.startswith(b"\x89PNG")
    assert png == gantt_picture(PHASES[::-1], LANES[::-1], 0, 400, "the title")


def test_many_jobs_with_long_names_and_many_nodes_still_draw() -> None:
    lanes = [NodeUse(0, "rollout", node, 0, 100) for node in range(16)]
    names = [f"{k:02}{'x' * 62}" for k in range(16)]
    phases = [PhaseRun(name, "rollout", 0, 0, "rollout", (k,), k, 100, 0) for k, name in enumerate(names)]
    figure = gantt_figure(phases, lanes, 0, 100)
    assert len(figure.axes[0].get_yticks()) == 16
    assert [text.get_text().strip() for text in figure.legends[0].get_texts()] == [*names, "bubble"]


def test_a_window_without_nodes_cannot_be_drawn() -> None:
    with pytest.raises(ValueError, match="no node"):
        gantt_picture(PHASES, LANES, 400, 500)
