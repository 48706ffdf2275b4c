"""An answer that carries its reason."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Status:
    """Whether a rule allows something and, if none does, which one rejects it and why."""

    ok: bool
    rule: str = ""
    reason: str = ""

    def __post_init__(self) -> None:
        if self.ok and (self.rule or self.reason):
            raise ValueError(f"an accepted Status has no reason, got rule={self.rule!r} reason={self.reason!r}")
        if not self.ok and not self.reason:
            raise ValueError("a rejected Status needs a reason")

    def __bool__(self) -> bool:
        return self.ok


OK = Status(ok=True)
