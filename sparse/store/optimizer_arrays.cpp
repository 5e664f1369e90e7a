#include "sparse/store/optimizer_arrays.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "src/core/mirror.h"

namespace espalier::sparse {
namespace {

/// Bytes that parts of an array are aligned to: a cache line.
constexpr int64_t kLine = 64;
constexpr std::array kParts{StatePart::low,     StatePart::master,   StatePart::moment1,
                            StatePart::moment2, StatePart::pruning1, StatePart::pruning2};
constexpr std::array<std::string_view, kStateParts> kNames{
    "low half of the master copy",   "master copy separate from values", "moment1", "moment2",
    "array 1 of the pruning method", "array 2 of the pruning method"};

int64_t divide_up(int64_t count, int64_t parts) { return (count + parts - 1) / parts; }

bool is_moment(StatePart part) { return part == StatePart::moment1 || part == StatePart::moment2; }
bool is_master(StatePart part) { return part == StatePart::low || part == StatePart::master; }

kernels::DynamicMap map_of(StatePart part) {
  return part == StatePart::moment1 ? kernels::DynamicMap::with_sign
                                    : kernels::DynamicMap::without_sign;
}

}  // namespace

OptimizerArrays::OptimizerArrays(Stream& stream, const kernels::Kernels& kernels,
                                 const Options& options, std::span<const Extent> extents)
    : stream_(&stream), kernels_(&kernels), options_(options) {
  Layout layout = lay_out(extents);
  for (const StatePart part : kParts) {
    array(part) = allocate(part, layout);
  }
  places_ = std::move(layout.places);
}

bool OptimizerArrays::has(StatePart part, const Place& place) const {
  switch (part) {
    case StatePart::low:
      return place.copy == MasterCopy::split;
    case StatePart::master:
      return place.copy == MasterCopy::separate;
    case StatePart::moment1:
      return options_.moments >= 1;
    case StatePart::moment2:
      return options_.moments >= 2;
    case StatePart::pruning1:
      return place.pruning >= 1;
    case StatePart::pruning2:
      break;
  }
  return place.pruning >= 2;
}

bool OptimizerArrays::is_coded(StatePart part, int64_t kept) const {
  return is_moment(part) && options_.state_bits == 8 && kept >= kSmall;
}

DType OptimizerArrays::dtype_in(StatePart part, int64_t kept) const {
  return part == StatePart::low ? DType::uint16 : is_coded(part, kept) ? DType::uint8 : DType::fp32;
}

OptimizerArrays::Layout OptimizerArrays::lay_out(std::span<const Extent> extents) const {
  Layout layout;
  layout.places.resize(extents.size());
  for (size_t p = 0; p < extents.size(); ++p) {
    layout.places[p].kept = extents[p].kept;
    layout.places[p].owned = {0, extents[p].kept};
    layout.places[p].copy = options_.copies.at(p);
    layout.places[p].pruning = options_.pruning.empty() ? 0 : options_.pruning.at(p);
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
    auto shares = options_.sharding->shares(ascending, options_.gradient);
    for (size_t i = 0; i < order.size(); ++i) {
      Place& place = layout.places[order[i]];
      place.shares = std::move(shares[i]);
      place.owned = place.shares.at(static_cast<size_t>(options_.sharding->rank()));
    }
  }
  for (Place& place : layout.places) {
    const int64_t count = place.owned.count;
    place.begin = layout.bytes;
    place.scale = layout.scales;
    for (const StatePart part : kParts) {
      const auto each = static_cast<int64_t>(size_of(dtype_in(part, place.kept)));
      layout.bytes[static_cast<size_t>(part)] +=
          has(part, place) ? divide_up(count * each, kLine) * kLine : 0;
    }
    layout.scales +=
        is_coded(StatePart::moment1, place.kept) ? divide_up(count, kernels::kQuantizeBlock) : 0;
  }
  return layout;
}

Buffer OptimizerArrays::allocate(StatePart part, int64_t bytes) const {
  Arena& where =
      part == StatePart::master && !options_.codecs_on_device ? stream_->arena().host() : arena();
  return where.allocate(is_master(part) ? Memory::master : Memory::moment,
                        kNames.at(static_cast<size_t>(part)), DType::uint8, Shape{bytes});
}

OptimizerArrays::Array OptimizerArrays::allocate(StatePart part, const Layout& layout) const {
  Array made;
  if (std::ranges::any_of(layout.places, [&](const Place& place) { return has(part, place); })) {
    made.values = allocate(part, layout.bytes.at(static_cast<size_t>(part)));
    if (is_moment(part) && layout.scales > 0) {
      made.scales = arena().allocate(Memory::moment, kNames.at(static_cast<size_t>(part)),
                                     DType::fp32, Shape{layout.scales});
    }
  }
  return made;
}

void OptimizerArrays::move_master_to_device() {
  if (std::exchange(options_.codecs_on_device, true) || options_.offload ||
      !array(StatePart::master).values.tensor()) {
    return;
  }
  Buffer& master = array(StatePart::master).values;
  Buffer there = allocate(StatePart::master, master.tensor().count());
  stream_->copy(master.tensor(), there.tensor());
  stream_->synchronize();
  master = std::move(there);
}

Tensor OptimizerArrays::view(const Array& array, StatePart part, const Place& place) const {
  if (!has(part, place)) {
    return {};
  }
  return array.values.tensor()
      .elements(place.begin.at(static_cast<size_t>(part)), 0)
      .as(dtype_in(part, place.kept), Shape{place.owned.count});
}

Tensor OptimizerArrays::scales(const Array& array, const Place& place) const {
  if (!array.scales.tensor() || !is_coded(StatePart::moment1, place.kept)) {
    return {};
  }
  return array.scales.tensor().elements(place.scale,
                                        divide_up(place.owned.count, kernels::kQuantizeBlock));
}

size_t OptimizerArrays::scale_bytes() const {
  return array(StatePart::moment1).scales.bytes() + array(StatePart::moment2).scales.bytes();
}

template <class Body>
void OptimizerArrays::for_pieces(const Tensor& codes, const Tensor& scales,
                                 const Body& body) const {
  for (int64_t first = 0; first < codes.count(); first += kPiece) {
    const int64_t count = std::min(kPiece, codes.count() - first);
    body(
        codes.elements(first, count),
        scales.elements(first / kernels::kQuantizeBlock, divide_up(count, kernels::kQuantizeBlock)),
        first);
  }
}

std::vector<float> OptimizerArrays::read(const Array& array, StatePart part,
                                         const Place& place) const {
  std::vector<float> whole(static_cast<size_t>(place.kept));
  const Tensor stored = view(array, part, place);
  if (!has(part, place)) {
    return whole;
  }
  float* const owned = whole.data() + place.owned.first;
  if (stored.dtype == DType::uint8) {
    for_pieces(
        stored, scales(array, place),
        [&](const Tensor& codes, const Tensor& factors, int64_t first) {
          const Mirror values =
              Mirror::of_host(*stream_, Tensor(owned + first, DType::fp32, Shape{codes.count()}));
          kernels_->dequantize(
              *stream_,
              {.codes = codes, .scales = factors, .x = values.device(), .map = map_of(part)});
          values.read();
        });
  } else if (const Mirror mirror(*stream_, stored); stored.dtype == DType::uint16) {
    std::ranges::copy(mirror.read().host().span<uint16_t>(), owned);
  } else {
    std::ranges::copy(mirror.read().host().span<float>(), owned);
  }
  if (options_.sharding) {
    options_.sharding->collect(place.shares, Tensor(whole.data(), DType::fp32, Shape{place.kept}));
  }
  return whole;
}

void OptimizerArrays::write(const Array& array, StatePart part, const Place& place,
                            std::span<const float> packed) const {
  const std::span<const float> owned = packed.subspan(static_cast<size_t>(place.owned.first),
                                                      static_cast<size_t>(place.owned.count));
  const Tensor stored = view(array, part, place);
  if (!has(part, place)) {
    return;
  }
  if (stored.dtype == DType::uint8) {
    // The kernel only reads; a Tensor has no const form.
    auto* const numbers = const_cast<float*>(owned.data());
    for_pieces(
        stored, scales(array, place),
        [&](const Tensor& codes, const Tensor& factors, int64_t first) {
          const Mirror values =
              Mirror::of_host(*stream_, Tensor(numbers + first, DType::fp32, Shape{codes.count()}));
          values.write();
          kernels_->quantize(
              *stream_,
              {.x = values.device(), .codes = codes, .scales = factors, .map = map_of(part)});
        });
    return;
  }
  const Mirror mirror(*stream_, stored);
  if (stored.dtype == DType::uint16) {
    std::ranges::transform(owned, mirror.host().get<uint16_t>(),
                           [](float x) { return static_cast<uint16_t>(x); });
  } else {
    std::ranges::copy(owned, mirror.host().get<float>());
  }
  mirror.write();
}

/// One array after the other: each old one is freed once its new one is full.
void OptimizerArrays::relocate(std::span<const Extent> extents, const Survive& survive) {
  Layout next = lay_out(extents);
  const size_t moved_parameters = stream_->arena().dry() ? 0 : places_.size();
  for (const StatePart part : kParts) {
    Array moved = allocate(part, next);
    for (size_t p = 0; p < moved_parameters; ++p) {
      if (has(part, places_[p])) {
        write(moved, part, next.places[p], survive(part, p, whole(part, p)));
      }
    }
    array(part) = std::move(moved);
  }
  places_ = std::move(next.places);
}

}  // namespace espalier::sparse
