#include "extension/workspace.h"

extern "C" {
// Workspaces of the calling thread lie in this memory from now on; null ends that.
__attribute__((visibility("default"))) void gemmill_set_arena(void* data, int64_t bytes) {
  gemmill::arena = {static_cast<char*>(data), bytes, 0};
}
// Bytes that the last workspace in the arena had.
__attribute__((visibility("default"))) int64_t gemmill_arena_used() { return gemmill::arena.used; }
}
