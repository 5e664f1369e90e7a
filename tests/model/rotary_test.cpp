// Tables of rotary positions against the frequencies of transformers (make_decoder_golden.py).
#include "src/model/layers/rotary.h"

#include <gtest/gtest.h>

#include <cmath>

#include "io/checkpoint/plain_hdf5.h"

namespace espalier::model::rotary_test {
namespace {

RotaryOptions options_of(std::string_view scaling) {
  return {.width = 16,
          .base = 10'000,
          .positions = 64,
          .scaling = std::string(scaling),
          .factor = 8,
          .context = 32};
}

TEST(Rotary, TablesHaveTheFrequenciesOfTransformers) {
  const io::PlainReader golden(std::string(ESPALIER_SOURCE_DIR) + "/tests/golden/rotary.h5");
  for (const RotaryScaling* scaling : rotary_scalings()) {
    SCOPED_TRACE(scaling->name);
    const std::string name(scaling->name);
    const std::vector<float> frequencies = golden.read(name + ".frequencies");
    const auto gain = static_cast<double>(golden.read(name + ".gain").front());
    const RotaryTables tables = rotary_tables(options_of(name));
    ASSERT_EQ(frequencies.size(), 8U);
    ASSERT_EQ(tables.cosines.size(), 64U * 8U);
    for (size_t p = 0; p < 64; ++p) {
      for (size_t i = 0; i < 8; ++i) {
        const double angle = static_cast<double>(p) * static_cast<double>(frequencies[i]);
        EXPECT_NEAR(static_cast<double>(tables.cosines[p * 8 + i]), gain * std::cos(angle), 1e-5);
        EXPECT_NEAR(static_cast<double>(tables.sines[p * 8 + i]), gain * std::sin(angle), 1e-5);
      }
    }
  }
}

TEST(Rotary, TheGainOfTheConfigReplacesTheScalings) {
  RotaryOptions options = options_of("yarn");
  options.gain = 2;
  EXPECT_EQ(rotary_tables(options).cosines.front(), 2.0F);
}

/// Until the context grows, its length does not matter.
TEST(Rotary, DynamicScalingBeginsBeyondTheOldContext) {
  RotaryOptions options = options_of("dynamic");
  options.positions = 32;
  const RotaryTables same = rotary_tables(options);
  options.scaling = "none";
  EXPECT_EQ(same.cosines, rotary_tables(options).cosines);
}

TEST(Rotary, RejectsUnknownScalings) {
  EXPECT_THROW(rotary_tables(options_of("longrope")), Failure);
}

}  // namespace
}  // namespace espalier::model::rotary_test
