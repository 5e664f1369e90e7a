#include "src/core/rng.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <span>

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

}  // namespace
}  // namespace espalier::rng_test
