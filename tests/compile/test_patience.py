"""How long a kernel waits for other CTAs' counters (kernels/core/patience.cuh), by a clock that a program sets, so without a GPU."""

import subprocess
from pathlib import Path

import pytest

from gemmill.build.sources import expand, flags_for, roots_of
from gemmill.build.toolchain import ToolchainPaths
from gemmill.locations import kernels_dir
from gemmill.vocab import Arch

_PROGRAM = """
#include <cstdio>
#include "core/patience.cuh"

static uint64_t time_ns = 5'000'000'000;
static int asked = 0;

struct Clock {
  static uint64_t now() { return ++asked, time_ns; }
  static void give_up() { std::printf("gave up at %d s, asked %d times\\n", static_cast<int>(time_ns / 1'000'000'000), asked); }
};

int main() {
  gemmill::Patience<Clock> patience;
  for (int look = 1; look <= LOOKS; ++look, time_ns += 10'000'000) patience.spend(ENDLESS);
}
"""


@pytest.mark.parametrize(
    ("looks", "endless", "told"),
    [
        (2304 - 1, "false", ""),  # the first that asks, and 20.48 s behind it
        (2304, "false", "gave up at 28 s, asked 9 times\n"),
        (5000, "true", ""),
    ],
)
def test_a_wait_ends_20_seconds_after_the_clock_was_first_asked(
    looks: int, endless: str, told: str, toolchain: ToolchainPaths, tmp_path: Path
) -> None:
    source = tmp_path / "main.cpp"
    source.write_text(_PROGRAM.replace("LOOKS", str(looks)).replace("ENDLESS", endless))
    flags = expand(flags_for(Arch.SM90A).host, roots_of(toolchain, kernels_dir()))
    subprocess.run([str(x) for x in (toolchain.gxx, *flags, source, "-o", tmp_path / "main")], check=True)
    assert subprocess.run([tmp_path / "main"], capture_output=True, text=True, check=True).stdout == told
