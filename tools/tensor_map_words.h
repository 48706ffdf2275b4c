// Read before all else: words of device code, and the part of CuTe that asks for tensor maps, which it has for nvcc 12 and later alone.
#pragma once

#include "../tests/families/blockscaled/compile/device_words.h"

#define __CUDACC_VER_MAJOR__ 13
#define __CUDACC_VER_MINOR__ 0
#include "cute/tensor.hpp"
#undef __CUDACC_VER_MAJOR__
#undef __CUDACC_VER_MINOR__
