#pragma once
// A masked array: the mask and the kept values, read as dense elements from any place.
#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "sparse/index/mask.h"
#include "src/core/tensor.h"

namespace espalier::hub {

/// Copies elements between arrays of fp32, bf16 and fp16, rounding to nearest. Equal types: the
/// bits.
void convert_elements(const Tensor& from, const Tensor& to);
/// Throws Failure that names the array if rounding made a value of it infinite, or one was before.
/// `advice`: what to do about it; empty: choose --dtype.
void check_rounded(const Tensor& values, const std::string& name, std::string_view advice = {});

class MaskedArray {
 public:
  /// `values`: the kept elements in their order.
  MaskedArray(sparse::Mask mask, std::vector<std::byte> values, DType dtype);

  const sparse::Mask& mask() const { return mask_; }
  DType dtype() const { return dtype_; }
  bool kept(int64_t i) const { return mask_[i]; }
  /// Elements [first, first + out.count()), zero where pruned, as the type of `out`. `kept`: empty,
  /// or 1 for each kept element, else 0. About 1 ns an element.
  void read(int64_t first, const Tensor& out, std::span<uint8_t> kept) const;

 private:
  int64_t kept_before(int64_t position) const;

  sparse::Mask mask_;
  std::vector<std::byte> values_;
  DType dtype_;
  std::vector<int64_t> counts_;  ///< kept elements before every 512th
};

/// Collects a masked array, element by element in order.
class MaskedArrayBuilder {
 public:
  /// Memory for all `size` elements is taken as they come.
  MaskedArrayBuilder(int64_t size, DType dtype);

  /// The next elements. Those with `kept` = 0 are left out; empty `kept`: those that are zero.
  void add(const Tensor& values, std::span<const uint8_t> kept);

  int64_t kept() const { return kept_; }
  /// Kept elements, as bytes.
  std::span<const std::byte> values() const;
  const std::vector<uint64_t>& words() const { return words_; }
  sparse::Mask mask() const { return sparse::Mask::from_words(size_, words_); }

 private:
  int64_t size_;
  DType dtype_;
  int64_t next_ = 0;
  int64_t kept_ = 0;
  std::vector<uint64_t> words_;
  std::vector<std::byte> values_;
};

}  // namespace espalier::hub
