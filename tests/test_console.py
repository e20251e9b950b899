"""What is printed: times, and model text that cannot steer a terminal."""

from lanpo_jax import console
from tests.test_batching import group


def test_clock():
    assert [console.clock(s) for s in (5, 245, 4000)] == ["0:05", "4:05", "1:06:40"]


def test_time_left_leaves_out_the_first_phase_which_compiles():
    eta = console.Eta()
    eta.spent("step", 100)
    assert eta.left(step=2) == "3:20"
    eta.spent("step", 10)
    eta.spent("step", 20)
    eta.spent("eval", 30)
    assert eta.left(step=4, eval=1) == "1:30"


def test_model_text_is_shown_on_one_line_without_control_characters():
    shown = console._line("a\n\x1b[31mred\x07  b\u202e", 40)
    assert shown == "a \N{REPLACEMENT CHARACTER}[31mred\N{REPLACEMENT CHARACTER} b\N{REPLACEMENT CHARACTER}"
    assert console._line("x" * 50, 10) == "x" * 9 + "…"


def test_markup_in_model_text_is_plain_text(capsys):
    console.Console().say("[bold]not bold[/bold]")
    assert "[bold]not bold[/bold]" in capsys.readouterr().out


def test_samples_and_plain_phase_without_a_terminal(capsys):
    tell = console.Console()
    with tell.phase("rollout") as advance:
        advance(1, 2)
    tell.samples("set", [group(2, [3])], 1)
    assert "wrong, gold 1" in capsys.readouterr().out


def test_a_table_is_whole_whatever_the_width_of_the_terminal(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "20")
    console.Console().table(["set", "mean@4", "n"], [["amc [x]", "0.500 [0.400, 0.600]", "8"], ["b", "1.000", "12"]])
    assert capsys.readouterr().out.splitlines() == [
        "set                    mean@4   n",
        "amc [x]  0.500 [0.400, 0.600]   8",
        "b                       1.000  12",
    ]
