"""torch's own ops."""

from argparse import ArgumentParser, Namespace

from gemmill.tuner.peers import peers_of
from harness.contenders import Contender, of_peer
from timed.grouped_mm.contenders import Dequantised, MoePeer, torch_grouped, torch_grouped_bf16
from timed.routing.contenders import ROUTER_PEERS
from timed.sparse_mm.contenders import SPARSE_PEERS


def add_options(parser: ArgumentParser) -> None:
    """None: torch is there."""


def contenders(family: str, options: Namespace, notes: list[str]) -> list[Contender]:
    """The family's own peers; of grouped GEMMs torch's; of sparse ones cuSPARSELt; of routers F.linear."""
    if family == "grouped_mm" and not options.dry_run:
        return [
            MoePeer(name="torch", bind=torch_grouped),
            MoePeer(name="torch bf16", bind=torch_grouped_bf16, kind="bf16"),
            MoePeer(name="torch of dequantised nvfp4", bind=Dequantised(), kind="nvfp4"),
            MoePeer(name="torch of dequantised mxfp4", bind=Dequantised(), kind="mxfp4"),
        ]
    if family == "sparse_mm" and not options.dry_run:
        return list(SPARSE_PEERS)
    if family == "routing" and not options.dry_run:
        return list(ROUTER_PEERS)
    return [of_peer(peer) for peer in peers_of(family)]
