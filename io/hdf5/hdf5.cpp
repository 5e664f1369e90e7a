#include "io/hdf5/hdf5.h"

#include <hdf5.h>

#include <algorithm>
#include <array>
#include <mutex>
#include <new>
#include <string_view>
#include <utility>

#include "io/files/file_system.h"
#include "io/files/folders.h"
#include "io/files/raw_file.h"
#include "io/hdf5/driver.h"
#include "src/core/error.h"

namespace espalier::io::hdf5 {
namespace {

/// HDF5 keeps its state in globals, so its lock is global too.
std::recursive_mutex library_lock;

/// One call of the library: holds the process-wide lock. Switches HDF5's printing off for good (it
/// also prints when the process exits after it has read a damaged file), and its plugins: a file
/// must not choose code to run.
class Visit {
 public:
  Visit() : lock_(library_lock) {
    H5Eset_auto2(H5E_DEFAULT, nullptr, nullptr);
    H5PLset_loading_state(0);
  }
  Visit(const Visit&) = delete;
  Visit& operator=(const Visit&) = delete;

 private:
  std::lock_guard<std::recursive_mutex> lock_;
};

/// An id that is released; lives within one Visit.
class Id {
 public:
  explicit Id(hid_t id) : id_(id) {}
  ~Id() {
    if (id_ >= 0) {
      H5Idec_ref(id_);
    }
  }
  Id(const Id&) = delete;
  Id& operator=(const Id&) = delete;
  // NOLINTNEXTLINE(google-explicit-constructor): ids are passed to HDF5's functions
  operator hid_t() const { return id_; }

 private:
  hid_t id_;
};

// No exception may pass through HDF5, which is C: callbacks end HDF5's call instead.

herr_t take_first(unsigned, const H5E_error2_t* error, void* out) {
  auto& text = *static_cast<std::string*>(out);
  if (text.empty() && error->desc != nullptr) {
    try {
      text = error->desc;
    } catch (const std::bad_alloc&) {
      return -1;
    }
  }
  return 0;
}

/// The innermost description on HDF5's error stack.
std::string library_cause() {
  std::string text;
  H5Ewalk2(H5E_DEFAULT, H5E_WALK_UPWARD, take_first, &text);
  return text.empty() ? "HDF5 gives no reason" : text;
}

/// A float of 16 bits.
hid_t half_type(size_t mantissa_bits) {
  const size_t exponent_bits = 15 - mantissa_bits;
  const hid_t type = H5Tcopy(H5T_IEEE_F32LE);
  const bool ok = type >= 0 &&
                  H5Tset_fields(type, 15, mantissa_bits, exponent_bits, 0, mantissa_bits) >= 0 &&
                  H5Tset_precision(type, 16) >= 0 && H5Tset_size(type, 2) >= 0 &&
                  H5Tset_ebias(type, (size_t{1} << (exponent_bits - 1)) - 1) >= 0;
  return ok ? type : -1;
}

struct Known {
  Type type;
  size_t bytes;
  hid_t (*make)();  ///< a new id of the type
};
constexpr std::array kTypes{Known{Type::fp16, 2, [] { return half_type(10); }},
                            Known{Type::bf16, 2, [] { return half_type(7); }},
                            Known{Type::fp32, 4, [] { return H5Tcopy(H5T_IEEE_F32LE); }},
                            Known{Type::fp64, 8, [] { return H5Tcopy(H5T_IEEE_F64LE); }},
                            Known{Type::int32, 4, [] { return H5Tcopy(H5T_STD_I32LE); }},
                            Known{Type::int64, 8, [] { return H5Tcopy(H5T_STD_I64LE); }},
                            Known{Type::uint8, 1, [] { return H5Tcopy(H5T_STD_U8LE); }}};

hid_t library_type(Type type) {
  const auto* known = std::ranges::find(kTypes, type, &Known::type);
  return known == kTypes.end() ? -1 : known->make();
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

/// The type of text attributes: UTF-8 of variable length, which h5py reads as str.
hid_t text_type() {
  const hid_t type = H5Tcopy(H5T_C_S1);
  const bool ok =
      type >= 0 && H5Tset_size(type, H5T_VARIABLE) >= 0 && H5Tset_cset(type, H5T_CSET_UTF8) >= 0;
  return ok ? type : -1;
}

}  // namespace

struct File::State {
  std::string label;
  std::shared_ptr<RawFile> raw;
  hid_t id = -1;
  bool writing = false;
  std::filesystem::path target, temporary;  ///< of a file that is not finished

  State() = default;
  State(const State&) = delete;
  State& operator=(const State&) = delete;
  ~State();

  /// Throws, with the system's or else HDF5's cause, unless `ok` and every write so far went
  /// through.
  void expect(bool ok, std::string_view action, std::string_view path) const;
  /// A new dataset with memory in the file.
  hid_t make_dataset(const std::string& path, hid_t kind, std::span<const int64_t> extents) const;
  void set_integers(const std::string& path, const std::string& name,
                    std::span<const int64_t> extents, const int64_t* values) const;
};

std::string library() {
  const std::lock_guard lock(library_lock);
  unsigned major = 0;
  unsigned minor = 0;
  unsigned release = 0;
  H5get_libversion(&major, &minor, &release);
  return fmt::format("HDF5 {}.{}.{}", major, minor, release);
}

size_t size_of(Type type) {
  const auto* known = std::ranges::find(kTypes, type, &Known::type);
  return known == kTypes.end() ? 0 : known->bytes;
}

File::State::~State() {
  const Visit visit;
  if (id >= 0) {
    H5Fclose(id);
  }
  if (!temporary.empty()) {
    file_system().unlink(temporary);
  }
}

void File::State::expect(bool ok, std::string_view action, std::string_view path) const {
  require(!writing || !temporary.empty(), "a finished file takes no more", label, path);
  if (ok && (!writing || raw->error() == 0)) {
    return;
  }
  const bool system = raw->error() != 0;
  throw Failure(
      fmt::format("{}: cannot {}{}{}: {}{}", label, action, path.empty() ? "" : " ", path,
                  system ? cause_of(raw->error()) : library_cause(),
                  writing  ? fmt::format("; {}", kWriteAdvice)
                  : system ? ""
                           : "; the file is truncated, damaged or not HDF5, use another file"),
      // A block that cannot be read is damage; other causes (too many open files) say nothing about
      // the file.
      system && is_transient(raw->error()) && (writing || raw->error() != EIO));
}

File::File(std::unique_ptr<State> state) : state_(std::move(state)) {}
File::File(File&&) noexcept = default;
File::~File() = default;

File File::create(const std::filesystem::path& path, std::string label) {
  const Visit visit;
  auto state = std::make_unique<State>();
  state->label = std::move(label);
  state->writing = true;
  state->target = path;
  state->temporary = make_way_for(path);
  state->raw = std::make_shared<RawFile>(RawFile::create(state->temporary));
  const Id access(access_through(state->raw));
  const Id creation(ordered_group_list(H5P_FILE_CREATE));
  state->id = H5Fcreate(state->temporary.c_str(), H5F_ACC_TRUNC, creation, access);
  state->expect(state->id >= 0, "create the file", "");
  return File(std::move(state));
}

void File::make_group(const std::string& path) {
  const Visit visit;
  const Id list(ordered_group_list(H5P_GROUP_CREATE));
  const Id group(H5Gcreate2(state_->id, path.c_str(), H5P_DEFAULT, list, H5P_DEFAULT));
  state_->expect(group >= 0, "make group", path);
}

hid_t File::State::make_dataset(const std::string& path, hid_t kind,
                                std::span<const int64_t> extents) const {
  const Id space(space_of(extents));
  const Id list(H5Pcreate(H5P_DATASET_CREATE));
  // Nothing is filled in beforehand: every element is written by the caller.
  const bool ready = list >= 0 && H5Pset_fill_time(list, H5D_FILL_TIME_NEVER) >= 0 &&
                     H5Pset_alloc_time(list, H5D_ALLOC_TIME_EARLY) >= 0 &&
                     H5Pset_obj_track_times(list, false) >= 0;
  const hid_t dataset =
      ready ? H5Dcreate2(id, path.c_str(), kind, space, H5P_DEFAULT, list, H5P_DEFAULT) : hid_t{-1};
  expect(dataset >= 0, "make dataset", path);
  return dataset;
}

void File::write(const std::string& path, Type type, std::span<const int64_t> extents,
                 const void* data) {
  const Visit visit;
  const Id kind(library_type(type));
  const Id dataset(state_->make_dataset(path, kind, extents));
  const bool empty = std::ranges::find(extents, 0) != extents.end();
  state_->expect(empty || H5Dwrite(dataset, kind, H5S_ALL, H5S_ALL, H5P_DEFAULT, data) >= 0,
                 "write dataset", path);
}

uint64_t File::reserve(const std::string& path, Type type, std::span<const int64_t> extents) {
  const Visit visit;
  const Id kind(library_type(type));
  const Id dataset(state_->make_dataset(path, kind, extents));
  if (std::ranges::find(extents, 0) != extents.end()) {
    return 0;
  }
  const haddr_t offset = H5Dget_offset(dataset);
  state_->expect(offset != HADDR_UNDEF, "find the place of dataset", path);
  return offset;
}

const std::filesystem::path& File::temporary() const { return state_->temporary; }

bool File::exists(const std::string& path) const {
  const Visit visit;
  // H5Lexists wants every step of the path to exist but the last.
  for (size_t slash = path.find('/', 1);; slash = path.find('/', slash + 1)) {
    const std::string part = path.substr(0, slash);
    if (part != "/") {
      const htri_t found = H5Lexists(state_->id, part.c_str(), H5P_DEFAULT);
      state_->expect(found >= 0, "look up", part);
      if (found == 0) {
        return false;
      }
    }
    if (slash == std::string::npos) {
      return true;
    }
  }
}

void File::set_text(const std::string& path, const std::string& name, const std::string& text) {
  const Visit visit;
  require(text.find('\0') == std::string::npos, "a text attribute has no NUL", name);
  const Id kind(text_type());
  const Id space(H5Screate(H5S_SCALAR));
  const Id attribute(H5Acreate_by_name(state_->id, path.c_str(), name.c_str(), kind, space,
                                       H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT));
  const char* data = text.c_str();
  state_->expect(attribute >= 0 && H5Awrite(attribute, kind, static_cast<const void*>(&data)) >= 0,
                 "write attribute " + name + " of", path);
}

void File::set_integer(const std::string& path, const std::string& name, int64_t value) {
  state_->set_integers(path, name, {}, &value);
}

void File::set_integers(const std::string& path, const std::string& name,
                        std::span<const int64_t> values) {
  const auto count = static_cast<int64_t>(values.size());
  state_->set_integers(path, name, {&count, 1}, values.data());
}

void File::State::set_integers(const std::string& path, const std::string& name,
                               std::span<const int64_t> extents, const int64_t* values) const {
  const Visit visit;
  const Id space(space_of(extents));
  const Id attribute(H5Acreate_by_name(id, path.c_str(), name.c_str(), H5T_STD_I64LE, space,
                                       H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT));
  const bool empty = !extents.empty() && extents.front() == 0;
  expect(attribute >= 0 && (empty || H5Awrite(attribute, H5T_NATIVE_INT64, values) >= 0),
         "write attribute " + name + " of", path);
}

void File::complete() {
  {
    const Visit visit;
    require(state_->id >= 0, "a file is completed once", state_->label);
    const bool closed = H5Fclose(std::exchange(state_->id, -1)) >= 0;
    state_->expect(closed, "complete the file", "");
  }
  state_->raw->finish();
  state_->expect(true, "flush it to the disk", "");
}

void File::finish() {
  if (state_->id >= 0) {
    complete();
  }
  require(!state_->temporary.empty(), "a file is finished once", state_->label);
  publish(state_->temporary, state_->target);
  state_->temporary.clear();
}

}  // namespace espalier::io::hdf5
