#include "src/core/rng.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <numbers>
#include <span>
#include <vector>

namespace espalier::rng_test {
namespace {

// From the generator's authors: kat_vectors of Random123, philox4x32, 10 rounds.
TEST(Rng, known_answers) {
  EXPECT_EQ(philox(0, 0, 0), (Philox{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  EXPECT_EQ(philox(~uint64_t{0}, ~uint64_t{0}, ~uint64_t{0}),
            (Philox{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
}

TEST(Rng, a_block_has_the_words_of_its_counters) {
  for (const uint64_t first :
       {uint64_t{0}, uint64_t{16}, (uint64_t{1} << 32) - 8, ~uint64_t{0} - 15}) {
    for (const uint64_t key : {uint64_t{0}, uint64_t{0x0123456789abcdef}, ~uint64_t{0}}) {
      const auto block = philox_block(key, key ^ first, first);
      for (size_t i = 0; i < 16; ++i) {
        const Philox words = philox(key, key ^ first, first + i);
        EXPECT_TRUE(std::ranges::equal(words, std::span(block).subspan(4 * i, 4)))
            << "counter " << first << " + " << i;
      }
    }
  }
}

TEST(Rng, normals_are_box_muller_of_their_words) {
  std::vector<int32_t> positions;
  for (int64_t p = 0; p < 0x7fffffff; p = p < 2000 ? p + 1 : p + p / 7) {
    positions.push_back(static_cast<int32_t>(p));
  }
  std::vector<float> drawn(positions.size());
  normals_at(5, positions, drawn);
  for (size_t k = 0; k < positions.size(); ++k) {
    const auto p = static_cast<size_t>(positions[k]);
    const Philox words = philox(5, 0, p / 4);
    const uint32_t a = words.at(p / 2 % 2 * 2);
    const uint32_t b = words.at(p / 2 % 2 * 2 + 1);
    EXPECT_EQ(drawn[k], normal_pair(a, b).at(p % 2)) << "position " << p;
  }
}

TEST(Rng, a_normal_pair_is_accurate) {
  std::vector<uint32_t> words{0,          1,          2,          0x1fffffff, 0x20000000,
                              0x7fffffff, 0x80000000, 0xb504f332, 0xb504f334, 0xbfffffff,
                              0xe0000000, 0xfffffffe, 0xffffffff};
  for (uint64_t i = 0; i < 1000; ++i) {
    std::ranges::copy(philox(1, 0, i), std::back_inserter(words));
  }
  for (size_t i = 0; i < words.size(); ++i) {
    for (const uint32_t b : {words[i], words[(7 * i + 3) % words.size()]}) {
      const double u = (static_cast<double>(words[i]) + 1) * 0x1p-32;
      const double angle = 2 * std::numbers::pi * static_cast<double>(b) * 0x1p-32;
      const double radius = std::sqrt(-2 * std::log(u));
      const auto [x, y] = normal_pair(words[i], b);
      EXPECT_NEAR(x, radius * std::cos(angle), 1e-15 + 6e-8 * std::abs(x)) << words[i] << ' ' << b;
      EXPECT_NEAR(y, radius * std::sin(angle), 1e-15 + 6e-8 * std::abs(y)) << words[i] << ' ' << b;
    }
  }
}

}  // namespace
}  // namespace espalier::rng_test
