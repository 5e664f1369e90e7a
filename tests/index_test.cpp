// Every index encoding decodes the same set; bytes are what the documentation says.
#include "sparse/index.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>

#include "src/core/error.h"

namespace espalier::sparse {
namespace {

constexpr Encoding kEncodings[] = {Encoding::int32, Encoding::delta, Encoding::bitmap};

Mask random_mask(int64_t size, double density, unsigned seed) {
  std::mt19937 random(seed);
  std::bernoulli_distribution draw(density);
  Mask mask(size, false);
  for (int64_t i = 0; i < size; ++i) {
    mask.set(i, draw(random));
  }
  return mask;
}

/// Runs of ones and zeros of growing length, as block and N:M pruning make them.
Mask runs(int64_t size, int64_t first) {
  Mask mask(size, false);
  int64_t at = first;
  for (int64_t length = 1; at < size; length = length * 2 + 1) {
    for (int64_t i = at; i < std::min(size, at + length); ++i) {
      mask.set(i, true);
    }
    at += 2 * length;
  }
  return mask;
}

std::vector<Mask> cases() {
  std::vector<Mask> masks;
  unsigned seed = 1;
  for (int64_t size : {0, 1, 63, 64, 65, 511, 512, 513, 4096, 100003}) {
    masks.emplace_back(size, false);
    masks.emplace_back(size, true);
    masks.push_back(runs(size, 0));
    masks.push_back(runs(size, std::min<int64_t>(size, 70)));
    for (double density : {0.001, 0.01, 0.05, 0.1, 0.3, 0.5, 0.9, 0.999}) {
      masks.push_back(random_mask(size, density, seed++));
    }
    if (size > 0) {
      Mask last(size, false);
      last.set(size - 1, true);
      masks.push_back(last);
      Mask all_but_first(size);
      all_but_first.set(0, false);
      masks.push_back(all_but_first);
    }
  }
  return masks;
}

std::string label(const Mask& mask, Encoding encoding) {
  return fmt::format("size {} kept {} {}", mask.size(), mask.kept(), name_of(encoding));
}

TEST(Index, EveryEncodingDecodesTheSameSet) {
  Arena arena;
  for (const Mask& mask : cases()) {
    const auto positions = mask.positions();
    for (Encoding encoding : kEncodings) {
      SCOPED_TRACE(label(mask, encoding));
      const Index index(arena, mask, encoding);
      EXPECT_EQ(index.encoding(), mask.kept() == mask.size() ? Encoding::full : encoding);
      EXPECT_EQ(index.size(), mask.size());
      EXPECT_EQ(index.kept(), mask.kept());
      EXPECT_DOUBLE_EQ(index.density(), mask.density());
      EXPECT_EQ(index.mask(), mask);
      EXPECT_EQ(index.positions(), positions);
    }
  }
  EXPECT_EQ(arena.use(Memory::index).now, 0U) << "every index gave its memory back";
}

TEST(Index, DecodesAnyPart) {
  Arena arena;
  std::mt19937 random(7);
  for (const Mask& mask : cases()) {
    const auto positions = mask.positions();
    for (Encoding encoding : kEncodings) {
      SCOPED_TRACE(label(mask, encoding));
      const Index index(arena, mask, encoding);
      for (int trial = 0; trial < 20; ++trial) {
        const size_t first = random() % (positions.size() + 1);
        const size_t count = random() % (positions.size() - first + 1);
        std::vector<int32_t> out(count);
        index.decode(static_cast<int64_t>(first), out);
        ASSERT_TRUE(
            std::equal(out.begin(), out.end(), positions.begin() + static_cast<long>(first)))
            << first << " + " << count;
      }
    }
  }
}

TEST(Index, RankCountsTheKeptBefore) {
  Arena arena;
  for (const Mask& mask : cases()) {
    std::vector<int64_t> before{0};
    for (int64_t i = 0; i < mask.size(); ++i) {
      before.push_back(before.back() + (mask[i] ? 1 : 0));
    }
    const int64_t stride = std::max<int64_t>(1, mask.size() / 700);
    for (Encoding encoding : kEncodings) {
      SCOPED_TRACE(label(mask, encoding));
      const Index index(arena, mask, encoding);
      for (int64_t dense = 0; dense <= mask.size(); dense += stride) {
        ASSERT_EQ(index.kept_before(dense), before[static_cast<size_t>(dense)]) << dense;
      }
      EXPECT_EQ(index.kept_before(mask.size()), mask.kept());
    }
  }
}

TEST(Index, KernelsSeeTheSameSet) {
  Arena arena;
  for (const Mask& mask : cases()) {
    const auto positions = mask.positions();
    for (Encoding encoding : kEncodings) {
      SCOPED_TRACE(label(mask, encoding));
      const Index index(arena, mask, encoding);
      std::vector<int32_t> scratch(positions.size());
      const kernels::Positions view = index.view(scratch);
      EXPECT_EQ(view.size, mask.size());
      EXPECT_EQ(view.count, mask.kept());
      EXPECT_EQ(view.all(), mask.kept() == mask.size()) << "nothing kept is not everything kept";
      if (view.list != nullptr) {
        EXPECT_EQ(std::vector<int32_t>(view.list, view.list + view.count), positions);
      }
      if (view.bitmap != nullptr) {
        for (int64_t word = 0; word < (mask.size() + 63) / 64; ++word) {
          ASSERT_EQ(view.bitmap[word], mask.words()[static_cast<size_t>(word)]);
          if (word % 8 == 0) {
            ASSERT_EQ(view.ranks[word / 8], index.kept_before(64 * word));
          }
        }
      }
    }
  }
}

TEST(Index, BytesComeBackFromAFile) {
  Arena arena;
  for (const Mask& mask : cases()) {
    for (Encoding encoding : kEncodings) {
      SCOPED_TRACE(label(mask, encoding));
      const Index index(arena, mask, encoding);
      const auto bytes = index.to_bytes();
      const Index back =
          Index::from_bytes(arena, index.encoding(), index.size(), index.kept(), bytes);
      EXPECT_EQ(back.encoding(), index.encoding());
      EXPECT_EQ(back.mask(), mask);
      EXPECT_EQ(back.to_bytes(), bytes);
      EXPECT_EQ(back.bytes(), index.bytes());
      EXPECT_EQ(back.kept_before(mask.size() / 2), index.kept_before(mask.size() / 2));
      std::vector<int32_t> tail(static_cast<size_t>(mask.kept() / 3));
      back.decode(mask.kept() - mask.kept() / 3, tail);
      const auto positions = mask.positions();
      EXPECT_TRUE(std::equal(tail.rbegin(), tail.rend(), positions.rbegin()));
    }
  }
}

TEST(Index, BytesAreAsDocumented) {
  Arena arena;
  constexpr int64_t kSize = 1 << 20;
  for (double density : {0.5, 0.2, 0.1, 0.05, 0.01, 0.0001}) {
    const Mask mask = random_mask(kSize, density, 3);
    const int64_t kept = mask.kept();
    for (Encoding encoding : kEncodings) {
      SCOPED_TRACE(label(mask, encoding));
      const Index index(arena, mask, encoding);
      EXPECT_EQ(index.bytes(), arena.use(Memory::index).now) << "measured by the arena";
      const size_t predicted = predicted_bytes(encoding, kSize, kept);
      if (encoding == Encoding::delta) {
        EXPECT_NEAR(static_cast<double>(index.bytes()), static_cast<double>(predicted),
                    0.01 * static_cast<double>(predicted) + 4);
      } else {
        EXPECT_EQ(index.bytes(), predicted);
      }
      EXPECT_GT(static_cast<double>(index.bytes()), 0.99 * entropy_bound_bytes(kSize, kept));
    }
    EXPECT_EQ(predicted_bytes(Encoding::int32, kSize, kept), static_cast<size_t>(4 * kept));
    EXPECT_EQ(predicted_bytes(Encoding::bitmap, kSize, kept),
              static_cast<size_t>(kSize / 8 + kSize / 128));
  }
  EXPECT_EQ(Index(arena, Mask(kSize), Encoding::bitmap).bytes(), 0U);
  EXPECT_EQ(predicted_bytes(Encoding::int32, kSize, kSize), 0U);
}

TEST(Index, EntropyBound) {
  EXPECT_DOUBLE_EQ(entropy_bound_bytes(800, 400), 100.0);
  EXPECT_NEAR(entropy_bound_bytes(1'000'000, 100'000) / 1e6, 0.05862, 1e-5);
  EXPECT_EQ(entropy_bound_bytes(800, 0), 0.0);
  EXPECT_EQ(entropy_bound_bytes(800, 800), 0.0);
}

TEST(Index, BestEncodingIsTheSmallestThatKernelsReadDirectly) {
  EXPECT_EQ(best_encoding(1000, 1000), Encoding::full);
  EXPECT_EQ(best_encoding(100'000, 50'000), Encoding::bitmap);
  EXPECT_EQ(best_encoding(100'000, 10'000), Encoding::bitmap);
  EXPECT_EQ(best_encoding(100'000, 3'400), Encoding::bitmap);
  EXPECT_EQ(best_encoding(100'000, 3'300), Encoding::int32);
  EXPECT_EQ(best_encoding(100'000, 0), Encoding::int32);
}

TEST(Index, ADryArenaCountsAndTouchesNothing) {
  Arena dry(true);
  const Mask mask = random_mask(10'000, 0.1, 1);
  for (Encoding encoding : kEncodings) {
    const Index index(dry, mask, encoding);
    EXPECT_TRUE(index.dry());
    EXPECT_EQ(index.bytes(), dry.use(Memory::index).now);
    EXPECT_EQ(index.kept(), mask.kept());
    EXPECT_THROW(index.mask(), Bug);
    EXPECT_THROW(index.positions(), Bug);
    EXPECT_THROW(index.to_bytes(), Bug);
    std::vector<int32_t> scratch(static_cast<size_t>(mask.kept()));
    EXPECT_FALSE(index.view(scratch).all());
  }
  Arena real;
  const auto bytes = Index(real, mask, Encoding::delta).to_bytes();
  EXPECT_TRUE(Index::from_bytes(dry, Encoding::delta, mask.size(), mask.kept(), bytes).dry());
}

TEST(Index, PlannedTakesThePredictedBytes) {
  Arena dry(true);
  for (Encoding encoding : kEncodings) {
    const Index index = Index::planned(dry, 1'000'000'000, 100'000'000, encoding);
    EXPECT_EQ(index.bytes(), predicted_bytes(encoding, 1'000'000'000, 100'000'000));
    EXPECT_EQ(index.bytes(), dry.use(Memory::index).now);
    EXPECT_TRUE(index.dry());
  }
  const Index full = Index::planned(dry, 1000, 1000, Encoding::bitmap);
  EXPECT_EQ(full.encoding(), Encoding::full);
  EXPECT_EQ(full.bytes(), 0U);
}

TEST(Index, FullHoldsNothing) {
  const Index index = Index::full(77);
  EXPECT_EQ(index.bytes(), 0U);
  EXPECT_EQ(index.kept(), 77);
  EXPECT_EQ(index.mask(), Mask(77));
  EXPECT_EQ(index.kept_before(33), 33);
  EXPECT_TRUE(index.view().all());
  std::vector<int32_t> part(2);
  index.decode(75, part);
  EXPECT_EQ(part, (std::vector<int32_t>{75, 76}));
  EXPECT_EQ(Index().size(), 0);
}

TEST(Index, WrongCallsAreNamed) {
  Arena arena;
  const Mask mask = random_mask(1000, 0.2, 5);
  EXPECT_THROW(Index(arena, mask, Encoding::full), Bug);
  EXPECT_THROW(Index::full(kMaxElements + 1), Failure);
  EXPECT_THROW(predicted_bytes(Encoding::int32, 10, 11), Failure);
  const Index index(arena, mask, Encoding::delta);
  std::vector<int32_t> out(2);
  EXPECT_THROW(index.decode(index.kept() - 1, out), Bug);
  EXPECT_THROW(index.decode(-1, out), Bug);
  EXPECT_THROW(index.kept_before(1001), Bug);
  EXPECT_THROW(index.view(out), Bug) << "too little scratch";
}

TEST(Index, Names) {
  for (Encoding encoding : {Encoding::full, Encoding::int32, Encoding::delta, Encoding::bitmap}) {
    EXPECT_EQ(encoding_by_name(name_of(encoding)), encoding);
  }
  try {
    encoding_by_name("bitmpa");
    FAIL();
  } catch (const Failure& failure) {
    EXPECT_NE(std::string(failure.what()).find("bitmap"), std::string::npos);
  }
}

}  // namespace
}  // namespace espalier::sparse
