#pragma once
// Storages: how a pruned weight is held for compute. Each has the three operations of a weight
// (weight/weight.h) and the facts below, by which the store decides what is resident; unpruned
// weights are dense views of their values in all of them. Adding one: its operations in a file of
// sparse/weight, its name in the list below; tests/sparse/storage_test.cpp runs all of them.
#include <string_view>

#include "src/core/registry.h"

namespace espalier::sparse {

struct Products;

/// A member of the registry; two are equal when their names are.
struct Storage {
  std::string_view name;
  std::string_view help;
  /// Products read a dense matrix: the resident copy, or one rebuilt in scratch. Their gradient is
  /// gathered from panels of scratch.
  bool dense_products = false;
  bool dense_copy = false;    ///< a dense copy with zeros is resident
  bool whole_blocks = false;  ///< holds only masks of whole blocks, and keeps a list of them
  /// On a CPU: the forms of the positions that products read are kept until the mask changes
  /// (index/kept_tiles.h).
  bool keeps_forms = false;
  const Products* products = nullptr;

  bool operator==(const Storage& other) const { return name == other.name; }

  ESPALIER_CLASS_REGISTRY(kAll, Storage, dense, expanded, sparse, tiles, block);
};

inline Registry<Storage> storages() { return Storage::kAll; }
/// Throws Failure that lists the names.
inline const Storage& storage_by_name(std::string_view name) {
  return find(storages(), "storage", name);
}

}  // namespace espalier::sparse
