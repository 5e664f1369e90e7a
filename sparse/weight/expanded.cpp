// Storage "expanded": the dense matrix lives for one product. Rebuilding it costs one pass over N K
// elements, a product 2 R flops for each of them.
#include "sparse/weight/storages.h"

namespace espalier::sparse {
namespace {

void apply(Stream& stream, const WeightParts& parts, const Weight::Apply& args) {
  dense_apply(stream, parts, parts.store.expand(parts.parameter), args);
}

void apply_transposed(Stream& stream, const WeightParts& parts,
                      const Weight::ApplyTransposed& args) {
  dense_apply_transposed(stream, parts, parts.store.expand(parts.parameter), args);
}

}  // namespace

constinit const Verbs kExpandedVerbs{apply, apply_transposed, dense_accumulate_gradient};

}  // namespace espalier::sparse
