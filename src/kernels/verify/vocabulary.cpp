#include "src/kernels/operations/vocabulary.h"

#include "src/kernels/verify/cost.h"
#include "src/kernels/verify/rules.h"

namespace espalier::kernels {
namespace {

/// x [B, T, C] of an embedding, or its gradient, and the rows of tokens and positions.
void is_embedding(const Tensor& x, const Tensor& tokens, const Tensor& token,
                  const Tensor& position) {
  require(x.shape.rank() == 3, "x must be [B, T, C]", x.shape.text());
  is_int32("tokens", tokens);
  is_fp32("x", x);
  is_any("token", token);
  is_flat("tokens", tokens, x.rows());
  is_flat("x", x, x.count());
  is_matrix("token", token, token.rows(), x.cols());
  if (position) {
    is_any("position", position);
    is_matrix("position", position, position.rows(), x.cols());
  }
}

void covers_context(const Tensor& x, const Tensor& position) {
  require(!position || position.rows() >= x.shape[1], "positions must cover the context",
          position.rows(), x.shape[1]);
}

/// Bytes of the rows of tokens and positions that a batch selects.
double rows_traffic(const Tensor& x, const Tensor& token, const Tensor& position) {
  return static_cast<double>(x.cols()) * static_cast<double>(size_of(token.dtype)) *
         static_cast<double>(x.rows() + (position ? x.shape[1] : 0));
}

}  // namespace

void verify(const EmbeddingArgs& args) {
  is_embedding(args.x, args.tokens, args.token, args.position);
  if (args.position) {
    is_same_type("position", args.position, args.token);
  }
  if (args.positions) {
    is_int32("positions", args.positions);
    is_flat("positions", args.positions, args.x.rows());
  } else {
    covers_context(args.x, args.position);
  }
}

DryCount cost(const EmbeddingArgs& args) {
  return {elements(args.x),
          traffic(args.tokens, args.x) + rows_traffic(args.x, args.token, args.position)};
}

void verify(const EmbeddingBackwardArgs& args) {
  is_embedding(args.dx, args.tokens, args.dtoken, args.dposition);
  covers_context(args.dx, args.dposition);
}

DryCount cost(const EmbeddingBackwardArgs& args) {
  return {2 * elements(args.dx),
          traffic(args.tokens, args.dx) + 2 * rows_traffic(args.dx, args.dtoken, args.dposition)};
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
  require(args.smoothing >= 0 && args.smoothing < 1, "smoothing must be in [0, 1)", args.smoothing);
  if (args.target_ranks) {
    is_fp32_vector("target_ranks", args.target_ranks, rows);
    require(cols <= int64_t{1} << 24, "fp32 must hold the ranks of targets", cols);
  }
}

DryCount cost(const CrossEntropyArgs& args) {
  const int more = (args.smoothing > 0 ? 1 : 0) + (args.target_ranks ? 2 : 0);
  return {((args.dlogits ? 2 : 1) * (kExp + 3) + more) * elements(args.logits),
          traffic(args.logits, args.targets, args.losses, args.dlogits, args.target_ranks)};
}

void verify(const DistillationArgs& args) {
  const int64_t rows = args.logits.rows();
  const int64_t cols = args.logits.cols();
  is_fp32("logits", args.logits);
  is_matrix("logits", args.logits, rows, cols);
  is_fp32("teacher", args.teacher);
  is_matrix("teacher", args.teacher, rows, cols);
  is_int32("targets", args.targets);
  is_flat("targets", args.targets, rows);
  is_fp32_vector("losses", args.losses, rows);
  is_fp32_vector("teacher_losses", args.teacher_losses, rows);
  is_any("dlogits", args.dlogits);
  is_matrix("dlogits", args.dlogits, rows, cols);
  require(args.dlogits.data != args.logits.data ||
              (args.dlogits.dtype == DType::fp32 && args.dlogits.stride == args.logits.stride),
          "in place, dlogits must have the type and stride of logits");
  require(args.temperature > 0, "the temperature must be positive", args.temperature);
}

DryCount cost(const DistillationArgs& args) {
  return {2 * (3 * kExp + 6) * elements(args.logits),
          traffic(args.logits, args.teacher, args.targets, args.losses, args.teacher_losses,
                  args.dlogits)};
}

}  // namespace espalier::kernels
