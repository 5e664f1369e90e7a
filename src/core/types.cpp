#include "src/core/types.h"

#include <algorithm>

#include "src/core/error.h"

namespace espalier {
namespace {

struct DTypeRow {
  DType dtype;
  std::string_view name;
  size_t bytes;
};

constexpr std::array<DTypeRow, 7> kDTypes{{{DType::fp32, "fp32", 4},
                                           {DType::bf16, "bf16", 2},
                                           {DType::fp16, "fp16", 2},
                                           {DType::int32, "int32", 4},
                                           {DType::uint16, "uint16", 2},
                                           {DType::uint8, "uint8", 1},
                                           {DType::uint64, "uint64", 8}}};

const DTypeRow& row_of(DType dtype) { return kDTypes.at(static_cast<size_t>(dtype)); }

}  // namespace

size_t size_of(DType dtype) { return row_of(dtype).bytes; }

std::string_view name_of(DType dtype) { return row_of(dtype).name; }

DType dtype_by_name(std::string_view name) {
  const auto* row = std::ranges::find(kDTypes, name, &DTypeRow::name);
  check(row != kDTypes.end(),
        "element type \"{}\" is unknown; known: fp32, bf16, fp16, int32, uint16, uint8, uint64",
        name);
  return row->dtype;
}

Shape::Shape(std::initializer_list<int64_t> extents)
    : Shape(std::span<const int64_t>(extents.begin(), extents.size())) {}

Shape::Shape(std::span<const int64_t> extents) : rank_(static_cast<int>(extents.size())) {
  require(extents.size() <= kMaxRank, "a shape has at most four extents", extents.size());
  std::ranges::copy(extents, extents_.begin());
  for (int64_t extent : extents) {
    require(extent >= 0, "an extent cannot be negative", extent);
  }
}

int64_t Shape::count() const {
  int64_t product = 1;
  for (int64_t extent : extents()) {
    product *= extent;
  }
  return product;
}

int64_t Shape::rows() const {
  int64_t product = 1;
  for (int axis = 0; axis + 1 < rank_; ++axis) {
    product *= (*this)[axis];
  }
  return product;
}

int64_t Shape::cols() const { return rank_ == 0 ? 1 : (*this)[rank_ - 1]; }

std::string Shape::text() const {
  std::string out = "[";
  for (int axis = 0; axis < rank_; ++axis) {
    out += (axis > 0 ? ", " : "") + std::to_string((*this)[axis]);
  }
  return out + "]";
}

}  // namespace espalier
