#include "sparse/store/registry.h"

#include <array>

namespace espalier::sparse {
namespace {

constexpr std::array kStorages{&Storage::dense, &Storage::expanded, &Storage::sparse,
                               &Storage::tiles, &Storage::block};

}  // namespace

Registry<Storage> storages() { return kStorages; }

const Storage& storage_by_name(std::string_view name) { return find(storages(), "storage", name); }

}  // namespace espalier::sparse
