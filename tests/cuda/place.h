#pragma once
// The device under test in this folder. The tests are linked twice:
// - with a real device, table "cuda" (place_cuda.cpp): each test is skipped with a reason if there
//   is none;
// - with a simulated device (tests/device/late_table.h): the tests also run on machines without a
//   GPU.
#include <gtest/gtest.h>

#include <string>

#include "src/kernels/backend.h"

namespace espalier::testing {

/// Null if there is no device.
const kernels::Kernels* device_table();

/// Steps of a run that is compared with the CPU's.
int64_t compared_steps();

/// Reason why there is no device.
std::string why_no_device();

/// Selects a NCCL for that device through the environment, unless the installed one works.
void choose_nccl();

/// Base of tests that need the device.
class OnDevice : public ::testing::Test {
 protected:
  void SetUp() override {
    if (device_table() == nullptr) {
      GTEST_SKIP() << why_no_device();
    }
  }
};

}  // namespace espalier::testing
