// A CUDA block on the host: each thread is a fiber, and each waits where the others have to arrive first. What a thread reads
// and writes is what it would on the device; the order in which threads run is one of those that are allowed.
#pragma once

#include <cuda_runtime.h>
#include <setjmp.h>
#include <ucontext.h>

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <vector>

namespace on_host {

constexpr int kSharedBytes = 227 * 1024, kReservedBytes = 1024, kStackBytes = 128 * 1024, kMostThreads = 1024;
constexpr long kMostRounds = 2'000'000;  // of all fibers without an end: a deadlock

struct Meeting {
  int arrived = 0;
  long phase = 0;
};

struct Warp {
  Meeting meeting;
  uint64_t values[2][32][8];  // by the phase's parity
};

struct Fiber {
  ucontext_t begin;  // on a stack of its own
  jmp_buf at;        // where it waits: unlike swapcontext, a jump asks the kernel of the host for nothing
  bool has_begun = false;
};

struct Block {
  std::vector<Fiber> fibers{kMostThreads};
  std::unique_ptr<char[]> stacks{new char[static_cast<size_t>(kMostThreads) * kStackBytes]};
  jmp_buf scheduler;
  Warp warps[kMostThreads / 32];
  Meeting meetings[16];
  std::vector<bool> done;
  int current = 0, threads = 0;
  void (*body)(void*) = nullptr;
  void* argument = nullptr;
};
inline Block block;

[[gnu::noinline]] inline void yield() {
  if (!_setjmp(block.fibers[block.current].at)) _longjmp(block.scheduler, 1);
}

inline void meet(Meeting& meeting, int count) {
  long const phase = meeting.phase;
  if (++meeting.arrived == count) meeting.arrived = 0, ++meeting.phase;
  while (meeting.phase == phase) yield();
}

// One thread of every block and launch, one after the other.
inline void fiber() {
  for (;;) {
    block.body(block.argument);
    block.done[block.current] = true;
    yield();
  }
}

// Lets the current thread run until it waits or ends.
[[gnu::noinline]] inline void resume() {
  Fiber& one = block.fibers[block.current];
  if (_setjmp(block.scheduler)) return;
  if (one.has_begun) _longjmp(one.at, 1);
  one.has_begun = true;
  getcontext(&one.begin);
  one.begin.uc_stack = {block.stacks.get() + static_cast<size_t>(block.current) * kStackBytes, 0, kStackBytes};
  makecontext(&one.begin, fiber, 0);
  setcontext(&one.begin);
}

inline Warp& warp() { return block.warps[block.current / 32]; }

// Shows a value to the warp; `read` gets that of each lane by its number.
template <class Value, class Read>
auto exchange(Value const& value, Read read) {
  static_assert(sizeof(Value) <= sizeof warp().values[0][0]);
  Warp& own = warp();
  long const phase = own.meeting.phase;
  memcpy(own.values[phase & 1][block.current % 32], &value, sizeof value);
  meet(own.meeting, 32);
  return read([&](int lane) {
    Value of_lane;
    memcpy(&of_lane, own.values[phase & 1][lane], sizeof of_lane);
    return of_lane;
  });
}

}  // namespace on_host

#undef __launch_bounds__
#define __launch_bounds__(...)
inline dim3 threadIdx, blockIdx, blockDim, gridDim;

namespace gemmill::kv_cache {
alignas(1024) inline uint8_t shared[on_host::kSharedBytes];  // extern declarations of kernels
}

namespace on_host {

// Runs all blocks, one after the other. Exits with a line on standard error where threads wait for each other for ever.
inline void run(dim3 grid, dim3 threads, int shared_bytes, void (*body)(void*), void* argument) {
  if (shared_bytes > kSharedBytes) fprintf(stderr, "%d bytes of shared memory\n", shared_bytes), exit(1);
  block.body = body, block.argument = argument, block.threads = static_cast<int>(threads.x);
  gridDim = grid, blockDim = threads;
  for (unsigned index = 0; index < grid.x; ++index) {
    memset(gemmill::kv_cache::shared, 0xFF, kSharedBytes);
    for (Warp& each : block.warps) each.meeting = {};
    for (Meeting& each : block.meetings) each = {};
    block.done.assign(block.threads, false);
    blockIdx = dim3(index);
    int left = block.threads;
    for (long round = 0; left > 0; ++round) {
      if (round == kMostRounds) fprintf(stderr, "threads of block %u wait for each other\n", index), exit(1);
      for (int i = 0; i < block.threads; ++i) {
        if (block.done[i]) continue;
        block.current = i, threadIdx = dim3(i);
        resume();
        left -= block.done[i];
      }
    }
  }
}

}  // namespace on_host

template <class Value>
Value __shfl_xor_sync(unsigned, Value value, int mask) {
  int const lane = on_host::block.current % 32;
  return on_host::exchange(value, [&](auto of) { return of(lane ^ mask); });
}
template <class Value>
Value __shfl_sync(unsigned, Value value, int lane) {
  return on_host::exchange(value, [&](auto of) { return of(lane); });
}
inline bool __any_sync(unsigned, bool value) {
  return on_host::exchange(value, [&](auto of) {
    bool any = false;
    for (int lane = 0; lane < 32; ++lane) any = any || of(lane);
    return any;
  });
}
inline unsigned __ballot_sync(unsigned, bool value) {
  return on_host::exchange(value, [&](auto of) {
    unsigned mask = 0;
    for (int lane = 0; lane < 32; ++lane) mask |= static_cast<unsigned>(of(lane)) << lane;
    return mask;
  });
}
inline unsigned __reduce_add_sync(unsigned, unsigned value) {
  return on_host::exchange(value, [&](auto of) {
    unsigned sum = 0;
    for (int lane = 0; lane < 32; ++lane) sum += of(lane);
    return sum;
  });
}
inline unsigned __reduce_max_sync(unsigned, unsigned value) {
  return on_host::exchange(value, [&](auto of) {
    unsigned most = 0;
    for (int lane = 0; lane < 32; ++lane) most = std::max<unsigned>(most, of(lane));
    return most;
  });
}
inline unsigned __reduce_min_sync(unsigned, unsigned value) {
  return on_host::exchange(value, [&](auto of) {
    unsigned least = ~0u;
    for (int lane = 0; lane < 32; ++lane) least = std::min<unsigned>(least, of(lane));
    return least;
  });
}
template <class Value>
Value __shfl_up_sync(unsigned, Value value, int distance) {
  int const lane = on_host::block.current % 32;
  return on_host::exchange(value, [&](auto of) { return of(lane < distance ? lane : lane - distance); });
}
inline void __syncwarp() { on_host::meet(on_host::warp().meeting, 32); }
inline void __syncthreads() { on_host::meet(on_host::block.meetings[0], on_host::block.threads); }

inline void __trap() { exit(1); }
inline int __ffs(int word) { return __builtin_ffs(word); }
inline unsigned __funnelshift_r(unsigned low, unsigned high, unsigned shift) {
  return static_cast<unsigned>((static_cast<uint64_t>(high) << 32 | low) >> (shift % 32));
}
inline float __fdividef(float x, float y) { return x / y; }
inline float __fmaf_rn(float x, float y, float z) { return fmaf(x, y, z); }
inline float __saturatef(float x) { return x > 0 ? x < 1 ? x : 1.0f : 0.0f; }
inline unsigned __float_as_uint(float x) {
  unsigned bits;
  memcpy(&bits, &x, sizeof bits);
  return bits;
}
inline float __uint_as_float(unsigned bits) {
  float x;
  memcpy(&x, &bits, sizeof x);
  return x;
}
inline int __popc(unsigned word) { return __builtin_popcount(word); }
inline unsigned __byte_perm(unsigned x, unsigned y, unsigned select) {
  uint64_t const bytes = x | static_cast<uint64_t>(y) << 32;
  unsigned result = 0;
  for (int i = 0; i < 4; ++i) result |= static_cast<unsigned>(bytes >> (8 * (select >> (4 * i) & 7)) & 0xFF) << (8 * i);
  return result;
}
template <class Value>
Value __ldcs(Value const* from) {
  if (reinterpret_cast<uintptr_t>(from) % sizeof(Value)) fprintf(stderr, "a load is not aligned\n"), exit(1);
  return *from;
}
template <class Value>
void __stcs(Value* to, Value value) {
  if (reinterpret_cast<uintptr_t>(to) % sizeof(Value)) fprintf(stderr, "a store is not aligned\n"), exit(1);
  *to = value;
}
template <class Value>
Value min(Value x, Value y) { return y < x ? y : x; }
template <class Value>
Value max(Value x, Value y) { return x < y ? y : x; }
