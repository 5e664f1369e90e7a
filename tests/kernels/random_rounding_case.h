#pragma once
// Compares a table's random rounding with the rule (rules/master.h), on fp32 numbers of all
// kinds.
#include <gtest/gtest.h>

#include <cmath>

#include "src/core/mirror.h"
#include "src/core/rng.h"
#include "src/kernels/kernels.h"
#include "src/kernels/rules/master.h"

namespace espalier::testing {

/// Number k: each exponent with each sign. Mantissas are random, near the ends and midpoints of
/// halves, or exact in bf16.
inline float number_of_any_kind(int64_t k) {
  const Philox drawn = philox(11, 0, static_cast<uint64_t>(k));
  constexpr uint32_t kEnds[]{0,      1,      0x0fff,  0x1000,   0x1fff,   0x2000,   0x7fff,
                             0x8000, 0xffff, 0x10000, 0x7fe000, 0x7fefff, 0x7ff000, 0x7fffff};
  const uint32_t mantissa = k % 3 == 0   ? drawn[0] & 0x7fffffU
                            : k % 3 == 1 ? kEnds[drawn[0] % std::size(kEnds)]
                                         : drawn[0] % 128 << 16;
  // Odd k: exponents near the range of fp16, including its subnormal numbers and overflow.
  const uint32_t exponent = k % 2 == 0 ? drawn[1] % 256 : 78 + drawn[1] % 70;
  return std::bit_cast<float>(drawn[2] % 2 << 31 | exponent << 23 | mantissa);
}

/// SGD from zero with rate -1 sets the value to the gradient, for any gradient.
template <class Half>
void expect_rounds_by_the_rule(const kernels::Kernels& table, Stream& stream) {
  constexpr int64_t kCount = 100'003;
  constexpr kernels::RandomRounding kDraw{.key = 0xfedcba9876543210, .first = 6};
  Arena& arena = stream.arena();
  const auto buffer = [&](DType dtype) {
    return arena.allocate(Memory::scratch, "operand", dtype, Shape{kCount});
  };
  const Buffer gradient = buffer(DType::fp32);
  const Buffer value = buffer(dtype_of<Half>());
  const Buffer moment = buffer(DType::fp32);
  const Mirror given(stream, gradient.tensor());
  for (int64_t k = 0; k < kCount; ++k) {
    given.host().get<float>()[k] = number_of_any_kind(k);
  }
  given.write();
  table.update(stream, kernels::UpdateArgs{.rule = kernels::UpdateRule::sgd,
                                           .gradient = gradient.tensor(),
                                           .value = value.tensor(),
                                           .moment1 = moment.tensor(),
                                           .lr = -1,
                                           .beta1 = 0,
                                           .rounding = kDraw});
  const Mirror got(stream, value.tensor());
  got.read();
  int64_t special = 0;
  for (int64_t k = 0; k < kCount; ++k) {
    const int64_t e = kDraw.first + k;
    const float w = 0.0F + given.host().get<float>()[k];
    const uint32_t word = philox(kDraw.key, 0, static_cast<uint64_t>(e / 4))[e % 4];
    ASSERT_EQ(got.host().get<Half>()[k].bits, kernels::round_at_random<Half>(w, word).bits)
        << table.name << " " << k << " " << w;
    special += std::isfinite(w) ? 0 : 1;
  }
  EXPECT_GT(special, 100);
}

}  // namespace espalier::testing
