// The maps of 8-bit codes, and the effect of coding on numbers.
#include "src/kernels/rules/dynamic_map.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>

#include "tests/kernels/kernel_memory.h"

namespace espalier::kernels::dynamic_map_test {
namespace {

using Floats = std::vector<float>;
using Codes = std::vector<uint8_t>;
constexpr DynamicMap kMaps[] = {DynamicMap::with_sign, DynamicMap::without_sign};
constexpr auto kBlockSize = static_cast<size_t>(kQuantizeBlock);

template <class T>
Tensor view(std::vector<T>& values) {
  return Tensor(values.data(), dtype_of<T>(), {static_cast<int64_t>(values.size())});
}

struct Coded {
  Codes codes;
  Floats scales;
};

Coded encode(const Kernels& kernels, DynamicMap map, Floats x) {
  Arena arena;
  Stream stream(arena, 1);
  Coded made{Codes(x.size(), 77), Floats((x.size() + kBlockSize - 1) / kBlockSize, 77)};
  kernels.quantize(stream, {view(x), view(made.codes), view(made.scales), map});
  return made;
}

Floats decode(const Kernels& kernels, DynamicMap map, Coded coded) {
  Arena arena;
  Stream stream(arena, 1);
  Floats x(coded.codes.size(), 77);
  kernels.dequantize(stream, {view(coded.codes), view(coded.scales), view(x), map});
  return x;
}

/// body(table, map)
template <class Body>
void for_all(const Body& body) {
  for (const Kernels* table : computing_tables()) {
    for (const DynamicMap map : kMaps) {
      SCOPED_TRACE(fmt::format("{} map {:d}", table->name, static_cast<int>(map)));
      body(*table, map);
    }
  }
}

TEST(DynamicMap, ascends_from_its_end_to_one) {
  for (const DynamicMap map : kMaps) {
    const auto& values = dynamic_map(map);
    for (size_t i = 1; i < values.size(); ++i) {
      EXPECT_LT(values[i - 1], values[i]);
    }
    EXPECT_EQ(values[255], 1);
    EXPECT_EQ(std::count(values.begin(), values.end(), 0.0F), 1);
  }
  const auto& with_sign = dynamic_map(DynamicMap::with_sign);
  for (size_t p = 1; p <= 127; ++p) {
    EXPECT_EQ(with_sign[127 + p], -with_sign[127 - p]);
  }
  EXPECT_EQ(dynamic_map(DynamicMap::without_sign)[0], 0);
}

/// Values of bitsandbytes' create_dynamic_map (signed = True, False).
TEST(DynamicMap, has_the_values_of_bitsandbytes) {
  const auto& with_sign = dynamic_map(DynamicMap::with_sign);
  EXPECT_FLOAT_EQ(with_sign[128], 5.5e-7F);
  EXPECT_FLOAT_EQ(with_sign[129], 3.25e-6F);
  EXPECT_FLOAT_EQ(with_sign[130], 7.75e-6F);
  EXPECT_FLOAT_EQ(with_sign[191], 0.10703125F);
  EXPECT_FLOAT_EQ(with_sign[254], 0.99296875F);
  EXPECT_FLOAT_EQ(with_sign[0], -0.99296875F);
  const auto& without_sign = dynamic_map(DynamicMap::without_sign);
  EXPECT_FLOAT_EQ(without_sign[1], 3.25e-7F);
  EXPECT_FLOAT_EQ(without_sign[2], 7.75e-7F);
  EXPECT_FLOAT_EQ(without_sign[127], 0.103515625F);
  EXPECT_FLOAT_EQ(without_sign[254], 0.996484375F);
}

/// Several decades, both signs, a short last block.
Floats numbers(DynamicMap map, unsigned seed, float size) {
  std::mt19937 random(seed);
  std::uniform_real_distribution<float> exponent(-8, 0);
  Floats x(20 * kBlockSize + 19);
  for (float& value : x) {
    value = size * std::pow(10.0F, exponent(random));
    value = map == DynamicMap::with_sign && random() % 2 != 0 ? -value : value;
    value = random() % 50 == 0 ? 0 : value;
  }
  return x;
}

TEST(Quantize, takes_the_nearest_value) {
  for_all([](const Kernels& table, DynamicMap map) {
    const Floats x = numbers(map, 4, 5e-3F);
    const Coded coded = encode(table, map, x);
    const auto& values = dynamic_map(map);
    for (size_t i = 0; i < x.size(); ++i) {
      const double ratio = static_cast<double>(x[i]) / coded.scales[i / kBlockSize];
      double least = 9;
      for (const float value : values) {
        const bool allowed = map == DynamicMap::with_sign || value > 0 || ratio == 0;
        least = allowed ? std::min(least, std::fabs(ratio - value)) : least;
      }
      ASSERT_LE(std::fabs(ratio - values[coded.codes[i]]), least + 3e-7 * std::fabs(ratio))
          << ratio;
    }
  });
}

TEST(Quantize, what_was_decoded_gets_its_codes_again) {
  std::mt19937 random(5);
  for_all([&random](const Kernels& table, DynamicMap map) {
    for (const float scale : {1.0F, -1.0F, 0.1F, -7.3e-9F, 0x1p-104F, -0x1.7p-104F, 1e30F,
                              std::numeric_limits<float>::max()}) {
      if (map == DynamicMap::without_sign && scale < 0) {
        continue;
      }
      Coded coded{Codes(64 * kBlockSize + 31), Floats(65, scale)};
      for (uint8_t& code : coded.codes) {
        code = static_cast<uint8_t>(random());
      }
      for (size_t first = 0; first < coded.codes.size(); first += kBlockSize) {
        coded.codes[first + random() % 31] = 255;
      }
      const Coded again = encode(table, map, decode(table, map, coded));
      EXPECT_EQ(again.codes, coded.codes) << scale;
      EXPECT_EQ(again.scales, coded.scales) << scale;
    }
  });
}

TEST(Quantize, is_stable_from_any_numbers) {
  for_all([](const Kernels& table, DynamicMap map) {
    for (const float size : {1.0F, 1e-30F, 1e-31F, 1e-36F, 1e-41F, 1e37F, 0.0F}) {
      const Floats x = numbers(map, 6, size);
      const Coded coded = encode(table, map, x);
      const Floats decoded = decode(table, map, coded);
      const Coded again = encode(table, map, decoded);
      EXPECT_EQ(again.codes, coded.codes) << size;
      EXPECT_EQ(again.scales, coded.scales) << size;
    }
  });
}

TEST(Quantize, zero_blocks_are_zero) {
  for_all([](const Kernels& table, DynamicMap map) {
    Floats x(3 * kBlockSize, 0.0F);
    x[kBlockSize] = 1e-40F;  // treated as zero
    const Coded coded = encode(table, map, x);
    EXPECT_EQ(coded.scales, Floats({0, 0, 0}));
    for (const float value : decode(table, map, coded)) {
      EXPECT_EQ(value, 0);
    }
  });
}

TEST(Quantize, without_sign_only_zero_is_zero) {
  for (const Kernels* table : computing_tables()) {
    const Floats x = numbers(DynamicMap::without_sign, 7, 1);
    const Coded coded = encode(*table, DynamicMap::without_sign, x);
    for (size_t i = 0; i < x.size(); ++i) {
      EXPECT_EQ(coded.codes[i] == 0, x[i] == 0) << table->name << " " << x[i];
    }
  }
}

TEST(Quantize, infinity_and_nan_become_finite) {
  for_all([](const Kernels& table, DynamicMap map) {
    for (const float odd : {std::numeric_limits<float>::infinity(),
                            -std::numeric_limits<float>::infinity(), std::nanf("")}) {
      Floats x = numbers(map, 8, 1);
      x[100] = odd;
      for (const float value : decode(table, map, encode(table, map, x))) {
        EXPECT_TRUE(std::isfinite(value)) << odd;
      }
    }
  });
}

}  // namespace
}  // namespace espalier::kernels::dynamic_map_test
