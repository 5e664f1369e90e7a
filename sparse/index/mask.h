#pragma once
// A mask: which elements of one parameter are kept, one bit each, row-major over the flattened
// shape. Pruning methods produce masks, and all ranks must agree on them; an Index
// (index.h) is the encoding of one mask that compute and storage use.
#include <bit>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

namespace espalier::sparse {

/// Largest parameter, in elements, whose positions fit int32.
inline constexpr int64_t kMaxElements = 0x7fffffff;
/// Largest that dry runs and plans count, without positions.
inline constexpr int64_t kMaxPlannedElements = int64_t{1} << 40;

/// Throws Failure, with the fix, if parameter `name` has more than kMaxElements. Only plans accept
/// such parameters.
void check_size(std::string_view name, int64_t elements);

class Mask {
 public:
  Mask() = default;
  /// `size` elements, all kept or all pruned.
  /// Throws Failure above kMaxElements: positions are 32-bit.
  explicit Mask(int64_t size, bool kept = true);
  /// From the form of `words()`; throws Bug when the number of words or a bit beyond `size` is
  /// wrong.
  static Mask from_words(int64_t size, std::span<const uint64_t> words);

  int64_t size() const { return size_; }
  int64_t kept() const;  ///< number of ones; counts words each time
  double density() const;
  bool operator[](int64_t i) const {
    return ((words_[static_cast<size_t>(i) / 64] >> (static_cast<size_t>(i) % 64)) & 1U) != 0;
  }
  void set(int64_t i, bool kept);
  /// Bits in words, little end first; bits beyond `size` are zero.
  std::span<const uint64_t> words() const { return words_; }
  std::vector<int32_t> positions() const;

  /// 64-bit digest of size and bits (xxHash): equal masks have equal digests.
  uint64_t digest() const;
  bool operator==(const Mask&) const = default;

 private:
  int64_t size_ = 0;
  std::vector<uint64_t> words_;
};

/// Calls fn(position) for each one of `words`, ascending. `fn` may clear the bit that it is called
/// for.
template <class Fn>
void for_each_one(std::span<const uint64_t> words, Fn&& fn) {
  int64_t base = 0;
  for (uint64_t word : words) {
    if (word == ~uint64_t{0}) {
      for (int64_t bit = 0; bit < 64; ++bit) {
        fn(base + bit);
      }
    } else {
      for (; word != 0; word &= word - 1) {
        fn(base + std::countr_zero(word));
      }
    }
    base += 64;
  }
}

/// Ones in `words`.
int64_t count_ones(std::span<const uint64_t> words);

}  // namespace espalier::sparse
