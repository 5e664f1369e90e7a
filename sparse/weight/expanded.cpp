// Storage "expanded": the dense matrix lives for one product. Rebuilding it costs one pass over N K
// elements, a product 2 R flops for each of them.
#include "sparse/weight/verbs.h"

namespace espalier::sparse {
namespace {

void apply(Stream& stream, const WeightParts& parts, const Weight::Apply& args) {
  dense_apply(stream, parts, parts.store.expand(parts.parameter), args);
}

void apply_transposed(Stream& stream, const WeightParts& parts,
                      const Weight::ApplyTransposed& args) {
  dense_apply_transposed(stream, parts, parts.store.expand(parts.parameter), args);
}

constexpr Verbs kVerbs{apply, apply_transposed, dense_accumulate_gradient};

}  // namespace

constinit const Storage Storage::expanded{
    .name = "expanded",
    .help = "kept values; the dense matrix is rebuilt in scratch before each product",
    .dense_products = true,
    .verbs = &kVerbs};

}  // namespace espalier::sparse
