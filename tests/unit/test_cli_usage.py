"""The help of each command, as terminals of several widths show it."""

from __future__ import annotations

import sys

import pytest
from istio_aux.cli import commands
from unit.screens import Run, run

__all__ = ["run"]

COMMANDS = ["", "explain", "mutate", "serve", "audit", "check", "restart-unmeshed"]


@pytest.fixture
def shown(run: Run, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    """The help of a command in a terminal of so many columns."""

    def shown(command: str, columns: int) -> str:
        monkeypatch.setenv("COLUMNS", str(columns))
        with pytest.raises(SystemExit):
            commands.main([*filter(None, [command]), "--help"])
        return capsys.readouterr().out

    return shown


@pytest.mark.parametrize("command", COMMANDS)
def test_help_fits_a_terminal_of_eighty_columns_and_fills_no_more_than_a_hundred(
    shown, command: str
) -> None:
    """Longer lines are hard to read, wherever the terminal ends."""
    assert max(map(len, shown(command, 80).splitlines())) <= 80
    assert max(map(len, shown(command, 200).splitlines())) <= 100


def test_examples_stay_whole_in_a_narrow_terminal(shown) -> None:
    """They are there to be copied."""
    example = "  istio-aux audit --selector io.datastrophic/istio-aux=enabled --quit-grace 30\n"
    assert example in shown("audit", 60)


def test_what_a_term_means_wraps_beside_it(shown) -> None:
    assert """\
  blocked   some payload containers are finished, and others, which the reason
            names, are not; or an annotation is invalid
""" in shown("audit", 80)


def test_the_plugin_of_kubectl_speaks_of_itself_as_kubectl_does(
    shown, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["/usr/local/bin/kubectl-istio_aux"])
    text = shown("check", 80)
    assert text.startswith("usage: kubectl istio-aux check ")
    assert "\n  kubectl istio-aux check -o json | jq" in text
    assert "needs no istio-aux in the cluster" in text
