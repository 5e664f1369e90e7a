#include "sparse/store/optimizer_arrays.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "src/core/mirror.h"

namespace espalier::sparse {
namespace {

/// Bytes that parts of an array are aligned to: a cache line.
constexpr int64_t kLine = 64;

int64_t round_up(int64_t count, int64_t multiple) {
  return (count + multiple - 1) / multiple * multiple;
}

kernels::DynamicMap map_of(int which) {
  return which == 0 ? kernels::DynamicMap::with_sign : kernels::DynamicMap::without_sign;
}

/// Between an array of this rank's memory and numbers of the host.
template <class T>
void read(Stream& stream, const Tensor& from, float* to) {
  const Mirror mirror(stream, from);
  std::ranges::copy(mirror.read().host().span<T>(), to);
}
template <class T>
void write(Stream& stream, std::span<const float> from, const Tensor& to) {
  const Mirror mirror(stream, to);
  std::ranges::transform(from, mirror.host().get<T>(), [](float x) { return static_cast<T>(x); });
  mirror.write();
}

std::span<const float> owned_of(std::span<const float> packed, const Range& owned) {
  return packed.subspan(static_cast<size_t>(owned.first), static_cast<size_t>(owned.count));
}

std::string_view moment_name(int which) { return which == 0 ? "moment1" : "moment2"; }

}  // namespace

OptimizerArrays::OptimizerArrays(Stream& stream, const kernels::Kernels& kernels,
                                 const Options& options, std::span<const Extent> extents)
    : stream_(&stream), kernels_(&kernels), options_(options) {
  Layout layout = lay_out(extents);
  low_ = allocate_low(layout);
  master_ = allocate_master(layout.master);
  for (int which = 0; which < options_.moments; ++which) {
    moments_.push_back(allocate_moment(layout, which));
  }
  places_ = std::move(layout.places);
}

bool OptimizerArrays::is_coded(const Place& place) const {
  return options_.state_bits == 8 && place.kept >= kSmall;
}

bool OptimizerArrays::any(MasterCopy copy) const {
  return std::ranges::find(options_.copies, copy) != options_.copies.end();
}

OptimizerArrays::Layout OptimizerArrays::lay_out(std::span<const Extent> extents) const {
  Layout layout;
  layout.places.resize(extents.size());
  for (size_t p = 0; p < extents.size(); ++p) {
    layout.places[p].kept = extents[p].kept;
    layout.places[p].owned = {0, extents[p].kept};
    layout.places[p].copy = options_.copies.at(p);
  }
  if (options_.sharding) {
    // The sharding sees the order of the flat arrays.
    std::vector<size_t> order(extents.size());
    std::iota(order.begin(), order.end(), size_t{0});
    // Parameters that keep nothing share an offset with another one: the later one is first.
    std::ranges::sort(order, {},
                      [&](size_t p) { return std::pair(extents[p].offset, extents.size() - p); });
    std::vector<Extent> ascending;
    for (const size_t p : order) {
      ascending.push_back(extents[p]);
    }
    auto shares = options_.sharding->shares(ascending);
    for (size_t i = 0; i < order.size(); ++i) {
      Place& place = layout.places[order[i]];
      place.shares = std::move(shares[i]);
      place.owned = place.shares.at(static_cast<size_t>(options_.sharding->rank()));
    }
  }
  for (Place& place : layout.places) {
    place.low = layout.low;
    place.master = layout.master;
    place.moment = layout.moment;
    place.scale = layout.scale;
    const int64_t count = place.owned.count;
    const bool coded = is_coded(place);
    layout.low += place.copy == MasterCopy::halves ? round_up(count, kLine / 2) : 0;
    layout.master += place.copy == MasterCopy::apart ? round_up(count, kLine / 4) : 0;
    layout.moment += round_up(coded ? count : 4 * count, kLine);
    layout.scale += coded ? round_up(count, kernels::kQuantizeBlock) / kernels::kQuantizeBlock : 0;
  }
  return layout;
}

Buffer OptimizerArrays::allocate_low(const Layout& layout) const {
  if (!any(MasterCopy::halves)) {
    return {};
  }
  return arena().allocate(Memory::master, "low half of the master copy", DType::uint16,
                          Shape{layout.low});
}

Buffer OptimizerArrays::allocate_master(int64_t count) const {
  if (!any(MasterCopy::apart)) {
    return {};
  }
  Arena& where = options_.codecs_on_device ? arena() : stream_->arena().host();
  return where.allocate(Memory::master, "master copy apart from values", DType::fp32, Shape{count});
}

void OptimizerArrays::move_master_to_device() {
  if (std::exchange(options_.codecs_on_device, true) || options_.offload ||
      !any(MasterCopy::apart)) {
    return;
  }
  Buffer there = allocate_master(master_.tensor().count());
  stream_->copy(master_.tensor(), there.tensor());
  stream_->synchronize();
  master_ = std::move(there);
}

OptimizerArrays::Moment OptimizerArrays::allocate_moment(const Layout& layout, int which) const {
  Moment moment;
  moment.bytes =
      arena().allocate(Memory::moment, moment_name(which), DType::uint8, Shape{layout.moment});
  if (layout.scale > 0) {
    moment.scale =
        arena().allocate(Memory::moment, moment_name(which), DType::fp32, Shape{layout.scale});
  }
  return moment;
}

Tensor OptimizerArrays::low_of(const Buffer& low, const Place& place) const {
  if (place.copy != MasterCopy::halves) {
    return {};
  }
  return low.tensor().elements(place.low, place.owned.count);
}

Tensor OptimizerArrays::master_of(const Buffer& master, const Place& place) const {
  if (place.copy != MasterCopy::apart) {
    return {};
  }
  return master.tensor().elements(place.master, place.owned.count);
}

Tensor OptimizerArrays::codes_of(const Moment& moment, const Place& place) const {
  const DType dtype = is_coded(place) ? DType::uint8 : DType::fp32;
  return moment.bytes.tensor().elements(place.moment, 0).as(dtype, Shape{place.owned.count});
}

Tensor OptimizerArrays::scales_of(const Moment& moment, const Place& place) const {
  if (!is_coded(place)) {
    return {};
  }
  const int64_t blocks =
      round_up(place.owned.count, kernels::kQuantizeBlock) / kernels::kQuantizeBlock;
  return moment.scale.tensor().elements(place.scale, blocks);
}

size_t OptimizerArrays::moment_bytes() const {
  size_t sum = 0;
  for (const Moment& moment : moments_) {
    sum += moment.bytes.bytes();
  }
  return sum;
}

size_t OptimizerArrays::scale_bytes() const {
  size_t sum = 0;
  for (const Moment& moment : moments_) {
    sum += moment.scale.bytes();
  }
  return sum;
}

Tensor OptimizerArrays::low(size_t p) const { return low_of(low_, places_[p]); }

Tensor OptimizerArrays::master(size_t p) const { return master_of(master_, places_[p]); }

Tensor OptimizerArrays::moment(size_t p, int which) const {
  return codes_of(moments_.at(static_cast<size_t>(which)), places_[p]);
}

Tensor OptimizerArrays::scale(size_t p, int which) const {
  return scales_of(moments_.at(static_cast<size_t>(which)), places_[p]);
}

std::vector<float> OptimizerArrays::read_low(const Buffer& low, const Place& place) const {
  std::vector<float> whole(static_cast<size_t>(place.kept));
  if (place.copy == MasterCopy::halves) {
    read<uint16_t>(*stream_, low_of(low, place), whole.data() + place.owned.first);
    collect(place, whole);
  }
  return whole;
}

std::vector<float> OptimizerArrays::read_master(const Buffer& master, const Place& place) const {
  std::vector<float> whole(static_cast<size_t>(place.kept));
  read<float>(*stream_, master_of(master, place), whole.data() + place.owned.first);
  collect(place, whole);
  return whole;
}

std::vector<float> OptimizerArrays::read_moment(const Moment& moment, const Place& place,
                                                int which) const {
  std::vector<float> whole(static_cast<size_t>(place.kept));
  const Tensor part(whole.data() + place.owned.first, DType::fp32, Shape{place.owned.count});
  const Tensor stored = codes_of(moment, place);
  if (is_coded(place)) {
    const Mirror values = Mirror::of_host(*stream_, part);
    kernels_->dequantize(*stream_, {.codes = stored,
                                    .scales = scales_of(moment, place),
                                    .x = values.device(),
                                    .map = map_of(which)});
    values.read();
  } else {
    read<float>(*stream_, stored, part.get<float>());
  }
  collect(place, whole);
  return whole;
}

void OptimizerArrays::collect(const Place& place, std::vector<float>& whole) const {
  if (options_.sharding) {
    options_.sharding->collect(place.shares, Tensor(whole.data(), DType::fp32, Shape{place.kept}));
  }
}

void OptimizerArrays::write_low(const Buffer& low, const Place& place,
                                std::span<const float> packed) const {
  if (place.copy != MasterCopy::halves) {
    return;
  }
  write<uint16_t>(*stream_, owned_of(packed, place.owned), low_of(low, place));
}

void OptimizerArrays::write_master(const Buffer& master, const Place& place,
                                   std::span<const float> packed) const {
  write<float>(*stream_, owned_of(packed, place.owned), master_of(master, place));
}

void OptimizerArrays::write_moment(const Moment& moment, const Place& place, int which,
                                   std::span<const float> packed) const {
  const std::span<const float> part = owned_of(packed, place.owned);
  const Tensor stored = codes_of(moment, place);
  if (is_coded(place)) {
    // The kernel only reads; a Tensor has no const form.
    const Mirror values = Mirror::of_host(
        *stream_, Tensor(const_cast<float*>(part.data()), DType::fp32, Shape{place.owned.count}));
    values.write();
    kernels_->quantize(*stream_, {.x = values.device(),
                                  .codes = stored,
                                  .scales = scales_of(moment, place),
                                  .map = map_of(which)});
  } else {
    write<float>(*stream_, part, stored);
  }
}

std::vector<float> OptimizerArrays::whole_low(size_t p) const { return read_low(low_, places_[p]); }

std::vector<float> OptimizerArrays::whole_master(size_t p) const {
  return read_master(master_, places_[p]);
}

std::vector<float> OptimizerArrays::whole_moment(size_t p, int which) const {
  return read_moment(moments_.at(static_cast<size_t>(which)), places_[p], which);
}

void OptimizerArrays::set_low(size_t p, std::span<const float> packed) {
  write_low(low_, places_[p], packed);
}

void OptimizerArrays::set_master(size_t p, std::span<const float> packed) {
  write_master(master_, places_[p], packed);
}

void OptimizerArrays::set_moment(size_t p, int which, std::span<const float> packed) {
  write_moment(moments_.at(static_cast<size_t>(which)), places_[p], which, packed);
}

/// One array after the other: each old one is freed once its new one is full.
void OptimizerArrays::relocate(std::span<const Extent> extents, const Survive& survive) {
  Layout next = lay_out(extents);
  const size_t moved_parameters = stream_->arena().dry() ? 0 : places_.size();
  if (any(MasterCopy::halves)) {
    Buffer low = allocate_low(next);
    for (size_t p = 0; p < moved_parameters; ++p) {
      write_low(low, next.places[p], survive(p, read_low(low_, places_[p])));
    }
    low_ = std::move(low);
  }
  if (any(MasterCopy::apart)) {
    Buffer master = allocate_master(next.master);
    for (size_t p = 0; p < moved_parameters; ++p) {
      if (apart(p)) {
        write_master(master, next.places[p], survive(p, read_master(master_, places_[p])));
      }
    }
    master_ = std::move(master);
  }
  for (int which = 0; which < options_.moments; ++which) {
    Moment& old = moments_[static_cast<size_t>(which)];
    Moment moved = allocate_moment(next, which);
    for (size_t p = 0; p < moved_parameters; ++p) {
      write_moment(moved, next.places[p], which, survive(p, read_moment(old, places_[p], which)));
    }
    old = std::move(moved);
  }
  places_ = std::move(next.places);
}

}  // namespace espalier::sparse
