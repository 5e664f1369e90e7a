#include "pruning/candidate.h"

#include <cmath>

#include "src/core/error.h"

namespace espalier::pruning {

void check_sparsity(double sparsity) {
  check(sparsity >= 0 && sparsity < 1,
        "pruning: sparsity = {} is out of range; set the share of zeros, at least 0 and below 1, "
        "such as 0.9",
        sparsity);
}

int64_t kept_count(int64_t size, double sparsity) {
  return std::llround((1 - sparsity) * static_cast<double>(size));
}

}  // namespace espalier::pruning
