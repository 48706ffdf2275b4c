"""Whether a mean square is settled, by the kernels' own function on the host: then every order of f64 sums gives the f32 of the sum by
integers, and where some order does not, the function says so."""

import os
import subprocess

from gemmill.build.sources import expand, flags_for, roots_of
from gemmill.build.toolchain import ToolchainPaths
from gemmill.locations import kernels_dir
from gemmill.vocab import Arch

ROWS = 8_000
_MAIN = """
#include "quant/mean_square.cuh"
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <random>
#include <vector>

using gemmill::quant::is_settled;

double by_integers(std::vector<float> const& values) {
  unsigned long long bins[32] = {};
  for (float value : values) {
    uint32_t bits;
    std::memcpy(&bits, &value, 4);
    uint32_t const exponent = bits >> 23, place = exponent == 0 ? 1 : exponent;
    bins[place / 8] += static_cast<unsigned long long>((bits & 0x7fffff) | (exponent == 0 ? 0 : 0x800000)) << place % 8;
  }
  double sums[32];
  for (int i = 0; i < 32; ++i) sums[i] = std::ldexp(static_cast<double>(bins[i]), 8 * i - 150);
  for (int half = 16; half > 0; half /= 2) for (int i = 0; i < half; ++i) sums[i] += sums[i + half];
  return sums[0];
}

// As so many threads do: each its own, then neighbours.
double by_threads(std::vector<float> const& values, size_t threads) {
  std::vector<double> sums(threads, 0.0);
  for (size_t i = 0; i < values.size(); ++i) sums[i % threads] += values[i];
  for (size_t half = threads / 2; half > 0; half /= 2) for (size_t i = 0; i < half; ++i) sums[i] += sums[i + half];
  return sums[0];
}

int main() {
  std::mt19937_64 random(1);
  auto const below = [&](uint64_t most) { return random() % most; };
  long wrong = 0, unsettled = 0, moved = 0, usual = 0;
  for (int row = 0; row < kRows; ++row) {
    std::vector<float> values(1 + below(600));
    int const spread = below(3) == 0 ? 60 : 3;
    for (float& value : values) value = std::ldexp(static_cast<float>(1 + below(1 << 24)), static_cast<int>(below(spread)) - 24 - spread);
    double const inverse = 1.0 / static_cast<double>(8 * values.size());
    double const wanted_sum = by_integers(values);
    // Epsilon leads to a few units from a tie of f32, for three rows of four.
    double eps = 1e-6;
    bool const near = below(4) != 0;
    if (near) {
      float const next = std::nextafter(static_cast<float>(wanted_sum * inverse * 1.25), INFINITY);
      double const tie = 0.5 * (static_cast<double>(next) + std::nextafter(next, INFINITY));
      eps = tie - wanted_sum * inverse;
      double const unit = std::nextafter(tie, INFINITY) - tie;
      eps += unit * (static_cast<double>(below(12)) - 6.0);
    }
    float const wanted = static_cast<float>(wanted_sum * inverse + eps);
    for (size_t threads = 1; threads <= 512; threads *= 2) {
      std::shuffle(values.begin(), values.end(), random);
      double const mean = by_threads(values, threads) * inverse + eps;
      uint64_t bits;
      std::memcpy(&bits, &mean, 8);
      bool const settled = is_settled(bits, static_cast<uint32_t>(values.size())), same = static_cast<float>(mean) == wanted;
      wrong += settled && !same;
      unsettled += !settled;
      moved += !same;
      usual += !near && settled;
    }
  }
  std::printf("%ld %ld %ld %ld", wrong, unsettled, moved, usual);
  double const apart[] = {0.0, 1e-40, INFINITY, NAN, 1.0, 1.0 + std::ldexp(1.0, -24), 1.5};
  for (double value : apart) {
    uint64_t bits;
    std::memcpy(&bits, &value, 8);
    std::printf(" %d", is_settled(bits, 512));
  }
  for (uint32_t values : {1u << 26, 1u << 27, 1u << 30}) std::printf(" %d", is_settled(0x3ff0000000000000, values));
}
"""


def test_a_settled_mean_is_that_of_every_order(toolchain: ToolchainPaths, tmp_path) -> None:
    (tmp_path / "main.cu").write_text(f"constexpr int kRows = {ROWS};" + _MAIN)
    flags = expand(flags_for(Arch.SM90A).cuda, roots_of(toolchain, kernels_dir()))
    program = tmp_path / "main"
    command = [toolchain.nvcc, *flags, tmp_path / "main.cu", f"-L{toolchain.cudart_static.parent}", "-o", program]
    compiled = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=False)
    assert compiled.returncode == 0, compiled.stderr[-2000:]
    done = subprocess.run([program], env=os.environ, capture_output=True, text=True, check=True)
    wrong, unsettled, moved, usual, *settled = map(int, done.stdout.split())
    assert wrong == 0
    assert moved > 300, "the rows are such that the order of f64 sums shows"
    assert unsettled >= moved and usual > 2 * ROWS, "most rows are settled"
    zero, small, infinite, nan, one, tie, half = settled[:7]
    assert (zero, small, tie) == (0, 0, 0) and (infinite, nan, one, half) == (1, 1, 1, 1)
    assert settled[7:] == [1, 0, 0], "the more values, the fewer means are settled"
