// Numbers of 16 bits, of which the toy has none: an exported host program that names them compiles.
#pragma once

#include <cstdint>

struct __half_raw {
  uint16_t x;
};
struct __half {
  explicit __half(__half_raw) {}
  explicit operator float() const { return 0; }
};
