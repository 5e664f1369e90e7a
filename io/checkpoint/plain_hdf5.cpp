#include "io/checkpoint/plain_hdf5.h"

#include <unistd.h>

#include <algorithm>
#include <map>
#include <new>

#include "io/files/raw_file.h"
#include "io/hdf5/hdf5.h"
#include "src/core/error.h"

namespace espalier::io {
namespace {

bool is_float(hdf5::Type type) { return type != hdf5::Type::int32 && type < hdf5::Type::uint8; }

}  // namespace

struct PlainReader::State {
  std::filesystem::path path;
  hdf5::File file;
  std::map<std::string, std::string> places;  ///< name → path in the file
  std::vector<std::string> skipped;

  explicit State(std::filesystem::path at) : path(std::move(at)), file(hdf5::File::open(path)) {
    for (const std::string& place : file.datasets()) {
      std::string name = place.substr(1);
      std::ranges::replace(name, '/', '.');
      const hdf5::Type type = file.describe(place).type;
      if (!is_float(type) && type != hdf5::Type::other_float) {
        skipped.push_back(name);
        continue;
      }
      const auto [other, fresh] = places.emplace(name, place);
      check(fresh, "{}: datasets {} and {} would both be named {}; rename one", path.string(),
            other->second, place, name);
    }
  }

  const std::string& place(const std::string& name) const {
    const auto found = places.find(name);
    check(found != places.end(), "{} has no floating-point dataset for {}", path.string(), name);
    return found->second;
  }
};

PlainReader::PlainReader(std::filesystem::path path)
    : state_(std::make_unique<State>(std::move(path))) {}
PlainReader::PlainReader(PlainReader&&) noexcept = default;
PlainReader::~PlainReader() = default;

std::vector<std::string> PlainReader::names() const {
  std::vector<std::string> out;
  for (const auto& [name, place] : state_->places) {
    out.push_back(name);
  }
  return out;
}

std::vector<std::string> PlainReader::skipped() const { return state_->skipped; }

bool PlainReader::has(const std::string& name) const { return state_->places.contains(name); }

Shape PlainReader::shape(const std::string& name) const {
  const auto extents = state_->file.describe(state_->place(name)).extents;
  check(extents.size() <= Shape::kMaxRank, "{}: {} has {} dimensions, at most {} are known",
        state_->path.string(), name, extents.size(), Shape::kMaxRank);
  return Shape(extents);
}

std::vector<float> PlainReader::read(const std::string& name) const {
  const std::string& place = state_->place(name);
  const int64_t count = state_->file.describe(place).count;
  std::vector<float> out;
  try {
    out.resize(static_cast<size_t>(count));
  } catch (const std::bad_alloc&) {
    fail("{}: {} has {} elements, more than memory holds", state_->path.string(), name, count);
  }
  state_->file.read(place, hdf5::Type::fp32, std::as_writable_bytes(std::span(out)));
  return out;
}

struct PlainWriter::State {
  std::filesystem::path path;
  std::filesystem::path temporary;
  std::unique_ptr<hdf5::File> file;
};

PlainWriter::PlainWriter(std::filesystem::path path) : state_(std::make_unique<State>()) {
  make_folder_of(path);
  state_->path = std::move(path);
  state_->temporary = temporary_name(state_->path);
  ::unlink(state_->temporary.c_str());  // of an earlier process that had our PID
  state_->file = std::make_unique<hdf5::File>(
      hdf5::File::create(state_->temporary, state_->path.string() + " cannot be written"));
}
PlainWriter::PlainWriter(PlainWriter&&) noexcept = default;

PlainWriter::~PlainWriter() {
  if (state_ != nullptr && state_->file != nullptr) {
    state_->file.reset();
    ::unlink(state_->temporary.c_str());
  }
}

void PlainWriter::write(const std::string& name, const Shape& shape,
                        std::span<const float> values) {
  require(state_->file != nullptr, "a committed file takes no more", name);
  require(static_cast<size_t>(shape.count()) == values.size(), "values must fill the shape", name,
          shape.text(), values.size());
  require(!name.empty() && name.find('/') == std::string::npos && name != ".", "a name has no '/'",
          name);
  state_->file->write("/" + name, hdf5::Type::fp32, shape.extents(), values.data());
}

void PlainWriter::commit() {
  require(state_->file != nullptr, "a file is committed once", state_->path.string());
  state_->file->finish();
  publish(state_->temporary, state_->path);
  state_->file.reset();
}

}  // namespace espalier::io
