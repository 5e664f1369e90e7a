#include "src/kernels/operations/vocabulary.h"

#include "src/kernels/operations/cost.h"
#include "src/kernels/verify/rules.h"

namespace espalier::kernels {

void verify(const EmbeddingArgs& args) {
  const int64_t cols = args.x.cols();
  require(args.x.shape.rank() == 3, "x must be [B, T, C]", args.x.shape.text());
  is_int32("tokens", args.tokens);
  is_any("token", args.token);
  is_fp32("x", args.x);
  require(args.position.dtype == args.token.dtype, "token and position must have one type",
          name_of(args.token.dtype), name_of(args.position.dtype));
  is_flat("tokens", args.tokens, args.x.rows());
  is_flat("x", args.x, args.x.count());
  is_matrix("token", args.token, args.token.rows(), cols);
  is_matrix("position", args.position, args.position.rows(), cols);
  require(args.position.rows() >= args.x.shape[1], "positions must cover the context",
          args.position.rows(), args.x.shape[1]);
}

DryCount cost(const EmbeddingArgs& args) {
  const double row =
      static_cast<double>(args.x.cols()) * static_cast<double>(size_of(args.token.dtype));
  return {elements(args.x), traffic(args.tokens, args.x) +
                                row * static_cast<double>(args.x.rows() + args.x.shape[1])};
}

void verify(const EmbeddingBackwardArgs& args) {
  const int64_t cols = args.dx.cols();
  require(args.dx.shape.rank() == 3, "dx must be [B, T, C]", args.dx.shape.text());
  is_int32("tokens", args.tokens);
  is_fp32("dx", args.dx);
  is_any("dtoken", args.dtoken);
  is_any("dposition", args.dposition);
  is_flat("tokens", args.tokens, args.dx.rows());
  is_flat("dx", args.dx, args.dx.count());
  is_matrix("dtoken", args.dtoken, args.dtoken.rows(), cols);
  is_matrix("dposition", args.dposition, args.dposition.rows(), cols);
  require(args.dposition.rows() >= args.dx.shape[1], "positions must cover the context",
          args.dposition.rows(), args.dx.shape[1]);
}

DryCount cost(const EmbeddingBackwardArgs& args) {
  const double row =
      static_cast<double>(args.dx.cols()) * static_cast<double>(size_of(args.dtoken.dtype));
  return {2 * elements(args.dx),
          traffic(args.tokens, args.dx) +
              2 * row * static_cast<double>(args.dx.rows() + args.dx.shape[1])};
}

void verify(const CrossEntropyArgs& args) {
  const int64_t rows = args.logits.rows();
  const int64_t cols = args.logits.cols();
  is_any("logits", args.logits);
  is_matrix("logits", args.logits, rows, cols);
  is_int32("targets", args.targets);
  is_flat("targets", args.targets, rows);
  is_fp32_vector("losses", args.losses, rows);
  if (args.dlogits) {
    is_beside("dlogits", args.dlogits, args.logits);
    is_matrix("dlogits", args.dlogits, rows, cols);
    require(args.dlogits.data != args.logits.data || (args.dlogits.dtype == args.logits.dtype &&
                                                      args.dlogits.stride == args.logits.stride),
            "in place, dlogits must have the type and stride of logits");
  }
}

DryCount cost(const CrossEntropyArgs& args) {
  return {(args.dlogits ? 2 : 1) * (kExp + 3) * elements(args.logits),
          traffic(args.logits, args.targets, args.losses, args.dlogits)};
}

}  // namespace espalier::kernels
