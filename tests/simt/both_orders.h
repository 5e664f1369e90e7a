#pragma once
// Tests that run kernels of their own in both orders of threads:
//   class Rules : public BothOrders {};
//   ESPALIER_BOTH_ORDERS(Rules)
//   TEST_P(Rules, ...) { launch(kernel, shape, stream_, ...); }
#include <gtest/gtest.h>

#include "src/kernels/cuda/device/launch.h"

namespace espalier::kernels::ESPALIER_GPU {

class BothOrders : public ::testing::TestWithParam<simt::Order> {
 protected:
  Arena arena_;
  DeviceQueue queue_{GetParam()};
  Stream stream_{arena_, 1, &queue_};
};

}  // namespace espalier::kernels::ESPALIER_GPU

#define ESPALIER_BOTH_ORDERS(Suite)                                                      \
  INSTANTIATE_TEST_SUITE_P(                                                              \
      Orders, Suite, ::testing::Values(simt::Order::ascending, simt::Order::descending), \
      [](const auto& one) {                                                              \
        return one.param == simt::Order::ascending ? "ascending" : "descending";         \
      })
