"""What torch itself offers."""

from argparse import ArgumentParser, Namespace

from gemmill.tuner.peers import peers_of
from harness.contenders import Contender, of_peer


def add_options(parser: ArgumentParser) -> None:
    """None: torch is there."""


def contenders(family: str, options: Namespace, notes: list[str]) -> list[Contender]:
    """The family's own peers."""
    return [of_peer(peer) for peer in peers_of(family)]
