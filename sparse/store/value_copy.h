#pragma once
// A copy of the data that compute reads of adjacent parameters of a store: values, and the exact
// vectors of 16-bit runs. For computations that must go on with old weights while the store gets
// new ones, and for weights that are replaced for a while. Resident dense copies (storage dense)
// are not copied: they are refreshed when the values come back. Bytes: those of the kept values,
// and 4 per element of exact vectors.
#include "sparse/store/store.h"

namespace espalier::sparse {

/// Elements [first, end) of the flat arrays, padding included.
Range flat_range(const Store& store, const ParameterRange& range);
/// Where its parameters end, from its begin on, ascending.
std::vector<int64_t> flat_ends(const Store& store, const ParameterRange& range);

class ValueCopy {
 public:
  ValueCopy() = default;
  /// For the present masks of `range`; empty until `save_from`.
  ValueCopy(Store& store, const ParameterRange& range, std::string_view name);

  /// From the store.
  void save_from(Stream& stream, const kernels::Kernels& kernels, const Store& store);
  /// To the store, dense copies included. With split master copies, restore before the next update:
  /// `low` fits only the values that were saved with it.
  void restore_to(Stream& stream, const kernels::Kernels& kernels, Store& store) const;

  /// Of a parameter in the range: its values here.
  Tensor part(const Parameter& parameter) const;
  /// Whether masks are still those of the construction, by their sizes.
  bool fits(const Store& store) const;
  size_t bytes() const { return value_.bytes() + exact_.bytes(); }

 private:
  template <class Each>
  void each_exact(const Store& store, const Each& each) const;

  ParameterRange range_;
  Range flat_;
  Buffer value_, exact_;
};

}  // namespace espalier::sparse
