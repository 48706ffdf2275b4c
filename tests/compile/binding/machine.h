// A machine with GPUs for the binding to run on, where there is none: machine.cpp. Mirrored by `Machine` in conftest.py.
#pragma once

#include <cstdint>

struct probe_machine_state {
  int32_t device;      // on which all tensors seem to be; -1: in host memory, where they are
  int32_t current;     // the calling thread's current device
  int32_t guards;      // of torch, that hold a device current
  int32_t devices_set; // without torch's knowledge
  int32_t attributes_asked;
  int32_t described;   // TMA descriptors that the driver was asked for
  int32_t launched;    // kernels that the driver was given
  int32_t out_of_memory;
  int32_t allocated_on;  // device of the last allocation, and its type
  int32_t allocated_type;
  int64_t allocated_bytes;
  int64_t tensors_let_go;
  void const* elsewhere;  // data of a tensor that seems to be on the device after `device`
};

extern "C" probe_machine_state probe_machine;
