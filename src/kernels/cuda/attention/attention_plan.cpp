#include "src/kernels/cuda/attention/attention_plan.h"

#include "src/core/error.h"
#include "src/kernels/cuda/cudnn/library.h"

namespace espalier::kernels::ESPALIER_GPU {
namespace {

using cudnn::Data;
using cudnn::Pointwise;
using cudnn::Reduction;
using Id = AttentionTensor;

constexpr int64_t id(Id tensor) { return static_cast<int64_t>(tensor); }

/// The shape with rows and columns exchanged.
CudnnShape transposed(CudnnShape shape) {
  std::swap(shape.extents[2], shape.extents[3]);
  std::swap(shape.strides[2], shape.strides[3]);
  return shape;
}

class Graphs {
 public:
  explicit Graphs(const AttentionKey& key) : key_(key) {
    const auto& [backward, causal, deterministic, B, T, H, D] = key;
    square_ = {{B, H, T, T}, {H * T * T, T * T, T, 1}};
    column_ = {{B, H, T, 1}, {H * T, T, 1, 1}};
    part_ = {{B, H, T, D}, {3 * H * D * T, D, 3 * H * D, 1}};
    whole_ = {{B, H, T, D}, {H * D * T, D, H * D, 1}};
    by_heads_ = {{B, H, T, D}, {H * T * D, T * D, D, 1}};
    graph_.number(id(Id::scale));
    if (causal) {
      graph_.number(id(Id::minus_infinity));
    }
  }

  CudnnObject forward(const CudnnTarget& target) {
    graph_.tensor(id(Id::q), Data::bf16, part_);
    graph_.tensor(id(Id::k), Data::bf16, transposed(part_));
    graph_.tensor(id(Id::v), Data::bf16, part_);
    graph_.tensor(id(Id::out), Data::bf16, whole_);
    graph_.tensor(id(Id::lse), Data::fp32, column_);
    const int64_t s = masked(scaled(graph_.matmul(id(Id::q), id(Id::k), scores())));
    const int64_t top = graph_.reduce(Reduction::max, s, rows());
    const int64_t e = exponential(graph_.pointwise(Pointwise::subtract, s, top, scores()));
    const int64_t sum = graph_.reduce(Reduction::add, e, rows());
    const int64_t log = graph_.pointwise(Pointwise::log, sum, rows());
    graph_.pointwise(Pointwise::add, top, log, id(Id::lse));
    const int64_t p =
        graph_.pointwise(Pointwise::divide, e, sum, graph_.between(Data::bf16, square_));
    graph_.matmul(p, id(Id::v), id(Id::out));
    return graph_.finish(target);
  }

  CudnnObject backward(const CudnnTarget& target) {
    name_gradients();
    const int64_t product = graph_.pointwise(Pointwise::multiply, id(Id::dout), id(Id::out),
                                             graph_.between(Data::fp32, whole_));
    const int64_t sums = graph_.reduce(Reduction::add, product, rows());
    graph_.pointwise(Pointwise::multiply, sums, id(Id::one), id(Id::delta));

    const int64_t s = scaled(graph_.matmul(id(Id::q), id(Id::k), scores()));
    const int64_t p =
        exponential(masked(graph_.pointwise(Pointwise::subtract, s, id(Id::lse), scores())));
    graph_.matmul(graph_.reshape(p, turned()), id(Id::dout), id(Id::dv));

    const int64_t dp = graph_.matmul(id(Id::dout), id(Id::v), scores());
    const int64_t centred = graph_.pointwise(Pointwise::subtract, dp, id(Id::delta), scores());
    const int64_t ds = scaled(graph_.pointwise(Pointwise::multiply, centred, p, scores()));
    graph_.matmul(graph_.reshape(ds, turned()), id(Id::q), id(Id::dk));
    const int64_t k = graph_.reshape(id(Id::k), graph_.between(Data::bf16, part_));
    if (key_.deterministic) {
      graph_.matmul(ds, k, id(Id::dq));
    } else {
      graph_.tensor(id(Id::dq_sum), Data::fp32, by_heads_);
      graph_.pointwise(Pointwise::identity, graph_.matmul(ds, k, id(Id::dq_sum)), id(Id::dq));
    }
    return graph_.finish(target);
  }

 private:
  void name_gradients() {
    graph_.number(id(Id::one));
    graph_.tensor(id(Id::q), Data::bf16, part_);
    graph_.tensor(id(Id::k), Data::bf16, transposed(part_));
    graph_.tensor(id(Id::v), Data::bf16, transposed(part_));
    graph_.tensor(id(Id::out), Data::bf16, whole_);
    graph_.tensor(id(Id::dout), Data::bf16, whole_);
    graph_.tensor(id(Id::lse), Data::fp32, column_);
    graph_.tensor(id(Id::delta), Data::fp32, column_);
    for (const Id gradient : {Id::dq, Id::dk, Id::dv}) {
      graph_.tensor(id(gradient), Data::bf16, part_);
    }
  }

  int64_t scores() { return graph_.between(Data::fp32, square_); }
  int64_t rows() { return graph_.between(Data::fp32, column_); }
  int64_t turned() { return graph_.between(Data::bf16, transposed(square_)); }

  int64_t scaled(int64_t x) {
    return graph_.pointwise(Pointwise::multiply, x, id(Id::scale), scores());
  }
  int64_t exponential(int64_t x) { return graph_.pointwise(Pointwise::exp, x, scores()); }
  int64_t masked(int64_t x) {
    if (!key_.causal) {
      return x;
    }
    const int64_t row = graph_.index(x, 2, graph_.between(Data::int32, square_));
    const int64_t column = graph_.index(x, 3, graph_.between(Data::int32, square_));
    const int64_t seen = graph_.pointwise(Pointwise::greater_or_equal, row, column,
                                          graph_.between(Data::boolean, square_));
    return graph_.select(x, id(Id::minus_infinity), seen, scores());
  }

  AttentionKey key_;
  CudnnShape square_, column_, part_, whole_, by_heads_;
  CudnnGraph graph_;
};

}  // namespace

size_t attention_workspace(const AttentionKey& key) {
  constexpr size_t kMore = size_t{1} << 20;  // cuDNN 9.19 and 9.26 use 256 bytes of it
  constexpr int64_t kTile = 128;
  const int64_t rows = (key.tokens + kTile - 1) / kTile * kTile;
  const size_t row = key.deterministic ? static_cast<size_t>(rows) * sizeof(uint16_t)
                                       : static_cast<size_t>(key.width) * sizeof(float);
  return kMore + (key.backward ? static_cast<size_t>(key.sequences * key.heads * rows) * row : 0);
}

size_t attention_dq_sum(const AttentionKey& key) {
  const int64_t elements = key.sequences * key.heads * key.tokens * key.width;
  return key.deterministic ? 0 : static_cast<size_t>(elements) * sizeof(float);
}

CudnnSupport plan_attention(const AttentionKey& key, const CudnnTarget& target) {
  constexpr std::array kVaries{cudnn::Note::nondeterministic};
  constexpr size_t kFirstOfAnyLength = 9'15'01;  // earlier: partial tiles give wrong gradients
  try {
    check(!key.backward || key.tokens % 128 == 0 ||
              cudnn_functions()->GetVersion() >= kFirstOfAnyLength,
          "cuDNN before 9.15.1 has gradients of multiples of 128 positions, not of {}", key.tokens);
    Graphs graphs(key);
    const CudnnObject graph = key.backward ? graphs.backward(target) : graphs.forward(target);
    return {.plan = std::make_shared<const CudnnPlan>(
                plan_graph(graph, target,
                           {.workspace = attention_workspace(key),
                            .excluded = std::span(kVaries).first(key.deterministic ? 1 : 0)})),
            .why_not = {}};
  } catch (const Failure& failure) {
    return {.plan = nullptr, .why_not = failure.what()};
  }
}

}  // namespace espalier::kernels::ESPALIER_GPU
