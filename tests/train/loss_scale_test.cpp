// Changes of a run's loss scale.
#include "src/train/run/loss_scale.h"

#include <gtest/gtest.h>

#include "tests/support/failure.h"

namespace espalier::train::loss_scale_test {
namespace {

io::TrainConfig half(double scale = 0) {
  io::TrainConfig config;
  config.dtype = "fp16";
  config.loss_scale = scale;
  return config;
}

TEST(LossScale, OnlyFp16HasAMovingOne) {
  EXPECT_EQ(LossScale(half()).value(), 65536);
  EXPECT_TRUE(LossScale(half()).dynamic());
  EXPECT_EQ(LossScale(half(128)).value(), 128);
  EXPECT_FALSE(LossScale(half(128)).dynamic());
  EXPECT_EQ(LossScale(io::TrainConfig()).value(), 1);
  EXPECT_FALSE(LossScale(io::TrainConfig()).dynamic());
}

TEST(LossScale, IsHalvedByOverflowAndDoubledByPatience) {
  LossScale scale(half());
  EXPECT_TRUE(scale.update(false));
  EXPECT_TRUE(scale.update(false));
  EXPECT_EQ(scale.value(), 16384);
  EXPECT_EQ(scale.skipped(), 2);
  for (int i = 0; i < 1999; ++i) {
    EXPECT_TRUE(scale.update(true));
  }
  EXPECT_EQ(scale.value(), 16384);
  EXPECT_TRUE(scale.update(true));
  EXPECT_EQ(scale.value(), 32768);
  EXPECT_TRUE(scale.update(false));  // and counts anew
  for (int i = 0; i < 1999; ++i) {
    EXPECT_TRUE(scale.update(true));
  }
  EXPECT_EQ(scale.value(), 16384);
}

TEST(LossScale, EndsWhereItIsNotTheReason) {
  LossScale scale(half());
  for (int i = 0; i < 16; ++i) {
    EXPECT_TRUE(scale.update(false));
  }
  EXPECT_EQ(scale.value(), 1);
  EXPECT_FALSE(scale.update(false));
  EXPECT_FALSE(LossScale(half(8)).update(false));
  EXPECT_FALSE(LossScale(io::TrainConfig()).update(false));
}

TEST(LossScale, GoesOnWhereACheckpointLeftIt) {
  LossScale scale(half());
  scale.update(false);
  for (int i = 0; i < 1500; ++i) {
    scale.update(true);
  }
  LossScale other(half());
  other.restore(scale.state());
  EXPECT_EQ(other.state(), scale.state());
  for (int i = 0; i < 500; ++i) {
    other.update(true);
  }
  EXPECT_EQ(other.value(), 65536);
  EXPECT_EQ(other.skipped(), 1);
  LossScale fixed(half(4));
  fixed.restore(scale.state());
  EXPECT_EQ(fixed.value(), 4);
  const std::string before = other.state();
  for (const std::string& text :
       std::vector<std::string>{"many", "65536", "65536 1 2 3", "65536 -1 0", "nan 0 0", "0.5 0 0",
                                "65536 2000 0", "65536 99999999999999999999 0"}) {
    EXPECT_NE(failure_of([&] { other.restore(text); }).find("loss scale is '" + text + "'"),
              std::string::npos)
        << text;
    EXPECT_EQ(other.state(), before);
  }
}

}  // namespace
}  // namespace espalier::train::loss_scale_test
