// What is in a file: the part of hdf5.h that looks things up.
#include "io/hdf5/state.h"
#include "src/core/error.h"

namespace espalier::io::hdf5 {

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
  check(depth < 64 && out.size() < 1'000'000, "{}: too many levels or datasets (at {})", label,
        group);
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

}  // namespace espalier::io::hdf5
