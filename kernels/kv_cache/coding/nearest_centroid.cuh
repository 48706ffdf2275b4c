// The nearest centroid of a coordinate, by one look-up and one comparison.
//
// A line of bins spans the codebook, so narrow that none has two boundaries. A coordinate's bin tells which boundary is the only one that
// can still lie on either side of it. A bin's place comes from float arithmetic, but monotonously: a boundary of an earlier bin lies
// below, one of a later bin above, whatever the rounding.
#pragma once

#include <cstdint>

#include "kv_cache/shared/bulk_copy.cuh"

namespace gemmill::kv_cache {

constexpr int kBins = 32;
constexpr int kBinBytes = 8, kBinsBytes = kBins * 32 * kBinBytes;  // a copy for each lane, whose addresses begin at multiples of them

// A codebook for unit vectors, ascending: centroids and the boundaries between them, of which there is one fewer.
template <int kBits>
struct Codebook {
  static constexpr int kLevels = 1 << kBits;
  float centroids[kLevels];
  float boundaries[kLevels - 1];
};

struct Bin {
  float boundary;       // infinite where the bin has none
  float lower, higher;  // centroids on both sides of it
  uint32_t code;        // of the lower one
};

struct Bins {
  float scale;  // from coordinates to parts of the line, whose middle is 0
  Bin bins[kBins];
};

constexpr float kLastBin = 31.9375f;
constexpr float kMagic = 32768.0f;  // its unit in the last place is 2^-8: a bin's number begins at bit 8 of the sum
constexpr uint32_t kCodeBits = 15;

// A bin in half its bytes, as it lies in shared memory. A boundary is the middle of its centroids, so the higher one need not be there.
// The code takes the last four bits of the lower one, which moves by 2^-20 of itself.
struct FoundBin {
  float boundary;
  uint32_t lower;

  __device__ __forceinline__ uint32_t code() const { return lower & kCodeBits; }
  __device__ __forceinline__ float centroid(bool is_above) const {
    float const low = __uint_as_float(lower);
    return is_above ? fmaf(2.0f, boundary, -low) : low;
  }
};

__device__ __forceinline__ uint2 packed_bin(Bin const& bin) {
  return make_uint2(__float_as_uint(bin.boundary), (__float_as_uint(bin.lower) & ~kCodeBits) | bin.code);
}

// `lane_bins` is the shared address of the lane's copy of the first bin; kBinsBytes divide the first bin's address.
__device__ __forceinline__ FoundBin bin_of(float coordinate, float scale, uint32_t lane_bins) {
  float const part = __saturatef(fmaf(coordinate, scale, 0.5f));
  uint32_t const bits = __float_as_uint(fmaf(part, kLastBin, kMagic));
  uint2 const words = load_shared_8((bits & ((kBins - 1) << 8)) | lane_bins);
  return {__uint_as_float(words.x), words.y};
}

// Where on the line a coordinate lies, in bins.
constexpr double place_of(double coordinate, double scale) { return (coordinate * scale + 0.5) * kLastBin; }

// Host code: bins of a codebook. The line is as long as keeps boundaries off the ends of their bins by more than roundings.
template <int kBits>
constexpr Bins bins_of(Codebook<kBits> const& book) {
  constexpr int kBoundaries = (1 << kBits) - 1;
  constexpr double kMargin = 1.0 / 64;
  for (int try_ = 0; try_ < 100; ++try_) {
    double const largest = kBoundaries > 1 ? book.boundaries[kBoundaries - 1] : book.centroids[1];
    Bins found{static_cast<float>(0.5 / (largest * (1.06 + 0.002 * try_))), {}};
    int boundary = 0;
    bool holds = true;
    for (int bin = 0; bin < kBins; ++bin) {
      found.bins[bin] = {__builtin_huge_valf(), book.centroids[boundary], book.centroids[boundary], static_cast<uint32_t>(boundary)};
      if (boundary == kBoundaries) continue;
      double const within = place_of(book.boundaries[boundary], found.scale) - bin;
      if (within >= 1.0) continue;
      holds = holds && within > kMargin && within < 1.0 - kMargin;
      found.bins[bin].boundary = book.boundaries[boundary];
      found.bins[bin].higher = book.centroids[++boundary];
    }
    if (holds && boundary == kBoundaries) return found;
  }
  throw "No line of bins separates the boundaries of this codebook.";
}

}  // namespace gemmill::kv_cache
