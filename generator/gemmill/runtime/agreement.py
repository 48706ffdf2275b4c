"""Whether the ranks of one program choose alike: the same build with the same measured choices.

The first rank that asks leaves its build and table digest in the store by which torch.distributed's ranks found one another, and
each other rank compares its own. No rank waits for another.
"""

from functools import cache
from typing import Any

from gemmill.runtime.notices import LOG

_KEY = "gemmill/choices"


def disagreement(build_id: str, digest: str) -> str | None:
    """A sentence where another rank has another build or other choices; None for agreement, or for one rank."""
    store, rank = _store()
    if store is None:
        return None
    choices = f"build {build_id} with table digest {digest}"
    first_rank, _, first = store.compare_set(_KEY, "", f"{rank}:{choices}").decode().partition(":")
    if first == choices:
        return None
    return (
        f"rank {rank} chooses variants by {choices}, and rank {first_rank} by {first}: the same call may differ in its last bits and time; "
        "give all ranks the same build and tables (GEMMILL_BUILD, GEMMILL_TABLES)"
    )


@cache
def warn_once(build_id: str, digest: str) -> None:
    """Log a disagreement, once for each build and digest."""
    if (sentence := disagreement(build_id, digest)) is not None:
        LOG.warning("%s", sentence)


def _store() -> tuple[Any, int]:
    """The store of this process's default group, and its rank; (None, 0) where there is no group."""
    import torch.distributed as dist

    if not dist.is_available() or not dist.is_initialized():
        return None, 0
    from torch.distributed.distributed_c10d import _get_default_store

    return _get_default_store(), dist.get_rank()
