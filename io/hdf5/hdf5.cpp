#include "io/hdf5/hdf5.h"

#include <hdf5.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <mutex>
#include <string_view>
#include <utility>

#include "io/files/raw_file.h"
#include "io/hdf5/driver.h"
#include "src/core/error.h"

namespace espalier::io::hdf5 {
namespace {

/// HDF5 keeps its state in globals, so its lock is global too.
std::recursive_mutex library_lock;

/// One call of the library: holds the process-wide lock. Switches HDF5's printing off for good: it
/// also prints when the process exits after it has read a damaged file.
class Visit {
 public:
  Visit() : lock_(library_lock) { H5Eset_auto2(H5E_DEFAULT, nullptr, nullptr); }
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
                            Known{Type::uint8, 1, [] { return H5Tcopy(H5T_STD_U8LE); }}};

hid_t library_type(Type type) {
  const auto* known = std::ranges::find(kTypes, type, &Known::type);
  return known == kTypes.end() ? -1 : known->make();
}

Type type_of(hid_t id) {
  for (const Known& known : kTypes) {
    const Id type(known.make());
    if (H5Tequal(id, type) > 0) {
      return known.type;
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

herr_t take_name(hid_t, const char* name, const H5A_info_t*, void* out) {
  static_cast<std::vector<std::string>*>(out)->emplace_back(name);
  return 0;
}

/// The type of text attributes: UTF-8 of variable length, which h5py reads as str.
hid_t text_type() {
  const hid_t type = H5Tcopy(H5T_C_S1);
  const bool ok =
      type >= 0 && H5Tset_size(type, H5T_VARIABLE) >= 0 && H5Tset_cset(type, H5T_CSET_UTF8) >= 0;
  return ok ? type : -1;
}

/// Reads one text of variable length; false: HDF5 says why.
bool read_variable(hid_t attribute, hid_t kind, std::string& out) {
  char* text = nullptr;
  const HeapChecks checks;
  if (H5Aread(attribute, kind, static_cast<void*>(&text)) < 0) {
    return false;
  }
  out = text == nullptr ? "" : text;
  H5free_memory(text);
  return true;
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
  void set_integers(const std::string& path, const std::string& name,
                    std::span<const int64_t> extents, const int64_t* values) const;
  std::vector<std::string> children(const std::string& group) const;
  void walk(const std::string& group, int depth, std::vector<std::string>& out) const;
};

/// An attribute to read; lives within one Visit.
struct File::Attribute {
  std::string action;
  Id id, kind, space;
  hssize_t count;

  Attribute(const State& state, const std::string& path, const std::string& name)
      : action("read attribute " + name + " of"),
        id(H5Aopen_by_name(state.id, path.c_str(), name.c_str(), H5P_DEFAULT, H5P_DEFAULT)),
        kind(id >= 0 ? H5Aget_type(id) : hid_t{-1}),
        space(id >= 0 ? H5Aget_space(id) : hid_t{-1}),
        count(space >= 0 ? H5Sget_simple_extent_npoints(space) : -1) {
    state.expect(kind >= 0 && space >= 0, action, path);
  }
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
    ::unlink(temporary.c_str());
  }
}

void File::State::expect(bool ok, std::string_view action, std::string_view path) const {
  require(!writing || !temporary.empty(), "a finished file takes no more", label, path);
  if (ok && (!writing || raw->error() == 0)) {
    return;
  }
  const bool system = raw->error() != 0;
  fail("{}: cannot {}{}{}: {}{}", label, action, path.empty() ? "" : " ", path,
       system ? std::generic_category().message(raw->error()) : library_cause(),
       writing || system ? "" : "; the file is truncated, damaged or not HDF5, use another file");
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
  make_folder_of(path);
  state->temporary = temporary_name(path);
  ::unlink(state->temporary.c_str());  // of an earlier process that had our PID
  state->raw = std::make_shared<RawFile>(RawFile::create(state->temporary));
  const Id access(access_through(state->raw));
  const Id creation(ordered_group_list(H5P_FILE_CREATE));
  state->id = H5Fcreate(state->temporary.c_str(), H5F_ACC_TRUNC, creation, access);
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
  check(product < 0x1p62 && out.count >= 0,
        "{}: dataset {} has an impossible size; the file is damaged, use another file",
        state_->label, path);
  return out;
}

void File::read(const std::string& path, Type type, std::span<std::byte> out) const {
  const Dataset found = describe(path);
  require(static_cast<size_t>(found.count) * size_of(type) == out.size(),
          "the buffer holds all elements", found.count, size_of(type), out.size());
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

std::vector<std::string> File::State::children(const std::string& group) const {
  const Id object(H5Gopen2(id, group.c_str(), H5P_DEFAULT));
  expect(object >= 0, "open group", group);
  H5G_info_t info{};
  const Id list(H5Gget_create_plist(object));
  unsigned order = 0;
  expect(
      H5Gget_info(object, &info) >= 0 && list >= 0 && H5Pget_link_creation_order(list, &order) >= 0,
      "examine group", group);
  const bool indexed = (order & H5P_CRT_ORDER_INDEXED) != 0;
  const H5_index_t by = indexed ? H5_INDEX_CRT_ORDER : H5_INDEX_NAME;
  std::vector<std::string> out;
  for (hsize_t i = 0; i < info.nlinks; ++i) {
    const ssize_t length =
        H5Lget_name_by_idx(object, ".", by, H5_ITER_INC, i, nullptr, 0, H5P_DEFAULT);
    expect(length >= 0, "list group", group);
    std::string name(static_cast<size_t>(length) + 1, '\0');
    expect(H5Lget_name_by_idx(object, ".", by, H5_ITER_INC, i, name.data(), name.size(),
                              H5P_DEFAULT) >= 0,
           "list group", group);
    name.pop_back();
    out.push_back(std::move(name));
  }
  return out;
}

std::vector<std::string> File::children(const std::string& group) const {
  const Visit visit;
  return state_->children(group);
}

void File::State::walk(const std::string& group, int depth, std::vector<std::string>& out) const {
  // Hard links may form cycles; no sane file is that deep or that large.
  check(depth < 64 && out.size() < 1'000'000,
        "{}: more than 64 levels or 1,000,000 datasets (at {}); the file is damaged or has "
        "circular links, use another file",
        label, group);
  for (const std::string& name : children(group)) {
    const std::string path = (group == "/" ? "" : group) + "/" + name;
    H5L_info_t link{};
    expect(H5Lget_info(id, path.c_str(), &link, H5P_DEFAULT) >= 0, "examine link", path);
    if (link.type != H5L_TYPE_HARD) {
      continue;
    }
    const Id object(H5Oopen(id, path.c_str(), H5P_DEFAULT));
    expect(object >= 0, "open", path);
    const H5I_type_t kind = H5Iget_type(object);
    if (kind == H5I_GROUP) {
      walk(path, depth + 1, out);
    } else if (kind == H5I_DATASET) {
      out.push_back(path);
    }
  }
}

std::vector<std::string> File::datasets() const {
  const Visit visit;
  std::vector<std::string> out;
  state_->walk("/", 0, out);
  return out;
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

std::vector<std::string> File::attributes(const std::string& path) const {
  const Visit visit;
  const Id object(H5Oopen(state_->id, path.c_str(), H5P_DEFAULT));
  std::vector<std::string> out;
  state_->expect(
      object >= 0 && H5Aiterate2(object, H5_INDEX_NAME, H5_ITER_INC, nullptr, take_name, &out) >= 0,
      "list the attributes of", path);
  return out;
}

std::string File::text(const std::string& path, const std::string& name) const {
  const Visit visit;
  const Attribute attribute(*state_, path, name);
  check(H5Tget_class(attribute.kind) == H5T_STRING && attribute.count == 1,
        "{}: attribute {} of {} is not a single string; the file is damaged, use another file",
        state_->label, name, path);
  std::string text;
  if (H5Tis_variable_str(attribute.kind) > 0) {
    state_->expect(read_variable(attribute.id, attribute.kind, text), attribute.action, path);
    return text;
  }
  text.resize(H5Tget_size(attribute.kind));
  state_->expect(H5Aread(attribute.id, attribute.kind, text.data()) >= 0, attribute.action, path);
  return text.c_str();  // up to the padding
}

std::vector<int64_t> File::integers(const std::string& path, const std::string& name) const {
  const Visit visit;
  const Attribute attribute(*state_, path, name);
  const hssize_t count = attribute.count;
  check(H5Tget_class(attribute.kind) == H5T_INTEGER && count >= 0 && count <= 64,
        "{}: attribute {} of {} is not a short list of integers; the file is damaged, use another "
        "file",
        state_->label, name, path);
  std::vector<int64_t> out(static_cast<size_t>(count));
  const bool read = out.empty() || H5Aread(attribute.id, H5T_NATIVE_INT64, out.data()) >= 0;
  state_->expect(read, attribute.action, path);
  return out;
}

void File::finish() {
  const Visit visit;
  require(state_->id >= 0, "a file is finished once", state_->label);
  const bool closed = H5Fclose(std::exchange(state_->id, -1)) >= 0;
  state_->expect(closed, "complete the file", "");
  state_->raw->finish();
  state_->expect(true, "flush it to the disk", "");
  publish(state_->temporary, state_->target);
  state_->temporary.clear();
}

}  // namespace espalier::io::hdf5
