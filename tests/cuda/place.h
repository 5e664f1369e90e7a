#pragma once
// The device that the tests of this folder are about. They are linked twice: with a real one, table
// "cuda" (place_cuda.cpp), where each test is skipped and says why if none answers; and with a
// pretended one (tests/device/late_table.h), so that the tests themselves are tested on machines
// without a GPU.
#include <gtest/gtest.h>

#include <string>

#include "src/kernels/backend.h"

namespace espalier::testing {

/// Null where there is none.
const kernels::Kernels* device_table();

/// Why there is none.
std::string why_no_device();

/// A NCCL for that device, by the environment, unless the machine's own will do.
void choose_nccl();

/// A test that needs the device begins with it.
class OnDevice : public ::testing::Test {
 protected:
  void SetUp() override {
    if (device_table() == nullptr) {
      GTEST_SKIP() << why_no_device();
    }
  }
};

}  // namespace espalier::testing
