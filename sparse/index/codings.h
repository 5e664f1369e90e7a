#pragma once
// The encodings under Index (index.h), each a named table of functions over plain arrays, one
// source file each (index_NAME.cpp); private to this layer.
//
// `data` is what goes into a file, 8-aligned in memory; `ranks` are 32-bit numbers beside it, built
// from it, that let reading start anywhere. `check` takes data from
// anywhere (unaligned too) and throws Failure; all other functions trust what was written here or
// has been checked. Words and numbers are little end first.
#include <cstdint>
#include <span>
#include <string_view>

#include "sparse/index/index.h"
#include "sparse/index/mask.h"

namespace espalier::sparse {

/// One coded mask.
struct Coded {
  int64_t size = 0;
  int64_t kept = 0;
  IndexShape shape;
  std::span<const uint8_t> data;
  std::span<const uint32_t> ranks;

  std::span<const uint64_t> words() const {
    return {reinterpret_cast<const uint64_t*>(data.data()), data.size() / sizeof(uint64_t)};
  }
};

/// What an encoding is asked before a mask is coded.
struct Counts {
  int64_t size = 0;
  int64_t kept = 0;
  IndexShape shape;
};

struct Coding {
  /// Bytes of `data`: of this mask, and expected for a random one with as many elements kept.
  size_t (*exact_bytes)(const Mask& mask, const Counts& counts);
  double (*expected_bytes)(const Counts& counts);
  int64_t (*rank_count)(const Counts& counts);
  /// `data` is zeroed and has exact_bytes.
  void (*encode)(const Mask& mask, const Counts& counts, std::span<uint8_t> data);
  /// Throws Failure unless `coded.data` is the one form of a mask of that size and count.
  void (*check)(const Coded& coded);
  void (*build_ranks)(const Coded& coded, std::span<uint32_t> ranks);
  /// Positions of kept elements [first, first + out.size()); all of them exist.
  void (*decode)(const Coded& coded, int64_t first, std::span<int32_t> out);
  /// Kept elements at positions below `dense`, which lies in [0, size]; kept > 0.
  int64_t (*kept_before)(const Coded& coded, int64_t dense);
};

/// Bug for `full` and for `entropy`, which no Index holds.
const Coding& coding_of(Encoding encoding);
extern const Coding kInt32Coding, kDeltaCoding, kBitmapCoding, kGolombCoding, kEliasFanoCoding,
    kNmCoding, kBlockCoding;

/// Elements decoded at once; restart points stand as often.
inline constexpr int64_t kRestartEvery = 1024;
int64_t restart_count(int64_t kept);
/// Fills `out` with the first elements from restart point j on; at most kRestartEvery of them.
using DecodeFrom = void (*)(const Coded& coded, int64_t j, std::span<int32_t> out);
/// Coding::decode and kept_before where `decode_from` reads; all kept elements before restart point
/// j lie below `dense`, and those from j + 1 on do not.
void decode_by_restarts(const Coded& coded, DecodeFrom decode_from, int64_t first,
                        std::span<int32_t> out);
int64_t kept_before_from(const Coded& coded, DecodeFrom decode_from, int64_t j, int64_t dense);

/// Part of a bitmap; `ranks` for its words, or empty.
struct Words {
  std::span<uint64_t> words;
  std::span<uint32_t> ranks;
};
/// Word `first` and those behind it of the bitmap that `coded` stands for; with ranks, `first` is a
/// multiple of kWordsPerRank. Different parts may be made by different threads.
void decode_words(const Coding& coding, const Coded& coded, int64_t first, const Words& out);

/// Throws Failure unless 0 <= kept <= size <= kMaxElements.
void check_counts(int64_t size, int64_t kept);
/// Throw Failure when that encoding is asked for with a shape that cannot be, naming the fix.
void check_nm_shape(int64_t size, const IndexShape& shape);
void check_block_shape(int64_t size, const IndexShape& shape);
/// Whether `mask` is N:M with the numbers of `shape`; false when they are not known or cannot be.
bool is_nm(const Mask& mask, const IndexShape& shape);
/// Whether `mask` consists of the blocks of `shape`; false likewise.
bool is_block(const Mask& mask, const IndexShape& shape);
/// Whether `shape` has groups, or blocks, that masks of this size can be coded by.
bool has_groups(int64_t size, const IndexShape& shape);
bool has_blocks(int64_t size, const IndexShape& shape);

// Bit i % 64 of word i / 64 says that element i is kept; ranks[j] = kept ones before word 8 j.
namespace bitmap_coding {
inline constexpr int64_t kWordsPerRank = 8;
int64_t word_count(int64_t size);
int64_t rank_count(int64_t size);
void build_ranks(std::span<const uint64_t> words, std::span<uint32_t> ranks);
/// Positions of the ones [first, first + out.size()); all of them must exist.
void decode(std::span<const uint64_t> words, std::span<const uint32_t> ranks, int64_t first,
            std::span<int32_t> out);
}  // namespace bitmap_coding

// The entropy code of files.
namespace entropy_coding {
std::vector<uint8_t> encode(const Mask& mask, const IndexShape& shape);
/// Throws Failure unless `bytes` is the one form of a mask that keeps `kept` of `size` elements.
Mask decode(int64_t size, int64_t kept, std::span<const uint8_t> bytes);
}  // namespace entropy_coding

}  // namespace espalier::sparse
