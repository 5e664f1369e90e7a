// Any bytes give a correct index or a Failure: never a crash, a Bug, or a read out of bounds (the
// last is for the address sanitizer, hence the exact-size copies on the heap).
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <random>

#include "sparse/index.h"
#include "src/core/error.h"

namespace espalier::sparse {
namespace {

constexpr Encoding kEncodings[] = {Encoding::full, Encoding::int32, Encoding::delta,
                                   Encoding::bitmap};

class Fuzzer {
 public:
  explicit Fuzzer(unsigned seed) : random_(seed) {}

  int64_t below(int64_t bound) {
    return static_cast<int64_t>(random_() % static_cast<uint64_t>(bound));
  }
  std::mt19937_64& random() { return random_; }

  /// True when the bytes were accepted; then everything about the index must hold together.
  bool try_bytes(Encoding encoding, int64_t size, int64_t kept, const std::vector<uint8_t>& bytes) {
    const std::unique_ptr<uint8_t[]> exact(new uint8_t[bytes.size()]);
    std::copy(bytes.begin(), bytes.end(), exact.get());
    try {
      const Index index =
          Index::from_bytes(arena_, encoding, size, kept, {exact.get(), bytes.size()});
      expect_sound(index, kept, bytes);
      return true;
    } catch (const Failure& failure) {
      EXPECT_NE(std::string(failure.what()).find("index"), std::string::npos) << failure.what();
      return false;
    }
  }

 private:
  void expect_sound(const Index& index, int64_t kept, const std::vector<uint8_t>& bytes) {
    const auto positions = index.positions();
    ASSERT_EQ(static_cast<int64_t>(positions.size()), kept);
    int64_t last = -1;
    for (int32_t position : positions) {
      ASSERT_GT(position, last);
      last = position;
    }
    ASSERT_LT(last, index.size());
    ASSERT_EQ(index.mask().kept(), kept);
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

TEST(FuzzIndex, RandomBytes) {
  Fuzzer fuzz(1);
  int accepted = 0;
  for (int trial = 0; trial < 40'000; ++trial) {
    const Encoding encoding = kEncodings[fuzz.below(4)];
    const int64_t size = fuzz.below(trial % 2 == 0 ? 40 : 3000);
    const int64_t kept = fuzz.below(size + 2);
    int64_t length = fuzz.below(64);
    if (fuzz.below(2) == 0) {
      length = encoding == Encoding::int32    ? 4 * kept
               : encoding == Encoding::bitmap ? (size + 63) / 64 * 8
                                              : kept;
    }
    const uint64_t keep_bits = fuzz.below(2) == 0 ? 0xff : fuzz.random()() & 0xff;
    std::vector<uint8_t> bytes(static_cast<size_t>(length));
    for (uint8_t& byte : bytes) {
      byte = static_cast<uint8_t>(fuzz.random()() & keep_bits);
    }
    accepted += fuzz.try_bytes(encoding, size, kept, bytes) ? 1 : 0;
  }
  EXPECT_GT(accepted, 100) << "the inputs are too wild to test what is accepted";
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

TEST(FuzzIndex, MutatedBytes) {
  Fuzzer fuzz(2);
  Arena arena;
  int refused = 0;
  for (int trial = 0; trial < 6'000; ++trial) {
    const int64_t size = 1 + fuzz.below(5000);
    Mask mask(size, false);
    std::bernoulli_distribution draw(
        std::pow(10.0, -0.001 * static_cast<double>(fuzz.below(3000))));
    for (int64_t i = 0; i < size; ++i) {
      mask.set(i, draw(fuzz.random()));
    }
    const Index index(arena, mask, kEncodings[1 + fuzz.below(3)]);
    auto bytes = index.to_bytes();
    for (int64_t n = 1 + fuzz.below(3); n > 0; --n) {
      bytes = mutated(std::move(bytes), fuzz);
    }
    refused += fuzz.try_bytes(index.encoding(), size, mask.kept(), bytes) ? 0 : 1;
  }
  EXPECT_GT(refused, 2000);
}

TEST(FuzzIndex, HugeCountsWithFewBytesAllocateNothing) {
  Fuzzer fuzz(3);
  const std::vector<uint8_t> few(64, 1);
  for (Encoding encoding : kEncodings) {
    for (int64_t size : {kMaxElements, kMaxElements + 1, int64_t{1} << 62, int64_t{-1}}) {
      for (int64_t kept : {int64_t{-1}, int64_t{0}, int64_t{3}, kMaxElements, kMaxElements + 1}) {
        const bool accepted = fuzz.try_bytes(encoding, size, kept, few);
        EXPECT_FALSE(accepted) << name_of(encoding) << " " << size << " " << kept;
      }
    }
  }
  EXPECT_FALSE(fuzz.try_bytes(static_cast<Encoding>(9), 10, 1, few));
}

TEST(FuzzIndex, EachFaultIsNamed) {
  Arena arena;
  auto message = [&arena](Encoding encoding, int64_t size, int64_t kept,
                          std::vector<uint8_t> bytes) {
    try {
      Index::from_bytes(arena, encoding, size, kept, bytes);
    } catch (const Failure& failure) {
      return std::string(failure.what());
    }
    return std::string("accepted");
  };
  auto expect = [&](const std::string& text, const char* part) {
    EXPECT_NE(text.find(part), std::string::npos) << text;
  };
  expect(message(Encoding::int32, 9, 2, {1, 0, 0, 0}), "need 8 bytes");
  expect(message(Encoding::int32, 9, 2, {3, 0, 0, 0, 3, 0, 0, 0}), "must lie above 3");
  expect(message(Encoding::int32, 9, 1, {9, 0, 0, 0}), "below 9");
  expect(message(Encoding::int32, 9, 1, {0, 0, 0, 0x80}), "must lie above -1");
  expect(message(Encoding::bitmap, 9, 1, {1, 0}), "need 8 bytes");
  expect(message(Encoding::bitmap, 9, 2, {1, 0, 0, 0, 0, 0, 0, 0}), "1 bits are set");
  expect(message(Encoding::bitmap, 9, 1, {0, 2, 0, 0, 0, 0, 0, 0}), "beyond element 8");
  expect(message(Encoding::delta, 9, 2, {1}), "end within kept element 1");
  expect(message(Encoding::delta, 9, 2, {1, 0x81}), "end within kept element 1");
  expect(message(Encoding::delta, 9, 2, {1, 7}), "beyond the size 9");
  expect(message(Encoding::delta, 9, 2, {1, 1, 1}), "1 bytes follow");
  expect(message(Encoding::delta, 9, 1, {0x81, 0}), "needless zero byte");
  expect(message(Encoding::delta, kMaxElements, 1, {0x80, 0x80, 0x80, 0x80, 0x80, 1}),
         "more than 5");
  expect(message(Encoding::delta, kMaxElements, 1, {0xff, 0xff, 0xff, 0xff, 0x7f}),
         "beyond the size");
  expect(message(Encoding::full, 9, 8, {}), "8 of 9");
  expect(message(Encoding::full, 9, 9, {0}), "1 bytes where none belong");
  // The largest gap of all, in the largest parameter.
  expect(message(Encoding::delta, kMaxElements, 1, {0xfe, 0xff, 0xff, 0xff, 0x07}), "accepted");
  expect(message(Encoding::delta, kMaxElements, 1, {0xff, 0xff, 0xff, 0xff, 0x07}),
         "beyond the size");
}

}  // namespace
}  // namespace espalier::sparse
