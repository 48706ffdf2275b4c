// Host code: the arguments of grouped GEMMs' kernels, which kernels of other families are made of, too.
#pragma once

#include "gemm/grouped_args.h"
