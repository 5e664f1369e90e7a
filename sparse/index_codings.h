#pragma once
// The three encodings under Index (index.h), as functions over plain arrays; private to this layer.
//
// Each `check_*` takes bytes from anywhere and throws Failure; every other function trusts its
// input, which was written here or has been checked. Words and numbers are little end first.
#include <bit>
#include <cstdint>
#include <span>

#include "sparse/index.h"
#include "sparse/mask.h"

namespace espalier::sparse {

static_assert(std::endian::native == std::endian::little,
              "files and the delta decoder read words little end first");

/// Throws Failure unless 0 <= kept <= size <= kMaxElements.
void check_counts(int64_t size, int64_t kept);
/// Bytes of positions, varints (expected) or words.
size_t predicted_data_bytes(Encoding encoding, int64_t size, int64_t kept);
/// 32-bit numbers in the ranks or restart points that stand beside them.
int64_t rank_words(Encoding encoding, int64_t size, int64_t kept);

namespace int32_coding {
void encode(const Mask& mask, std::span<int32_t> out);
/// Throws Failure unless `bytes` holds `kept` ascending positions within [0, size).
void check_bytes(std::span<const uint8_t> bytes, int64_t size, int64_t kept);
int64_t kept_before(std::span<const int32_t> positions, int64_t dense);
}  // namespace int32_coding

// Bit i % 64 of word i / 64 says that element i is kept; ranks[j] = kept ones before word 8 j.
namespace bitmap_coding {
inline constexpr int64_t kWordsPerRank = 8;
int64_t word_count(int64_t size);
int64_t rank_count(int64_t size);
/// Throws Failure unless `bytes` holds the words of `size` bits, `kept` of them ones.
void check_bytes(std::span<const uint8_t> bytes, int64_t size, int64_t kept);
void build_ranks(std::span<const uint64_t> words, std::span<uint32_t> ranks);
/// Positions of the ones [first, first + out.size()); all of them must exist.
void decode(std::span<const uint64_t> words, std::span<const uint32_t> ranks, int64_t first,
            std::span<int32_t> out);
int64_t kept_before(std::span<const uint64_t> words, std::span<const uint32_t> ranks,
                    int64_t dense);
}  // namespace bitmap_coding

// Each kept element is the number of pruned ones between it and the kept one before, as an LEB128
// varint: seven bits a byte, low ones first, the high bit set in all bytes but the last, no
// needless zero byte.
namespace delta_coding {
inline constexpr int64_t kRestartEvery = 1024;

/// Where decoding can start: kept element kRestartEvery * j has its varint at `offset` and lies at
/// `base` + gap.
struct Restart {
  uint32_t base;
  uint32_t offset;
};

/// One coded parameter.
struct View {
  std::span<const uint8_t> bytes;
  std::span<const Restart> restarts;
  int64_t kept = 0;
};

int64_t restart_count(int64_t kept);
size_t encoded_bytes(const Mask& mask);
void encode(const Mask& mask, std::span<uint8_t> bytes, std::span<Restart> restarts);
/// Throws Failure unless `bytes` codes `kept` elements within [0, size) in the one form described
/// above.
void check_bytes(std::span<const uint8_t> bytes, int64_t size, int64_t kept);
void build_restarts(std::span<const uint8_t> bytes, int64_t kept, std::span<Restart> restarts);
void decode(const View& view, int64_t first, std::span<int32_t> out);
int64_t kept_before(const View& view, int64_t dense);
}  // namespace delta_coding

}  // namespace espalier::sparse
