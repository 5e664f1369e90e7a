// Masks: bits, positions, digests, against a std::vector<bool> of the same elements.
#include "sparse/index/mask.h"

#include <gtest/gtest.h>

#include <random>
#include <set>

#include "src/core/error.h"

namespace espalier::sparse::mask_test {
namespace {

constexpr int64_t kSizes[] = {0, 1, 63, 64, 65, 511, 512, 513, 4096, 100003};

std::vector<bool> random_bits(int64_t size, double density, unsigned seed) {
  std::mt19937 random(seed);
  std::bernoulli_distribution draw(density);
  std::vector<bool> bits(static_cast<size_t>(size));
  for (size_t i = 0; i < bits.size(); ++i) {
    bits[i] = draw(random);
  }
  return bits;
}

Mask mask_of(const std::vector<bool>& bits) {
  Mask mask(static_cast<int64_t>(bits.size()), false);
  for (size_t i = 0; i < bits.size(); ++i) {
    mask.set(static_cast<int64_t>(i), bits[i]);
  }
  return mask;
}

TEST(Mask, AllAndNone) {
  for (int64_t size : kSizes) {
    EXPECT_EQ(Mask(size).kept(), size);
    EXPECT_EQ(Mask(size, false).kept(), 0);
    EXPECT_EQ(Mask(size).words().size(), static_cast<size_t>((size + 63) / 64));
    EXPECT_DOUBLE_EQ(Mask(size).density(), 1.0);
  }
}

TEST(Mask, HoldsWhatWasSet) {
  for (int64_t size : kSizes) {
    for (double density : {0.0, 0.1, 0.5, 0.99}) {
      const auto bits = random_bits(size, density, static_cast<unsigned>(size) + 1);
      const Mask mask = mask_of(bits);
      std::vector<int32_t> expected;
      for (size_t i = 0; i < bits.size(); ++i) {
        ASSERT_EQ(mask[static_cast<int64_t>(i)], bits[i]);
        if (bits[i]) {
          expected.push_back(static_cast<int32_t>(i));
        }
      }
      EXPECT_EQ(mask.kept(), static_cast<int64_t>(expected.size()));
      EXPECT_EQ(mask.positions(), expected);
      EXPECT_EQ(Mask::from_words(size, mask.words()), mask);
    }
  }
}

TEST(Mask, VisitsEveryOneWhileTheyAreCleared) {
  Mask mask(1000);
  int64_t next = 0;
  for_each_one(mask.words(), [&](int64_t position) {
    EXPECT_EQ(position, next++);
    mask.set(position, position % 3 == 0);
  });
  EXPECT_EQ(next, 1000);
  EXPECT_EQ(mask.kept(), 334);
}

TEST(Mask, DifferentMasksHaveDifferentDigests) {
  std::set<uint64_t> digests;
  for (int64_t size : {0, 1, 64, 65, 128}) {
    digests.insert(Mask(size, false).digest());
  }
  EXPECT_EQ(digests.size(), 5U) << "the size is part of the digest, also when all words are equal";
  Mask mask(4096);
  const uint64_t before = mask.digest();
  for (int64_t i = 0; i < 4096; ++i) {
    mask.set(i, false);
    EXPECT_NE(mask.digest(), before);
    mask.set(i, true);
  }
  EXPECT_EQ(mask.digest(), before);
}

TEST(Mask, WrongInputIsNamed) {
  EXPECT_THROW(Mask(-1), Bug);
  EXPECT_THROW(Mask(kMaxElements + 1), Failure);
  EXPECT_THROW(Mask::from_words(10, std::vector<uint64_t>{1024}), Bug);
  EXPECT_THROW(Mask::from_words(10, std::vector<uint64_t>{}), Bug);
  EXPECT_THROW(Mask(10).set(10, true), Bug);
}

}  // namespace
}  // namespace espalier::sparse::mask_test
