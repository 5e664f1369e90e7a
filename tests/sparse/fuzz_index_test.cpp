// Any bytes give a correct index or a Failure: never a crash, a Bug, or a read out of bounds. The
// address sanitizer finds the last, hence the exact-size copies on the heap.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <memory>
#include <random>

#include "sparse/index/file_index.h"
#include "tests/sparse/index_example.h"
#include "tests/support/memory_limit.h"

namespace espalier::sparse::fuzz_index_test {
namespace {

using ::testing::HasSubstr;

const Encoding& encoding_at(size_t which) { return *encodings()[which]; }

class Fuzzer {
 public:
  explicit Fuzzer(unsigned seed) : random_(seed) {}

  int64_t below(int64_t bound) {
    return static_cast<int64_t>(random_() % static_cast<uint64_t>(bound));
  }
  std::mt19937_64& random() { return random_; }

  /// True if the bytes were accepted; then the index must be consistent.
  bool try_bytes(const Encoding& encoding, int64_t size, int64_t kept,
                 const std::vector<uint8_t>& bytes) {
    const std::unique_ptr<uint8_t[]> exact(new uint8_t[bytes.size()]);
    std::copy(bytes.begin(), bytes.end(), exact.get());
    try {
      const std::span<const uint8_t> span(exact.get(), bytes.size());
      const Mask mask = mask_from_file(encoding, size, kept, span);
      if (encoding.coding == nullptr) {
        expect_sound(mask, size, kept, bytes);
      } else {
        expect_sound(Index::from_bytes(arena_, encoding, size, kept, span), mask, bytes);
      }
      return true;
    } catch (const Failure& failure) {
      EXPECT_NE(std::string(failure.what()).find("index"), std::string::npos) << failure.what();
      return false;
    }
  }

 private:
  /// With the rows and groups given in the bytes, the mask has no other code.
  void expect_sound(const Mask& mask, int64_t size, int64_t kept,
                    const std::vector<uint8_t>& bytes) {
    ASSERT_EQ(mask.kept(), kept);
    ASSERT_EQ(mask.size(), size);
    uint32_t cols = 0;
    std::memcpy(&cols, bytes.data(), sizeof(cols));
    IndexShape shape{.cols = cols, .n = 1, .m = bytes[4]};
    if (shape.m > 16 || (shape.m == 1) || (shape.m > 0 && size % cols != 0)) {
      return;  // readable, but the encoder takes no such groups
    }
    while (shape.n < shape.m && !Encoding::nm.rules->holds(mask, shape)) {
      ++shape.n;
    }
    const Index index(arena_, mask, Encoding::bitmap, shape);
    if (index.encoding() != Encoding::full && (shape.m == 0 || shape.n < shape.m)) {
      ASSERT_EQ(to_file(index, Encoding::entropy).bytes, bytes);
    }
  }
  void expect_sound(const Index& index, const Mask& mask, const std::vector<uint8_t>& bytes) {
    const auto positions = index.positions();
    ASSERT_EQ(static_cast<int64_t>(positions.size()), index.kept());
    int64_t last = -1;
    for (int32_t position : positions) {
      ASSERT_GT(position, last);
      last = position;
    }
    ASSERT_LT(last, index.size());
    ASSERT_EQ(mask.positions(), positions);
    if (index.encoding() != Encoding::full) {
      ASSERT_EQ(index.to_bytes(), bytes);
    }
    const int64_t middle = below(index.size() + 1);
    const auto expected = std::lower_bound(positions.begin(), positions.end(), middle);
    ASSERT_EQ(index.kept_before(middle), expected - positions.begin());
  }

  std::mt19937_64 random_;
  Arena arena_;
};

/// A shape that often divides `size`, as stored before the data of nm and block.
std::vector<uint8_t> random_header(const Encoding& encoding, int64_t size, Fuzzer& fuzz) {
  const auto small = [&](int64_t bound) { return static_cast<uint32_t>(fuzz.below(bound)); };
  const uint32_t cols = fuzz.below(4) == 0 ? small(50) : static_cast<uint32_t>(size);
  const std::array<uint32_t, 3> numbers{cols, small(5), small(encoding == Encoding::nm ? 9 : 20)};
  std::vector<uint8_t> bytes(sizeof(numbers));
  std::memcpy(bytes.data(), numbers.data(), sizeof(numbers));
  bytes.resize(encoding == Encoding::nm || encoding == Encoding::block ? 12
               : encoding == Encoding::entropy                         ? 5
                                                                       : 0);
  return bytes;
}

/// Random bytes after a valid header, often of a matching length.
std::vector<uint8_t> random_bytes(const Encoding& encoding, int64_t size, int64_t kept,
                                  Fuzzer& fuzz) {
  std::vector<uint8_t> bytes = random_header(encoding, size, fuzz);
  int64_t length = fuzz.below(64);
  if (fuzz.below(2) == 0) {
    length = encoding == Encoding::int32    ? 4 * kept
             : encoding == Encoding::bitmap ? (size + 63) / 64 * 8
                                            : 8 * fuzz.below(5);
  }
  const uint64_t keep_bits = fuzz.below(2) == 0 ? 0xff : fuzz.random()() & 0xff;
  const int64_t filled = fuzz.below(2) == 0 ? length : fuzz.below(3);  // the rest may be padding
  for (int64_t i = 0; i < length; ++i) {
    bytes.push_back(static_cast<uint8_t>(i < filled ? fuzz.random()() & keep_bits : 0));
  }
  return bytes;
}

TEST(FuzzIndex, RandomBytes) {
  Fuzzer fuzz(1);
  std::vector<int> accepted(encodings().size());
  for (int trial = 0; trial < 120'000; ++trial) {
    const auto which = static_cast<size_t>(fuzz.below(static_cast<int64_t>(accepted.size())));
    const int64_t size = fuzz.below(trial % 2 == 0 ? 40 : 3000);
    const int64_t kept = fuzz.below(trial % 3 == 0 ? 4 : size + 2);
    const auto bytes = random_bytes(encoding_at(which), size, kept, fuzz);
    accepted[which] += fuzz.try_bytes(encoding_at(which), size, kept, bytes) ? 1 : 0;
  }
  for (size_t which = 0; which < accepted.size(); ++which) {
    EXPECT_GT(accepted[which], 4) << encoding_at(which).name << ": too wild to test acceptance";
  }
}

std::vector<uint8_t> mutated(std::vector<uint8_t> bytes, Fuzzer& fuzz) {
  const int64_t length = static_cast<int64_t>(bytes.size());
  if (length == 0) {
    return {static_cast<uint8_t>(fuzz.below(256))};
  }
  const auto at = bytes.begin() + fuzz.below(length);
  switch (fuzz.below(6)) {
    case 0:
      *at = static_cast<uint8_t>(*at ^ (1U << fuzz.below(8)));
      break;
    case 1:
      *at = static_cast<uint8_t>(fuzz.below(256));
      break;
    case 2:
      bytes.erase(at, bytes.end());
      break;
    case 3:
      bytes.insert(at, static_cast<uint8_t>(fuzz.below(256)));
      break;
    case 4:
      bytes.erase(at);
      break;
    default:
      std::iter_swap(at, bytes.begin() + fuzz.below(length));
      break;
  }
  return bytes;
}

/// A mask that `encoding` can hold, and its bytes in a file.
Example random_example(const Encoding& encoding, Fuzzer& fuzz) {
  const auto seed = static_cast<unsigned>(fuzz.below(1 << 30));
  const double density = std::pow(10.0, -0.001 * static_cast<double>(fuzz.below(3000)));
  const int64_t rows = 1 + fuzz.below(50);
  IndexShape shape{.cols = 1 + fuzz.below(100)};
  if (encoding == Encoding::nm) {
    shape.n = static_cast<int>(1 + fuzz.below(3));
    shape.m = static_cast<int>(shape.n + 1 + fuzz.below(9));
    return {nm_mask(rows, shape, 1 - density, seed), encoding, shape};
  }
  if (encoding == Encoding::block) {
    shape.height = 1 + fuzz.below(20);
    shape.width = 1 + fuzz.below(20);
    return {block_mask(rows, shape, density, seed), encoding, shape};
  }
  return {random_mask(rows * shape.cols, density, seed), encoding, shape};
}

TEST(FuzzIndex, MutatedBytes) {
  Fuzzer fuzz(2);
  Arena arena;
  std::vector<int> refused(encodings().size());
  for (int trial = 0; trial < 16'000; ++trial) {
    const auto which =
        static_cast<size_t>(1 + fuzz.below(static_cast<int64_t>(refused.size()) - 1));
    const Example example = random_example(encoding_at(which), fuzz);
    const Encoding held = example.encoding.coding != nullptr ? example.encoding : Encoding::bitmap;
    const Index index(arena, example.mask, held, example.shape);
    auto [encoding, bytes] = to_file(index, example.encoding);
    ASSERT_TRUE(fuzz.try_bytes(encoding, index.size(), index.kept(), bytes));
    for (int64_t n = 1 + fuzz.below(3); n > 0; --n) {
      bytes = mutated(std::move(bytes), fuzz);
    }
    refused[which] += fuzz.try_bytes(encoding, index.size(), index.kept(), bytes) ? 0 : 1;
  }
  for (size_t which = 1; which < refused.size(); ++which) {
    EXPECT_GT(refused[which], 300) << encoding_at(which).name;
  }
}

/// Message of the Failure that refuses a file's index, or "accepted".
std::string message(const Encoding& encoding, int64_t size, int64_t kept,
                    std::vector<uint8_t> bytes) {
  try {
    mask_from_file(encoding, size, kept, bytes);
  } catch (const Failure& failure) {
    return failure.what();
  }
  return "accepted";
}

void expect(const std::string& text, const char* part) {
  EXPECT_NE(text.find(part), std::string::npos) << text;
}

TEST(FuzzIndex, HugeCountsWithFewBytesAllocateNothing) {
  Fuzzer fuzz(3);
  const std::vector<uint8_t> few(64, 1);
  fuzz.try_bytes(Encoding::bitmap, 9, 1, few);  // what a message needs exists now
  const MemoryLimit limit(size_t{1} << 20);
  if (MemoryLimit::kWorks) {
    EXPECT_THROW(std::vector<char>(size_t{1} << 26), std::bad_alloc);  // not from free memory
  }
  for (const Encoding* entry : encodings()) {
    const Encoding& encoding = *entry;
    for (int64_t size : {kMaxElements, kMaxElements + 1, int64_t{1} << 62, int64_t{-1}}) {
      for (int64_t kept : {int64_t{-1}, int64_t{0}, int64_t{3}, kMaxElements, kMaxElements + 1}) {
        const bool accepted = fuzz.try_bytes(encoding, size, kept, few);
        EXPECT_FALSE(accepted) << encoding.name << " " << size << " " << kept;
      }
    }
  }
}

/// Rows of the entropy code that are longer than those that the encoder writes: their counters
/// would take 8 bytes an element.
TEST(FuzzIndex, LongRowsOfTheEntropyCodeAllocateNothing) {
  const MemoryLimit limit(size_t{16} << 20);  // of the bitmap of 2^26 elements: 8 MB
  std::vector<uint8_t> bytes(5 + 16);
  for (const uint32_t cols : {uint32_t{1} << 25, uint32_t{1} << 26, ~uint32_t{0}}) {
    std::memcpy(bytes.data(), &cols, sizeof(cols));
    EXPECT_THAT(message(Encoding::entropy, int64_t{1} << 26, 0, bytes), HasSubstr("rows of"));
  }
}

TEST(FuzzIndex, EachFaultIsNamed) {
  expect(message(Encoding::int32, 9, 2, {1, 0, 0, 0}), "need 8 bytes");
  expect(message(Encoding::int32, 9, 2, {3, 0, 0, 0, 3, 0, 0, 0}), "must lie above 3");
  expect(message(Encoding::int32, 9, 1, {9, 0, 0, 0}), "below 9");
  expect(message(Encoding::int32, 9, 1, {0, 0, 0, 0x80}), "must lie above -1");
  expect(message(Encoding::bitmap, 9, 1, {1, 0}), "need 8 bytes");
  expect(message(Encoding::bitmap, 9, 2, {1, 0, 0, 0, 0, 0, 0, 0}), "1 bits are set");
  expect(message(Encoding::bitmap, 9, 1, {0, 2, 0, 0, 0, 0, 0, 0}), "beyond bit 8");
  expect(message(Encoding::full, 9, 8, {}), "8 of 9");
  expect(message(Encoding::full, 9, 9, {0}), "1 bytes where there should be none");
}

TEST(FuzzIndex, EachFaultOfSplitNumbersIsNamed) {
  // 2 of 9 elements: two low bits each in one word, unary parts in another.
  const auto split = [](uint8_t lows, uint8_t highs, size_t length) {
    std::vector<uint8_t> bytes(16);
    bytes[0] = lows;
    bytes[8] = highs;
    bytes.resize(length);
    return bytes;
  };
  expect(message(Encoding::golomb, 9, 2, split(0, 3, 8)), "there should be 16 to 16");
  expect(message(Encoding::golomb, 9, 2, split(0, 1, 16)), "1 unary parts for 2");
  expect(message(Encoding::golomb, 9, 2, split(0x80, 3, 16)),
         "low parts: a bit is set beyond bit 3");
  expect(message(Encoding::golomb, 9, 2, split(0, 0x81, 16)), "beyond the size 9");
  expect(message(Encoding::golomb, 9, 2, split(0, 3, 16)), "accepted");
}

TEST(FuzzIndex, EachFaultOfAShapeIsNamed) {
  const auto shaped = [](const std::array<uint32_t, 3>& header, uint8_t data, size_t length) {
    std::vector<uint8_t> bytes(sizeof(header));
    std::memcpy(bytes.data(), header.data(), sizeof(header));
    bytes.push_back(data);
    bytes.resize(sizeof(header) + length);
    return bytes;
  };
  expect(message(Encoding::nm, 8, 2, {1, 0, 0}), "too few for its shape");
  expect(message(Encoding::nm, 8, 2, shaped({3, 2, 4}, 0x14, 8)), "no rows of 3");
  expect(message(Encoding::nm, 8, 2, shaped({8, 5, 4}, 0x14, 8)), "n lies in 1 to m");
  expect(message(Encoding::nm, 8, 2, shaped({8, 2, 0xffffffff}, 0x14, 8)), "too large");
  expect(message(Encoding::nm, 8, 2, shaped({8, 2, 4}, 0x14, 7)), "need 8 bytes");
  expect(message(Encoding::nm, 8, 2, shaped({8, 2, 4}, 0x04, 8)), "3 elements are listed");
  expect(message(Encoding::nm, 8, 2, shaped({8, 2, 4}, 0x64, 8)), "group 1 is no list");
  expect(message(Encoding::nm, 8, 2, shaped({8, 2, 4}, 0x14, 8)), "accepted");
  expect(message(Encoding::block, 8, 4, shaped({4, 0, 2}, 1, 8)), "both lie in 1");
  expect(message(Encoding::block, 8, 4, shaped({4, 2, 2}, 1, 9)), "need 8 bytes");
  expect(message(Encoding::block, 8, 4, shaped({4, 2, 2}, 4, 8)), "beyond bit 1");
  expect(message(Encoding::block, 8, 3, shaped({4, 2, 2}, 1, 8)), "blocks of 4 elements");
  expect(message(Encoding::block, 8, 4, shaped({4, 2, 2}, 1, 8)), "accepted");
}

TEST(FuzzIndex, EachFaultOfTheEntropyCodeIsNamed) {
  Arena arena;
  const Mask mask = random_mask(2000, 0.3, 9);
  const Index index(arena, mask, Encoding::golomb, {.cols = 100});
  const std::vector<uint8_t> good = to_file(index, Encoding::entropy).bytes;
  const auto refused = [&](const std::vector<uint8_t>& bytes, int64_t off = 0) {
    return message(Encoding::entropy, mask.size(), mask.kept() + off, bytes);
  };
  expect(refused(good), "accepted");
  expect(refused({}), "too few for its header");
  std::vector<uint8_t> bytes = good;
  bytes[0] = 0;
  expect(refused(bytes), "rows of 0");
  bytes = good;
  bytes.push_back(0);
  expect(refused(bytes), "bytes, the code has");
  bytes.resize(good.size() / 2);
  expect(refused(bytes), "end too early");
  expect(message(Encoding::entropy, kMaxElements, 3, good), "too few for");
  // Another mask's code: as many bits, but the last bytes give another end, or the count is wrong.
  const Index other(arena, random_mask(2000, 0.3, 10), Encoding::golomb, {.cols = 100});
  ASSERT_NE(other.kept(), index.kept());
  EXPECT_NE(refused(to_file(other, Encoding::entropy).bytes), "accepted");
}

}  // namespace
}  // namespace espalier::sparse::fuzz_index_test
