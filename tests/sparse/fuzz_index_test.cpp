// Faults of an index in a file: each is named, and none allocates memory for numbers that the bytes
// cannot hold. tests/fuzz/index_target.cpp reads any bytes.
#include <array>
#include <cstring>

#include "sparse/index/file_index.h"
#include "tests/sparse/index_example.h"
#include "tests/support/matchers.h"
#include "tests/support/memory_limit.h"

namespace espalier::sparse::fuzz_index_test {
namespace {

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

void expect(const std::string& text, const char* part) { EXPECT_THAT(text, HasSubstr(part)); }

TEST(FuzzIndex, HugeCountsWithFewBytesAllocateNothing) {
  const std::vector<uint8_t> few(64, 1);
  message(Encoding::bitmap, 9, 1, few);  // the first message allocates what all share
  const MemoryLimit limit(size_t{1} << 20);
  if (MemoryLimit::kWorks) {
    EXPECT_THROW(std::vector<char>(size_t{1} << 26), std::bad_alloc);  // not from free memory
  }
  for (const Encoding* entry : encodings()) {
    const Encoding& encoding = *entry;
    for (int64_t size : {kMaxElements, kMaxElements + 1, int64_t{1} << 62, int64_t{-1}}) {
      for (int64_t kept : {int64_t{-1}, int64_t{0}, int64_t{3}, kMaxElements, kMaxElements + 1}) {
        EXPECT_THAT(message(encoding, size, kept, few), HasSubstr("index"))
            << encoding.name << " " << size << " " << kept;
      }
    }
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

}  // namespace
}  // namespace espalier::sparse::fuzz_index_test
