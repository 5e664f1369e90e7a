#pragma once
// The network of the files in the corpora of weights: two matrices that may be pruned, and a bias.
#include "sparse/store/store.h"
#include "src/kernels/kernels.h"

namespace espalier::fuzz {

inline std::vector<sparse::ParameterSpec> small_specs() {
  return {{.name = "a", .shape = Shape{6, 10}, .prunable = true, .decay = true},
          {.name = "a.bias", .shape = Shape{6}},
          {.name = "b", .shape = Shape{8, 4}, .prunable = true, .decay = true}};
}

struct SmallStore {
  Arena arena;
  Stream stream{arena, 1};
  sparse::Store store{stream, kernels::by_name("cpu"), small_specs(), {.feedback = true}};
};

}  // namespace espalier::fuzz
