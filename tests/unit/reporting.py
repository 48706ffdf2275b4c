"""A report's process without a GPU: each variant is right, but for the faults that a file next to the build names."""

import json
import os
import time
from pathlib import Path
from typing import Any

from gemmill.report.child import ChildSpec
from gemmill.tuner.bench import run

FAULTS = "faults.json"


class StandIn:
    """Answers as a report's process does."""

    def __init__(self, spec: ChildSpec) -> None:
        self._faults = json.loads((Path(spec.build) / FAULTS).read_text())

    def hello(self) -> str:
        if "load" in self._faults:
            raise RuntimeError(self._faults["load"])
        return "on a stand-in"

    def verify(self, name: str) -> dict[str, Any]:
        fault = self._faults.get(name, "")
        if fault == "crash":
            os.abort()
        if fault == "hang":
            time.sleep(600)
        if fault == "dead":
            raise RuntimeError("CUDA error: an illegal memory access was encountered")
        failures = [fault, "another"] if fault else []
        return {"name": name, "cases": 12, "failures": failures, "worst_fraction": 1.5 if fault else 0.25}


if __name__ == "__main__":
    run(lambda **spec: StandIn(ChildSpec(**spec)))
