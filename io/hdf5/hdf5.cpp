#include "io/hdf5/hdf5.h"

#include <algorithm>
#include <array>
#include <utility>

#include "io/hdf5/driver.h"
#include "io/hdf5/state.h"
#include "src/core/error.h"

namespace espalier::io::hdf5 {
namespace {

/// HDF5 keeps its state in globals, so its lock has to be one too.
std::recursive_mutex library_lock;

herr_t take_first(unsigned, const H5E_error2_t* error, void* out) {
  auto& text = *static_cast<std::string*>(out);
  if (text.empty() && error->desc != nullptr) {
    text = error->desc;
  }
  return 0;
}

/// The innermost description on HDF5's error stack.
std::string library_cause() {
  std::string text;
  H5Ewalk2(H5E_DEFAULT, H5E_WALK_UPWARD, take_first, &text);
  return text.empty() ? "HDF5 gives no reason" : text;
}

hid_t bfloat16_type() {
  const hid_t type = H5Tcopy(H5T_IEEE_F32LE);
  const bool ok = type >= 0 && H5Tset_fields(type, 15, 7, 8, 0, 7) >= 0 &&
                  H5Tset_precision(type, 16) >= 0 && H5Tset_size(type, 2) >= 0 &&
                  H5Tset_ebias(type, 127) >= 0;
  return ok ? type : -1;
}

hid_t half_type() {
  const hid_t type = H5Tcopy(H5T_IEEE_F32LE);
  const bool ok = type >= 0 && H5Tset_fields(type, 15, 10, 5, 0, 10) >= 0 &&
                  H5Tset_precision(type, 16) >= 0 && H5Tset_size(type, 2) >= 0 &&
                  H5Tset_ebias(type, 15) >= 0;
  return ok ? type : -1;
}

constexpr std::array kTypes{Type::fp16, Type::bf16,  Type::fp32,
                            Type::fp64, Type::int32, Type::uint8};

/// A new id of the type.
hid_t library_type(Type type) {
  switch (type) {
    case Type::fp16:
      return half_type();
    case Type::bf16:
      return bfloat16_type();
    case Type::fp32:
      return H5Tcopy(H5T_IEEE_F32LE);
    case Type::fp64:
      return H5Tcopy(H5T_IEEE_F64LE);
    case Type::int32:
      return H5Tcopy(H5T_STD_I32LE);
    case Type::uint8:
      return H5Tcopy(H5T_STD_U8LE);
    default:
      return -1;
  }
}

Type type_of(hid_t id) {
  for (const Type type : kTypes) {
    const Id known(library_type(type));
    if (H5Tequal(id, known) > 0) {
      return type;
    }
  }
  return H5Tget_class(id) == H5T_FLOAT ? Type::other_float : Type::other;
}

/// A group that remembers the order in which its links were made.
hid_t ordered_group_list(hid_t kind) {
  const hid_t list = H5Pcreate(kind);
  const bool ok =
      list >= 0 && H5Pset_obj_track_times(list, false) >= 0 &&
      H5Pset_link_creation_order(list, H5P_CRT_ORDER_TRACKED | H5P_CRT_ORDER_INDEXED) >= 0;
  return ok ? list : -1;
}

hid_t space_of(std::span<const int64_t> extents) {
  if (extents.empty()) {
    return H5Screate(H5S_SCALAR);
  }
  const std::vector<hsize_t> sizes(extents.begin(), extents.end());
  return H5Screate_simple(static_cast<int>(sizes.size()), sizes.data(), nullptr);
}

}  // namespace

std::string library() {
  const std::lock_guard lock(library_lock);
  unsigned major = 0;
  unsigned minor = 0;
  unsigned release = 0;
  H5get_libversion(&major, &minor, &release);
  return fmt::format("HDF5 {}.{}.{}", major, minor, release);
}

size_t size_of(Type type) {
  switch (type) {
    case Type::fp16:
    case Type::bf16:
      return 2;
    case Type::fp32:
    case Type::int32:
      return 4;
    case Type::fp64:
      return 8;
    case Type::uint8:
      return 1;
    default:
      return 0;
  }
}

Visit::Visit() : lock_(library_lock) { H5Eset_auto2(H5E_DEFAULT, nullptr, nullptr); }

File::State::~State() {
  const Visit visit;
  if (id >= 0) {
    H5Fclose(id);
  }
}

void File::State::expect(bool ok, std::string_view action, std::string_view path) const {
  if (ok && (!writing || raw->error() == 0)) {
    return;
  }
  const bool system = raw->error() != 0;
  fail("{}: cannot {}{}{}: {}{}", label, action, path.empty() ? "" : " ", path,
       system ? std::generic_category().message(raw->error()) : library_cause(),
       writing || system ? "" : "; it is cut off, damaged or of another kind: use another file");
}

File::File(std::unique_ptr<State> state) : state_(std::move(state)) {}
File::File(File&&) noexcept = default;
File::~File() = default;

File File::create(const std::filesystem::path& path, std::string label) {
  const Visit visit;
  auto state = std::make_unique<State>();
  state->label = std::move(label);
  state->writing = true;
  state->raw = std::make_shared<RawFile>(RawFile::create(path));
  const Id access(access_through(state->raw));
  const Id creation(ordered_group_list(H5P_FILE_CREATE));
  state->id = H5Fcreate(path.c_str(), H5F_ACC_TRUNC, creation, access);
  state->expect(state->id >= 0, "create the file", "");
  return File(std::move(state));
}

File File::open(const std::filesystem::path& path) {
  const Visit visit;
  auto state = std::make_unique<State>();
  state->label = path.string();
  state->raw = std::make_shared<RawFile>(RawFile::open(path));
  const Id access(access_through(state->raw));
  state->id = H5Fopen(path.c_str(), H5F_ACC_RDONLY, access);
  state->expect(state->id >= 0, "open it as HDF5", "");
  return File(std::move(state));
}

uint64_t File::size() const { return state_->raw->size(); }

void File::make_group(const std::string& path) {
  const Visit visit;
  const Id list(ordered_group_list(H5P_GROUP_CREATE));
  const Id group(H5Gcreate2(state_->id, path.c_str(), H5P_DEFAULT, list, H5P_DEFAULT));
  state_->expect(group >= 0, "make group", path);
}

void File::write(const std::string& path, Type type, std::span<const int64_t> extents,
                 const void* data) {
  const Visit visit;
  const Id kind(library_type(type));
  const Id space(space_of(extents));
  const Id list(H5Pcreate(H5P_DATASET_CREATE));
  // Nothing is filled in beforehand: every element is written right here.
  const bool ready = list >= 0 && H5Pset_fill_time(list, H5D_FILL_TIME_NEVER) >= 0 &&
                     H5Pset_obj_track_times(list, false) >= 0;
  const Id dataset(
      ready ? H5Dcreate2(state_->id, path.c_str(), kind, space, H5P_DEFAULT, list, H5P_DEFAULT)
            : hid_t{-1});
  const bool empty = std::ranges::find(extents, 0) != extents.end();
  state_->expect(
      dataset >= 0 && (empty || H5Dwrite(dataset, kind, H5S_ALL, H5S_ALL, H5P_DEFAULT, data) >= 0),
      "write dataset", path);
}

Dataset File::describe(const std::string& path) const {
  const Visit visit;
  const Id dataset(H5Dopen2(state_->id, path.c_str(), H5P_DEFAULT));
  const Id space(dataset >= 0 ? H5Dget_space(dataset) : hid_t{-1});
  const Id kind(dataset >= 0 ? H5Dget_type(dataset) : hid_t{-1});
  const int rank = space >= 0 ? H5Sget_simple_extent_ndims(space) : -1;
  state_->expect(kind >= 0 && rank >= 0, "open dataset", path);
  std::vector<hsize_t> sizes(static_cast<size_t>(rank));
  state_->expect(H5Sget_simple_extent_dims(space, sizes.data(), nullptr) >= 0, "examine dataset",
                 path);
  Dataset out{.type = type_of(kind),
              .extents = {sizes.begin(), sizes.end()},
              .count = H5Sget_simple_extent_npoints(space),
              .stored_bytes = H5Dget_storage_size(dataset)};
  // Half of the address space: sums of sizes then cannot overflow either.
  double product = 8;
  std::ranges::for_each(sizes, [&](hsize_t size) { product *= static_cast<double>(size); });
  check(product < 0x1p62 && out.count >= 0, "{}: dataset {} claims an impossible size",
        state_->label, path);
  return out;
}

void File::read(const std::string& path, Type type, std::span<std::byte> out) const {
  const Dataset found = describe(path);
  require(static_cast<size_t>(found.count) * size_of(type) == out.size(), "read needs room for all",
          found.count, size_of(type), out.size());
  if (out.empty()) {
    return;
  }
  const Visit visit;
  const Id dataset(H5Dopen2(state_->id, path.c_str(), H5P_DEFAULT));
  const Id kind(library_type(type));
  state_->expect(
      dataset >= 0 && H5Dread(dataset, kind, H5S_ALL, H5S_ALL, H5P_DEFAULT, out.data()) >= 0,
      "read dataset", path);
}

void File::finish() {
  const Visit visit;
  const bool closed = H5Fclose(std::exchange(state_->id, -1)) >= 0;
  state_->expect(closed, "complete the file", "");
  state_->raw->finish();
  state_->expect(true, "flush it to the disk", "");
}

}  // namespace espalier::io::hdf5
