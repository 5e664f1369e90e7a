#pragma once
// Density by parameter, as data: whoever prints it decides on the form.
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "pruning/pruning.h"

namespace espalier::pruning {

struct DensityRow {
  std::string name;
  int64_t size = 0;
  int64_t kept = 0;
  double density = 1;  ///< kept / size; 1 for size 0
};

/// One row a candidate, and a last row "total".
std::vector<DensityRow> density_report(std::span<const Candidate> candidates,
                                       std::span<const sparse::Mask> masks);

}  // namespace espalier::pruning
