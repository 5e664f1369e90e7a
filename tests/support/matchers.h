#pragma once
// gtest, and the matchers of gmock that most tests use.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

namespace espalier {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

/// Element by element, such as the losses of two runs.
inline auto AreNear(const std::vector<double>& want, double most) {
  return ::testing::Pointwise(::testing::DoubleNear(most), want);
}

}  // namespace espalier
