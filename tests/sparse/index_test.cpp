// Every index encoding decodes the same set; its bytes match the documentation.
#include "sparse/index/index.h"

#include "tests/sparse/index_example.h"
#include "tests/support/failure.h"

namespace espalier::sparse::index_test {
namespace {

TEST(Index, EveryEncodingDecodesTheSameSet) {
  Arena arena;
  for (const Example& example : examples()) {
    SCOPED_TRACE(example.label());
    const Mask& mask = example.mask;
    const Index index(arena, mask, example.encoding, example.shape);
    EXPECT_EQ(index.encoding(), mask.kept() == mask.size() ? Encoding::full : example.encoding);
    EXPECT_EQ(index.size(), mask.size());
    EXPECT_EQ(index.kept(), mask.kept());
    EXPECT_EQ(index.shape(), example.shape);
    EXPECT_DOUBLE_EQ(index.density(), mask.density());
    EXPECT_EQ(index.mask(), mask);
    EXPECT_EQ(index.positions(), mask.positions());
    EXPECT_EQ(index.bytes(), arena.use(Memory::index).now) << "measured by the arena";
  }
  EXPECT_EQ(arena.use(Memory::index).now, 0U) << "every index gave its memory back";
}

TEST(Index, DecodesAnyPart) {
  Arena arena;
  std::mt19937 random(7);
  for (const Example& example : examples()) {
    SCOPED_TRACE(example.label());
    const auto positions = example.mask.positions();
    const Index index(arena, example.mask, example.encoding, example.shape);
    for (int trial = 0; trial < 20; ++trial) {
      const size_t first = random() % (positions.size() + 1);
      const size_t count = random() % (positions.size() - first + 1);
      std::vector<int32_t> out(count);
      index.decode(static_cast<int64_t>(first), out);
      ASSERT_TRUE(std::equal(out.begin(), out.end(), positions.begin() + static_cast<long>(first)))
          << first << " + " << count;
    }
  }
}

TEST(Index, DecodesAnyWords) {
  Arena arena;
  std::mt19937 random(8);
  for (const Example& example : examples()) {
    SCOPED_TRACE(example.label());
    const auto words = example.mask.words();
    const Index index(arena, example.mask, example.encoding, example.shape);
    for (int trial = 0; trial < 10; ++trial) {
      const size_t first = random() % (words.size() + 1);
      std::vector<uint64_t> out(random() % (words.size() - first + 1), 77);
      index.decode_words(static_cast<int64_t>(first), out);
      ASSERT_TRUE(std::equal(out.begin(), out.end(), words.begin() + static_cast<long>(first)))
          << first << " + " << out.size();
    }
  }
}

TEST(Index, RankCountsTheKeptBefore) {
  Arena arena;
  for (const Example& example : examples()) {
    SCOPED_TRACE(example.label());
    const Mask& mask = example.mask;
    std::vector<int64_t> before{0};
    for (int64_t i = 0; i < mask.size(); ++i) {
      before.push_back(before.back() + (mask[i] ? 1 : 0));
    }
    const int64_t stride = std::max<int64_t>(1, mask.size() / 700);
    const Index index(arena, mask, example.encoding, example.shape);
    for (int64_t dense = 0; dense <= mask.size(); dense += stride) {
      ASSERT_EQ(index.kept_before(dense), before[dense]) << dense;
    }
    EXPECT_EQ(index.kept_before(mask.size()), mask.kept());
  }
}

TEST(Index, KernelsSeeTheSameSetOnAnyNumberOfThreads) {
  Arena arena;
  int threads = 0;
  for (const Example& example : examples()) {
    SCOPED_TRACE(example.label());
    const Mask& mask = example.mask;
    const Index index(arena, mask, example.encoding, example.shape);
    std::vector<uint64_t> scratch(index.scratch_bytes() / 8 + 1, ~uint64_t{0});
    threads = threads % 3 + 1;
    const kernels::Positions view =
        index.view({reinterpret_cast<uint8_t*>(scratch.data()), index.scratch_bytes()}, threads);
    EXPECT_EQ(view.size, mask.size());
    EXPECT_EQ(view.count, mask.kept());
    EXPECT_EQ(view.all(), mask.kept() == mask.size()) << "nothing kept is not everything kept";
    EXPECT_EQ(view.list != nullptr, index.encoding() == Encoding::int32);
    if (view.list != nullptr) {
      EXPECT_EQ(std::vector<int32_t>(view.list, view.list + view.count), mask.positions());
    }
    for (int64_t word = 0; view.bitmap != nullptr && word < (mask.size() + 63) / 64; ++word) {
      ASSERT_EQ(view.bitmap[word], mask.words()[word]);
      if (word % 8 == 0) {
        ASSERT_EQ(view.prefix_counts[word / 8], index.kept_before(64 * word));
      }
    }
  }
}

TEST(Index, BytesComeBackFromAFile) {
  Arena arena;
  for (const Example& example : examples()) {
    SCOPED_TRACE(example.label());
    const Mask& mask = example.mask;
    const Index index(arena, mask, example.encoding, example.shape);
    const auto bytes = index.to_bytes();
    const Index back =
        Index::from_bytes(arena, index.encoding(), index.size(), index.kept(), bytes);
    EXPECT_EQ(back.encoding(), index.encoding());
    EXPECT_EQ(back.mask(), mask);
    EXPECT_EQ(back.to_bytes(), bytes);
    EXPECT_EQ(back.bytes(), index.bytes());
    EXPECT_EQ(back.kept_before(mask.size() / 2), index.kept_before(mask.size() / 2));
    const auto positions = mask.positions();
    std::vector<int32_t> tail(positions.size() / 3);
    back.decode(mask.kept() - static_cast<int64_t>(tail.size()), tail);
    EXPECT_TRUE(std::equal(tail.rbegin(), tail.rend(), positions.rbegin()));
  }
}

TEST(Index, BytesAreAsDocumented) {
  Arena arena;
  constexpr int64_t kSize = 1 << 20;
  for (double density : {0.5, 0.3, 0.2, 0.1, 0.05, 0.02, 0.01, 0.0001}) {
    const Mask mask = random_mask(kSize, density, 3);
    const int64_t kept = mask.kept();
    const auto predicted = [&](const Encoding& encoding) {
      return static_cast<double>(predicted_bytes(encoding, kSize, kept));
    };
    for (const Encoding& encoding : any_mask_encodings()) {
      SCOPED_TRACE(fmt::format("{} {}", density, encoding.name));
      const auto bytes = static_cast<double>(Index(arena, mask, encoding).bytes());
      EXPECT_NEAR(bytes, predicted(encoding), 0.02 * predicted(encoding) + 16);
      EXPECT_GT(bytes, 0.99 * entropy_bound_bytes(kSize, kept));
    }
    EXPECT_EQ(predicted_bytes(Encoding::int32, kSize, kept), static_cast<size_t>(4 * kept));
    EXPECT_EQ(predicted_bytes(Encoding::bitmap, kSize, kept),
              static_cast<size_t>(kSize / 8 + kSize / 128));
    if (density < 0.4) {
      EXPECT_LT(predicted(Encoding::golomb), 1.045 * entropy_bound_bytes(kSize, kept) + 16);
    }
  }
  EXPECT_EQ(Index(arena, Mask(kSize), Encoding::bitmap).bytes(), 0U);
  EXPECT_EQ(predicted_bytes(Encoding::int32, kSize, kSize), 0U);
  const Mask tenth = random_mask(kSize, 0.1, 4);
  EXPECT_LT(static_cast<double>(Index(arena, tenth, Encoding::golomb).bytes()) / kSize, 0.062);
}

TEST(Index, ShapedBytesAreAsDocumented) {
  Arena arena;
  const IndexShape two_four{.cols = 1024, .n = 2, .m = 4};
  const Mask halves = nm_mask(1024, two_four, 0, 1);
  const Index nm(arena, halves, Encoding::nm, two_four);
  EXPECT_EQ(nm.bytes(), (1U << 20) / 8 + (1U << 20) / 4 / 128 * 4) << "four bits a group";
  EXPECT_EQ(nm.bytes(), predicted_bytes(Encoding::nm, 1 << 20, halves.kept(), two_four));

  const IndexShape squares{.cols = 1024, .height = 16, .width = 16};
  const Mask blocks = block_mask(1024, squares, 0.1, 1);
  const Index block(arena, blocks, Encoding::block, squares);
  EXPECT_EQ(block.bytes(), 64U * 64 / 8 + 64 * 4)
      << "one bit a block, one prefix count a row of them";
  EXPECT_EQ(block.bytes(), predicted_bytes(Encoding::block, 1 << 20, blocks.kept(), squares));
}

TEST(Index, EntropyBound) {
  EXPECT_DOUBLE_EQ(entropy_bound_bytes(800, 400), 100.0);
  EXPECT_NEAR(entropy_bound_bytes(1'000'000, 100'000) / 1e6, 0.05862, 1e-5);
  EXPECT_EQ(entropy_bound_bytes(800, 0), 0.0);
  EXPECT_EQ(entropy_bound_bytes(800, 800), 0.0);
}

TEST(Index, BestEncodingIsTheSmallestThatDecodesFast) {
  EXPECT_EQ(best_encoding(1000, 1000), Encoding::full);
  EXPECT_EQ(best_encoding(100'000, 50'000), Encoding::bitmap);
  EXPECT_EQ(best_encoding(100'000, 30'000), Encoding::golomb);
  EXPECT_EQ(best_encoding(100'000, 10'000), Encoding::golomb);
  EXPECT_EQ(best_encoding(100'000, 0), Encoding::golomb);

  const IndexShape shape{.cols = 100, .height = 10, .width = 10, .n = 1, .m = 4};
  EXPECT_EQ(best_encoding(nm_mask(100, shape, 0, 1), shape), Encoding::nm);
  EXPECT_EQ(best_encoding(block_mask(100, shape, 0.1, 1), shape), Encoding::block);
  EXPECT_EQ(best_encoding(random_mask(10'000, 0.1, 1), shape), Encoding::golomb);
  EXPECT_EQ(best_encoding(nm_mask(100, shape, 0, 1), {}), Encoding::golomb);
  EXPECT_EQ(best_encoding(Mask(10'000), shape), Encoding::full);
}

TEST(Index, WhatFitsAShape) {
  Mask mask(20, false);
  for (int64_t i : {0, 3, 5, 9, 10, 14}) {
    mask.set(i, true);
  }
  const auto is_nm = [&](int64_t cols, int n, int m) {
    return Encoding::nm.rules->holds(mask, {.cols = cols, .n = n, .m = m});
  };
  const auto is_block = [](const Mask& of, int64_t cols, int64_t height, int64_t width) {
    return Encoding::block.rules->holds(of, {.cols = cols, .height = height, .width = width});
  };
  EXPECT_TRUE(is_nm(10, 2, 4)) << "groups end with their row";
  EXPECT_FALSE(is_nm(20, 2, 8));
  EXPECT_FALSE(is_nm(10, 1, 4));
  EXPECT_FALSE(is_block(mask, 10, 2, 5));
  EXPECT_TRUE(is_block(mask, 10, 1, 1));
  Mask edge(6, false);  // rows of 3: the last column, of both rows
  edge.set(2, true);
  EXPECT_FALSE(is_block(edge, 3, 2, 2));
  edge.set(5, true);
  EXPECT_TRUE(is_block(edge, 3, 2, 2)) << "blocks at the edge are cut";
  EXPECT_TRUE(is_block(Mask(6, false), 3, 4, 4));
  EXPECT_TRUE(is_block(Mask(6), 3, 4, 4));
}

TEST(Index, ADryArenaCountsAndTouchesNothing) {
  Arena dry(true);
  const Mask mask = random_mask(10'000, 0.1, 1);
  for (const Encoding& encoding : any_mask_encodings()) {
    const Index index(dry, mask, encoding);
    EXPECT_TRUE(index.dry());
    EXPECT_EQ(index.bytes(), dry.use(Memory::index).now);
    EXPECT_EQ(index.kept(), mask.kept());
    EXPECT_THROW(index.mask(), Bug);
    EXPECT_THROW(index.positions(), Bug);
    EXPECT_THROW(index.to_bytes(), Bug);
    alignas(8) std::array<uint8_t, 2000> scratch{};
    EXPECT_FALSE(index.view(scratch).all());
  }
  Arena real;
  const auto bytes = Index(real, mask, Encoding::golomb).to_bytes();
  EXPECT_TRUE(Index::from_bytes(dry, Encoding::golomb, mask.size(), mask.kept(), bytes).dry());
}

TEST(Index, PlannedTakesThePredictedBytes) {
  Arena dry(true);
  const IndexShape shape{.cols = 100'000, .height = 16, .width = 16, .n = 2, .m = 4};
  for (const Encoding& encoding :
       {Encoding::int32, Encoding::bitmap, Encoding::golomb, Encoding::nm, Encoding::block}) {
    const Index index = Index::planned(dry, 1'000'000'000, 100'000'000, encoding, shape);
    EXPECT_EQ(index.bytes(), predicted_bytes(encoding, 1'000'000'000, 100'000'000, shape));
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
  EXPECT_THROW(Index::full(kMaxPlannedElements + 1), Failure);
  EXPECT_THROW(predicted_bytes(Encoding::int32, 10, 11), Failure);
  const Index index(arena, mask, Encoding::golomb);
  std::vector<int32_t> out(2);
  EXPECT_THROW(index.decode(index.kept() - 1, out), Bug);
  EXPECT_THROW(index.decode(-1, out), Bug);
  EXPECT_THROW(index.kept_before(1001), Bug);
  std::vector<uint64_t> words(2);
  EXPECT_THROW(index.decode_words(15, words), Bug);
  std::vector<uint8_t> scratch(8);
  EXPECT_THROW(index.view(scratch), Bug) << "too little scratch";
}

TEST(Index, AMaskThatDoesNotFitIsRefused) {
  Arena arena;
  const Mask mask = random_mask(1000, 0.2, 5);
  EXPECT_THROW(Index(arena, mask, Encoding::nm, {.cols = 100, .n = 2, .m = 4}), Failure);
  EXPECT_THROW(Index(arena, mask, Encoding::block, {.cols = 100, .height = 2, .width = 2}),
               Failure);
  for (const IndexShape& shape :
       {IndexShape{}, IndexShape{.cols = 3, .n = 2, .m = 4}, IndexShape{.cols = 10, .n = 5, .m = 4},
        IndexShape{.cols = 10, .n = 1, .m = 65}, IndexShape{.cols = 10, .n = 32, .m = 64}}) {
    EXPECT_THROW(Index(arena, mask, Encoding::nm, shape), Failure);
    EXPECT_THROW(Encoding::nm.rules->check(mask.size(), shape), Failure);
  }
  for (const IndexShape& shape : {IndexShape{.cols = 7, .height = 1, .width = 1},
                                  IndexShape{.cols = 10, .height = 0, .width = 1}}) {
    EXPECT_THROW(Encoding::block.rules->check(mask.size(), shape), Failure);
    EXPECT_FALSE(Encoding::block.rules->holds(mask, shape));
  }
}

TEST(IndexRegistry, NamesAndChoices) {
  for (size_t i = 0; i < encodings().size(); ++i) {
    const Encoding& encoding = *encodings()[i];
    EXPECT_EQ(encoding_by_name(encoding.name), encoding);
    EXPECT_EQ(number_of(encoding), static_cast<int32_t>(i));
  }
  EXPECT_THAT(names<Encoding>(memory_encodings()),
              ::testing::ElementsAre("int32", "bitmap", "golomb", "nm", "block"));
  EXPECT_THAT(failure_of([] { encoding_by_name("bitmpa"); }), ::testing::HasSubstr("golomb"));
  EXPECT_THAT(failure_of([] { encoding_by_name("elias-fano"); }),
              ::testing::HasSubstr("with version 0.1"));
  EXPECT_THAT(failure_of([] { encoding_by_name("entropy"); }),
              ::testing::HasSubstr("with version 0.2 and sparse.file_index = \"golomb\""));
}

}  // namespace
}  // namespace espalier::sparse::index_test
