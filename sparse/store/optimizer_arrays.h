#pragma once
// The optimizer's own state: `low` (the lower half of master copies, where those are halves),
// `master` (whole fp32 master copies, where they are apart from values) and the moments, for the
// owned part of each parameter. Moments are fp32, or 8-bit codes with one fp32 scale for
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
  value,   ///< the values that compute reads, and nothing beside them
  halves,  ///< those, and `low`: in bf16 and fp16
  apart,   ///< `master`: fp32
};

class OptimizerArrays {
 public:
  static constexpr int64_t kSmall = 4096;

  struct Options {
    std::vector<MasterCopy> copies{};  ///< by parameter
    int moments = 2;
    int state_bits = 32;                 ///< or 8
    bool offload = false;                ///< all arrays in pinned memory of the host
    bool codecs_on_device = false;       ///< and `master` with them
    std::shared_ptr<Sharding> sharding;  ///< empty: this rank owns all
  };
  OptimizerArrays() = default;
  /// `extents` in forward order.
  OptimizerArrays(Stream& stream, const kernels::Kernels& kernels, const Options& options,
                  std::span<const Extent> extents);

  size_t low_bytes() const { return low_.bytes(); }
  size_t master_bytes() const { return master_.bytes(); }
  size_t moment_bytes() const;  ///< without scales
  size_t scale_bytes() const;

  /// Kept elements of parameter p whose state is here.
  Range owned(size_t p) const { return places_[p].owned; }
  /// The range of it that each rank owns; empty when not sharded.
  std::span<const Range> shares(size_t p) const { return places_[p].shares; }
  bool apart(size_t p) const { return places_[p].copy == MasterCopy::apart; }
  /// Views of the owned part; `scale` is empty for fp32 moments, one of `low` and `master` at
  /// least.
  Tensor low(size_t p) const;
  Tensor master(size_t p) const;
  Tensor moment(size_t p, int which) const;
  Tensor scale(size_t p, int which) const;

  /// All kept elements of parameter p, as numbers; `low` as 0 … 65535. Collective when sharded.
  std::vector<float> whole_low(size_t p) const;
  std::vector<float> whole_master(size_t p) const;
  std::vector<float> whole_moment(size_t p, int which) const;
  /// Keep the owned part of `packed`.
  void set_low(size_t p, std::span<const float> packed);
  void set_master(size_t p, std::span<const float> packed);
  void set_moment(size_t p, int which, std::span<const float> packed);

  /// Sets `codecs_on_device`: `master` moves to the device, unless offloaded.
  void move_master_to_device();

  /// Maps the packed elements of parameter p from the old kept elements to the new ones.
  using Survive = std::function<std::vector<float>(size_t p, std::span<const float> old)>;
  /// Moves all arrays to a new layout, one at a time. Collective when sharded.
  void relocate(std::span<const Extent> extents, const Survive& survive);

 private:
  struct Place {
    int64_t kept = 0;
    Range owned;
    std::vector<Range> shares;  ///< by rank; empty: not sharded
    MasterCopy copy = MasterCopy::value;
    int64_t low = 0;     ///< elements
    int64_t master = 0;  ///< elements
    int64_t moment = 0;  ///< bytes
    int64_t scale = 0;   ///< elements
  };
  /// Sizes of the arrays of one layout.
  struct Layout {
    std::vector<Place> places;
    int64_t low = 0, master = 0, moment = 0, scale = 0;
  };
  struct Moment {
    Buffer bytes, scale;
  };

  Layout lay_out(std::span<const Extent> extents) const;
  Arena& arena() const { return options_.offload ? stream_->arena().host() : stream_->arena(); }
  bool is_coded(const Place& place) const;
  bool any(MasterCopy copy) const;
  Buffer allocate_low(const Layout& layout) const;
  Buffer allocate_master(int64_t count) const;
  Moment allocate_moment(const Layout& layout, int which) const;
  Tensor low_of(const Buffer& low, const Place& place) const;
  Tensor master_of(const Buffer& master, const Place& place) const;
  Tensor codes_of(const Moment& moment, const Place& place) const;
  Tensor scales_of(const Moment& moment, const Place& place) const;
  std::vector<float> read_low(const Buffer& low, const Place& place) const;
  std::vector<float> read_master(const Buffer& master, const Place& place) const;
  std::vector<float> read_moment(const Moment& moment, const Place& place, int which) const;
  void write_low(const Buffer& low, const Place& place, std::span<const float> packed) const;
  void write_master(const Buffer& master, const Place& place, std::span<const float> packed) const;
  void write_moment(const Moment& moment, const Place& place, int which,
                    std::span<const float> packed) const;
  void collect(const Place& place, std::vector<float>& whole) const;

  Stream* stream_ = nullptr;
  const kernels::Kernels* kernels_ = nullptr;
  Options options_;
  std::vector<Place> places_;
  Buffer low_, master_;
  std::vector<Moment> moments_;
};

}  // namespace espalier::sparse
