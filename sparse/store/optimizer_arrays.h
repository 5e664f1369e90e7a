#pragma once
// The optimizer's own state: `low` (the lower half of master copies, where those are split),
// `master` (whole fp32 master copies, where they are separate from values), the moments, and the
// fp32 arrays of pruning methods that learn from every step; for the owned part of each parameter.
// Moments are fp32, or 8-bit codes with one fp32 scale for
// kernels::kQuantizeBlock elements; those of parameters with fewer than kSmall kept elements stay
// fp32. Parameters are numbered in forward order.
//
// With a device, `master` is in pinned memory of the host as long as the host encodes it; with
// `offload` all arrays are, and the kernels of the device read and write them over its bus.
#include <array>
#include <functional>
#include <memory>
#include <vector>

#include "sparse/store/sharding.h"
#include "src/core/arena.h"
#include "src/kernels/kernels.h"

namespace espalier::sparse {

/// The form of a parameter's master copy.
enum class MasterCopy : uint8_t {
  same_as_value,  ///< the values that compute reads are the master copy
  split,          ///< those values and `low`, the 16 bits that rounding removed
  separate,       ///< an fp32 array of its own, `master`
};

/// The arrays of state.
enum class StatePart : uint8_t { low, master, moment1, moment2, pruning1, pruning2 };
inline constexpr size_t kStateParts = 6;
inline StatePart moment_part(int which) {
  return which == 0 ? StatePart::moment1 : StatePart::moment2;
}
inline StatePart pruning_part(int which) {
  return which == 0 ? StatePart::pruning1 : StatePart::pruning2;
}

class OptimizerArrays {
 public:
  static constexpr int64_t kSmall = 4096;
  /// Elements of 8-bit moments that are read or written at once: their fp32 numbers are copied to
  /// and from a device in scratch of so many.
  static constexpr int64_t kPiece = int64_t{8} << 20U;
  static_assert(kPiece % kernels::kQuantizeBlock == 0);

  struct Options {
    std::vector<MasterCopy> copies{};  ///< by parameter
    int moments = 2;
    int state_bits = 32;                 ///< or 8
    std::vector<int> pruning{};          ///< by parameter: arrays of the pruning method, 0 to 2
    bool offload = false;                ///< all arrays in pinned memory of the host
    bool codecs_on_device = false;       ///< and `master` with them
    std::shared_ptr<Sharding> sharding;  ///< empty: this rank owns all
    DType gradient = DType::fp32;        ///< type of the gradients, for `sharding`
  };
  OptimizerArrays() = default;
  /// `extents` in forward order.
  OptimizerArrays(Stream& stream, const kernels::Kernels& kernels, const Options& options,
                  std::span<const Extent> extents);

  size_t bytes(StatePart part) const { return array(part).values.bytes(); }  ///< without scales
  size_t scale_bytes() const;

  /// Kept elements of parameter p whose state is here.
  Range owned(size_t p) const { return places_[p].owned; }
  /// The range of it that each rank owns; empty when not sharded.
  std::span<const Range> shares(size_t p) const { return places_[p].shares; }
  bool has_separate_master(size_t p) const { return places_[p].copy == MasterCopy::separate; }
  /// The owned part of an array; empty if the parameter has none.
  Tensor view(StatePart part, size_t p) const { return view(array(part), part, places_[p]); }
  /// The scales of an 8-bit moment, else empty.
  Tensor scales(StatePart part, size_t p) const { return scales(array(part), places_[p]); }

  /// All kept elements of parameter p, as numbers; `low` as 0 … 65535. Collective when sharded.
  std::vector<float> whole(StatePart part, size_t p) const {
    return read(array(part), part, places_[p]);
  }
  /// Keeps the owned part of `packed`.
  void set(StatePart part, size_t p, std::span<const float> packed) {
    write(array(part), part, places_[p], packed);
  }

  /// Sets `codecs_on_device`: `master` moves to the device, unless offloaded.
  void move_master_to_device();

  /// Maps the packed elements of parameter p from the old kept elements to the new ones.
  using Survive =
      std::function<std::vector<float>(StatePart part, size_t p, std::span<const float> old)>;
  /// Moves all arrays to a new layout, one at a time. Collective when sharded.
  void relocate(std::span<const Extent> extents, const Survive& survive);

 private:
  struct Place {
    int64_t kept = 0;
    Range owned;
    std::vector<Range> shares;  ///< by rank; empty: not sharded
    MasterCopy copy = MasterCopy::same_as_value;
    int pruning = 0;
    std::array<int64_t, kStateParts> begin{};  ///< bytes, in each array
    int64_t scale = 0;                         ///< elements
  };
  /// Sizes of the arrays of one layout.
  struct Layout {
    std::vector<Place> places;
    std::array<int64_t, kStateParts> bytes{};
    int64_t scales = 0;
  };
  struct Array {
    Buffer values, scales;
  };

  const Array& array(StatePart part) const { return arrays_[static_cast<size_t>(part)]; }
  Array& array(StatePart part) { return arrays_[static_cast<size_t>(part)]; }
  Layout lay_out(std::span<const Extent> extents) const;
  Arena& arena() const { return options_.offload ? stream_->arena().host() : stream_->arena(); }
  bool has(StatePart part, const Place& place) const;
  bool is_coded(StatePart part, int64_t kept) const;
  DType dtype_in(StatePart part, int64_t kept) const;
  Buffer allocate(StatePart part, int64_t bytes) const;
  Array allocate(StatePart part, const Layout& layout) const;
  Tensor view(const Array& array, StatePart part, const Place& place) const;
  Tensor scales(const Array& array, const Place& place) const;
  /// Calls body(codes, scales, number of the first element) for pieces of kPiece 8-bit moments.
  template <class Body>
  void for_pieces(const Tensor& codes, const Tensor& scales, const Body& body) const;
  std::vector<float> read(const Array& array, StatePart part, const Place& place) const;
  void write(const Array& array, StatePart part, const Place& place,
             std::span<const float> packed) const;

  Stream* stream_ = nullptr;
  const kernels::Kernels* kernels_ = nullptr;
  Options options_;
  std::vector<Place> places_;
  std::array<Array, kStateParts> arrays_;
};

}  // namespace espalier::sparse
