#include "io/checkpoint/plain_hdf5.h"

#include <algorithm>
#include <new>

#include "src/core/error.h"

namespace espalier::io {
namespace {

bool is_float(hdf5::Type type) { return type != hdf5::Type::int32 && type < hdf5::Type::uint8; }

}  // namespace

PlainReader::PlainReader(std::filesystem::path path) : path_(std::move(path)), file_(path_) {
  for (const std::string& place : file_.datasets()) {
    std::string name = place.substr(1);
    std::ranges::replace(name, '/', '.');
    const hdf5::Type type = file_.describe(place).type;
    if (!is_float(type) && type != hdf5::Type::other_float) {
      skipped_.push_back(name);
      continue;
    }
    const auto [other, fresh] = places_.emplace(name, place);
    check(fresh, "{}: datasets {} and {} would both be named {}; rename one", path_.string(),
          other->second, place, name);
  }
}

const std::string& PlainReader::place(const std::string& name) const {
  const auto found = places_.find(name);
  check(found != places_.end(),
        "{} has no floating-point dataset for {}; compare names with `espalier inspect` ('/' "
        "counts as '.')",
        path_.string(), name);
  return found->second;
}

std::vector<std::string> PlainReader::names() const {
  std::vector<std::string> out;
  for (const auto& [name, place] : places_) {
    out.push_back(name);
  }
  return out;
}

Shape PlainReader::shape(const std::string& name) const {
  const auto extents = file_.describe(place(name)).extents;
  check(extents.size() <= Shape::kMaxRank,
        "{}: {} has {} dimensions, but at most {} are supported; reshape the dataset",
        path_.string(), name, extents.size(), Shape::kMaxRank);
  return Shape(extents);
}

std::vector<float> PlainReader::read(const std::string& name) const {
  const int64_t count = file_.describe(place(name)).count;
  std::vector<float> out;
  try {
    out.resize(static_cast<size_t>(count));
  } catch (const std::bad_alloc&) {
    fail("{}: {} has {} elements, too many for the free memory; use a machine with more memory",
         path_.string(), name, count);
  }
  file_.read(place(name), hdf5::Type::fp32, std::as_writable_bytes(std::span(out)));
  return out;
}

void PlainWriter::write(const std::string& name, const Shape& shape,
                        std::span<const float> values) {
  require(static_cast<size_t>(shape.count()) == values.size(), "values must fill the shape", name,
          shape.text(), values.size());
  require(!name.empty() && name.find('/') == std::string::npos && name != ".", "a name has no '/'",
          name);
  file_.write("/" + name, hdf5::Type::fp32, shape.extents(), values.data());
}

}  // namespace espalier::io
