#pragma once
// An index encoding: how the positions of the kept elements of one parameter become bytes. Each is
// a table of functions over plain arrays in a file of its own; Encoding::kAll lists them, Index
// (index.h) holds coded masks in memory.
//
// `data` is what goes into a file, 8-aligned in memory; `prefix_counts` are 32-bit numbers beside
// it, built from it, so that reading can start anywhere: mostly the kept elements before a place.
// `check` takes data from anywhere (unaligned too) and throws Failure; the other functions trust
// data that was written here or has been checked. Words and numbers are little-endian.
#include <array>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "sparse/index/mask.h"
#include "src/core/registry.h"

namespace espalier::sparse {

/// Facts about a parameter besides its mask; zero: not known. `nm` needs cols, n and m;
/// `block` needs cols, height and width; the others need nothing.
struct IndexShape {
  int64_t cols = 0;    ///< elements of a row; divides the size
  int64_t height = 0;  ///< of blocks, which start at row and column 0 and are cut at the edges
  int64_t width = 0;
  int n = 0;  ///< at most n of every m consecutive elements of a row, as pruning method nm keeps
  int m = 0;
  bool operator==(const IndexShape&) const = default;
};

/// A mask before it is coded.
struct Counts {
  int64_t size = 0;
  int64_t kept = 0;
  IndexShape shape;
};

/// A coded mask.
struct Coded {
  int64_t size = 0;
  int64_t kept = 0;
  IndexShape shape;
  std::span<const uint8_t> data;
  std::span<const uint32_t> prefix_counts;

  std::span<const uint64_t> words() const {
    return {reinterpret_cast<const uint64_t*>(data.data()), data.size() / sizeof(uint64_t)};
  }
};

/// The form of an index that kernels read (kernels::Positions).
enum class KernelForm : uint8_t {
  none,     ///< nothing: every element is kept
  list,     ///< the data as they are: ascending positions
  bitmap,   ///< the data and prefix counts as they are
  decoded,  ///< a bitmap with its prefix counts, decoded into scratch
};

/// Whether an encoding can hold masks of some regular form, and its header in files: three numbers
/// before the data. Encodings without one hold any mask and have no header.
struct ShapeRules {
  using Header = std::array<uint32_t, 3>;
  /// Whether masks of this size can be coded with `shape` at all.
  bool (*possible)(int64_t size, const IndexShape& shape);
  /// possible(), and this mask has that form.
  bool (*holds)(const Mask& mask, const IndexShape& shape);
  /// Throws Failure unless possible, naming the fix.
  void (*check)(int64_t size, const IndexShape& shape);
  Header (*header)(const IndexShape& shape);
  IndexShape (*shape)(const Header& header);
};

/// An encoding in memory.
struct Coding {
  /// Bytes of `data`: of this mask, and expected for a random one with as many elements kept (null:
  /// exact_bytes, which then reads no mask).
  size_t (*exact_bytes)(const Mask& mask, const Counts& counts);
  double (*expected_bytes)(const Counts& counts) = nullptr;
  int64_t (*prefix_counts_size)(const Counts& counts) = [](const Counts&) -> int64_t { return 0; };
  /// `data` is zeroed and has exact_bytes.
  void (*encode)(const Mask& mask, const Counts& counts, std::span<uint8_t> data);
  /// Throws Failure unless `coded.data` is the one form of a mask of that size and count.
  void (*check)(const Coded& coded);
  void (*build_prefix_counts)(const Coded& coded, std::span<uint32_t> prefix_counts) =
      [](const Coded&, std::span<uint32_t>) {};
  /// `check`, and the mask, in one pass over the data; null: an Index decodes it.
  Mask (*checked_mask)(const Coded& coded) = nullptr;
  /// Positions of kept elements [first, first + out.size()); all of them exist.
  void (*decode)(const Coded& coded, int64_t first, std::span<int32_t> out);
  /// Kept elements at positions below `dense`, which lies in [0, size]; kept > 0.
  int64_t (*kept_before)(const Coded& coded, int64_t dense);
};

/// A member of the registry; two are equal when their names are.
struct Encoding {
  std::string_view name;
  std::string_view help;
  const Coding* coding = nullptr;
  KernelForm kernel_form = KernelForm::decoded;
  const ShapeRules* rules = nullptr;  ///< null: holds any mask

  bool operator==(const Encoding& other) const { return name == other.name; }

  ESPALIER_CLASS_REGISTRY(kAll, Encoding, full, int32, bitmap, golomb, nm, block);
};

/// Elements decoded at once; encodings that restart do so as often.
inline constexpr int64_t kDecodeChunk = 1024;

/// Part of a bitmap; `prefix_counts` for its words, or empty.
struct Words {
  std::span<uint64_t> words;
  std::span<uint32_t> prefix_counts;
};
/// Word `first` and those behind it of the bitmap that `coded` stands for; with prefix counts,
/// `first` is a multiple of kWordsPerCount. Threads may make different parts at the same time.
void decode_words(const Coding& coding, const Coded& coded, int64_t first, const Words& out);

/// Throws Failure unless 0 <= kept <= size <= kMaxElements.
void check_counts(int64_t size, int64_t kept);
/// The same, up to kMaxPlannedElements.
void check_planned_counts(int64_t size, int64_t kept);

/// Throws Failure, which begins with `what`, unless `data` is the words of `bits` bits and no bit
/// beyond them is set.
void check_words(std::string_view what, std::span<const uint8_t> data, int64_t bits);

// Bit i % 64 of word i / 64 says that element i is kept; prefix_counts[j] = kept elements before
// word 8 j.
namespace bitmap_coding {
inline constexpr int64_t kWordsPerCount = 8;
int64_t word_count(int64_t size);
int64_t prefix_counts_size(int64_t size);
void build_prefix_counts(std::span<const uint64_t> words, std::span<uint32_t> prefix_counts);
/// Positions of the ones [first, first + out.size()); all of them must exist.
void decode(std::span<const uint64_t> words, std::span<const uint32_t> prefix_counts, int64_t first,
            std::span<int32_t> out);
}  // namespace bitmap_coding

}  // namespace espalier::sparse
