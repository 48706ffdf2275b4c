// In place of kernels/kv_cache/shared/bulk_copy.cuh: barriers count arrivals and bytes, and copies land when they are asked for.
#pragma once

#include "block.h"

namespace gemmill::kv_cache {

constexpr int kReserved = on_host::kReservedBytes;

struct Barrier {
  int16_t expected, pending;
  int32_t state;  // twice the expected bytes, and the phase's parity
};
static_assert(sizeof(Barrier) == sizeof(uint64_t));

inline Barrier& at(uint64_t* barrier) { return *reinterpret_cast<Barrier*>(barrier); }
inline void turn(Barrier& barrier) {
  if (barrier.pending == 0 && barrier.state >> 1 == 0) barrier.pending = barrier.expected, barrier.state ^= 1;
}

inline uint32_t shared_address(void const* pointer) {
  return static_cast<uint32_t>(static_cast<uint8_t const*>(pointer) - shared) + on_host::kReservedBytes;
}
inline uint32_t load_shared(uint32_t address) {
  if (address % 4) fprintf(stderr, "a load from shared memory is not aligned\n"), exit(1);
  uint32_t word;
  memcpy(&word, shared + address - on_host::kReservedBytes, sizeof word);
  return word;
}
inline uint2 load_shared_8(uint32_t address) { return make_uint2(load_shared(address), load_shared(address + 4)); }

inline void initialise(uint64_t* barrier, int arrivals) {
  at(barrier) = {static_cast<int16_t>(arrivals), static_cast<int16_t>(arrivals), 0};
}
inline void publish_barriers() {}
inline void arrive(uint64_t* barrier) { --at(barrier).pending, turn(at(barrier)); }
inline void expect_bytes(uint64_t* barrier, int bytes) { at(barrier).state += 2 * bytes, arrive(barrier); }
inline void wait(uint64_t* barrier, int phase) {
  while ((at(barrier).state & 1) == phase) on_host::yield();
}
inline void sync_threads(int number, int threads) { on_host::meet(on_host::block.meetings[number], threads); }
template <int kRegisters>
void take_registers() {}
template <int kRegisters>
void leave_registers() {}
inline void bulk_copy(void* to, void const* from, int bytes, uint64_t* barrier) {
  uint8_t const* const shared_to = static_cast<uint8_t*>(to);
  bool const is_inside = shared_to >= shared && shared_to + bytes <= shared + sizeof shared;
  if (!is_inside || (reinterpret_cast<uintptr_t>(to) | reinterpret_cast<uintptr_t>(from) | bytes) % 16) {
    fprintf(stderr, "a bulk copy is not aligned, or beyond shared memory\n"), exit(1);
  }
  memcpy(to, from, bytes);
  at(barrier).state -= 2 * bytes, turn(at(barrier));
}

// A copy lands at the wait behind it, not before.
struct Ahead {
  uint32_t to;
  uint8_t bytes[16];
  int count, group;
};
inline std::vector<Ahead> ahead[on_host::kMostThreads];
inline int groups_ended[on_host::kMostThreads];

template <int kBytes>
void copy_ahead(uint32_t to, void const* from, bool exists) {
  if ((reinterpret_cast<uintptr_t>(from) | to) % kBytes) fprintf(stderr, "a copy is not aligned\n"), exit(1);
  Ahead copy{to, {}, kBytes, groups_ended[on_host::block.current]};
  if (exists) memcpy(copy.bytes, from, kBytes);
  ahead[on_host::block.current].push_back(copy);
}
inline void end_group_of_copies() { ++groups_ended[on_host::block.current]; }
template <int kPending>
void wait_for_copies() {
  auto& own = ahead[on_host::block.current];
  std::erase_if(own, [](Ahead const& copy) {
    bool const lands = copy.group < groups_ended[on_host::block.current] - kPending;
    if (lands) memcpy(shared + copy.to - on_host::kReservedBytes, copy.bytes, copy.count);
    return lands;
  });
}

}  // namespace gemmill::kv_cache
