// Attributes of hdf5.h.
#include <algorithm>

#include "io/hdf5/state.h"
#include "src/core/error.h"

namespace espalier::io::hdf5 {
namespace {

herr_t take_name(hid_t, const char* name, const H5A_info_t*, void* out) {
  static_cast<std::vector<std::string>*>(out)->emplace_back(name);
  return 0;
}

}  // namespace

void File::set_text(const std::string& path, const std::string& name, const std::string& text) {
  const Visit visit;
  require(text.find('\0') == std::string::npos, "a text attribute has no NUL", name);
  const Id kind(H5Tcopy(H5T_C_S1));
  // HDF5 has no strings of length 0: an empty text is one NUL.
  const bool ready = kind >= 0 && H5Tset_size(kind, std::max<size_t>(text.size(), 1)) >= 0 &&
                     H5Tset_strpad(kind, H5T_STR_NULLPAD) >= 0 &&
                     H5Tset_cset(kind, H5T_CSET_UTF8) >= 0;
  const Id space(H5Screate(H5S_SCALAR));
  const Id attribute(ready ? H5Acreate_by_name(state_->id, path.c_str(), name.c_str(), kind, space,
                                               H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT)
                           : hid_t{-1});
  state_->expect(attribute >= 0 && H5Awrite(attribute, kind, text.c_str()) >= 0,
                 "write attribute " + name + " of", path);
}

void File::set_integers(const std::string& path, const std::string& name,
                        std::span<const int64_t> values) {
  const Visit visit;
  const hsize_t count = values.size();
  const Id space(H5Screate_simple(1, &count, nullptr));
  const Id attribute(H5Acreate_by_name(state_->id, path.c_str(), name.c_str(), H5T_STD_I64LE, space,
                                       H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT));
  const bool written = attribute >= 0 && (values.empty() || H5Awrite(attribute, H5T_NATIVE_INT64,
                                                                     values.data()) >= 0);
  state_->expect(written, "write attribute " + name + " of", path);
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
  const std::string action = "read attribute " + name + " of";
  const Id attribute(
      H5Aopen_by_name(state_->id, path.c_str(), name.c_str(), H5P_DEFAULT, H5P_DEFAULT));
  const Id kind(attribute >= 0 ? H5Aget_type(attribute) : hid_t{-1});
  state_->expect(kind >= 0, action, path);
  const Id space(H5Aget_space(attribute));
  const bool fixed = H5Tget_class(kind) == H5T_STRING && H5Tis_variable_str(kind) == 0 &&
                     H5Sget_simple_extent_npoints(space) == 1;
  check(fixed, "{}: attribute {} of {} is no text of fixed length", state_->label, name, path);
  std::string text(H5Tget_size(kind), '\0');
  state_->expect(H5Aread(attribute, kind, text.data()) >= 0, action, path);
  return text.c_str();  // up to the padding
}

std::vector<int64_t> File::integers(const std::string& path, const std::string& name) const {
  const Visit visit;
  const std::string action = "read attribute " + name + " of";
  const Id attribute(
      H5Aopen_by_name(state_->id, path.c_str(), name.c_str(), H5P_DEFAULT, H5P_DEFAULT));
  const Id space(attribute >= 0 ? H5Aget_space(attribute) : hid_t{-1});
  const Id kind(attribute >= 0 ? H5Aget_type(attribute) : hid_t{-1});
  state_->expect(space >= 0 && kind >= 0, action, path);
  const hssize_t count = H5Sget_simple_extent_npoints(space);
  check(H5Tget_class(kind) == H5T_INTEGER && count >= 0 && count <= 64,
        "{}: attribute {} of {} is no short list of integers", state_->label, name, path);
  std::vector<int64_t> out(static_cast<size_t>(count));
  const bool read = out.empty() || H5Aread(attribute, H5T_NATIVE_INT64, out.data()) >= 0;
  state_->expect(read, action, path);
  return out;
}

}  // namespace espalier::io::hdf5
