#include "src/model/layers/head.h"

#include <algorithm>

namespace espalier::model {
namespace {

/// Logits are computed for some rows at a time.
struct Chunks {
  int64_t rows;
  int64_t stride;  ///< elements from one row to the next
};

/// A chunk's logits, fp32, are small beside the other activations. CPU: 1 MiB, within the cache, or
/// 256 rows: each chunk reads and writes the whole fp32 gradient of the weight. Device: 1 GiB
/// (GPT-2: 5,248 rows), for the same reason, in rows of whole 128 bytes, which load in large
/// pieces.
Chunks chunks_of(int64_t vocabulary, bool on_device) {
  if (!on_device) {
    constexpr int64_t kBytes = int64_t{1} << 20U;
    constexpr int64_t kRows = 256;
    return {.rows = std::max(kBytes / (vocabulary * 4), kRows), .stride = vocabulary};
  }
  constexpr int64_t kBytes = int64_t{1} << 30U;
  constexpr int64_t kColumns = 64;
  constexpr int64_t kRows = 128;
  const int64_t stride = (vocabulary + kColumns - 1) / kColumns * kColumns;
  return {.rows = std::max<int64_t>(kBytes / (stride * 4) / kRows, 1) * kRows, .stride = stride};
}

}  // namespace

Head::Head(const Options& options)
    : options_(options),
      norm_(options.norm, "norm", options.embedding.width, sparse::Scaling::logits,
            options.norm_epsilon),
      linear_(options.embedding.tied
                  ? Linear::tied_to(std::string(kTokenEmbedding), options.embedding.width,
                                    options.embedding.vocabulary)
                  : Linear("head", options.embedding.width, options.embedding.vocabulary,
                           {.bias = false, .prunable = false, .scaling = sparse::Scaling::base})) {}

std::vector<sparse::ParameterSpec> Head::parameters() const {
  auto all = norm_.parameters();
  for (auto& spec : linear_.parameters()) {
    all.push_back(spec);
  }
  return all;
}

std::vector<sparse::ParameterSpec> Head::borrowed() const {
  return options_.embedding.tied ? std::vector<sparse::ParameterSpec>{Embedding(options_.embedding)
                                                                          .parameters()
                                                                          .front()}
                                 : std::vector<sparse::ParameterSpec>{};
}

void Head::bind(sparse::Store& store, const kernels::Kernels& kernels) {
  norm_.bind(store);
  linear_.bind(store, kernels);
}

Tensor Head::forward(Pass& pass, const Tensor& x) {
  Tensor gradient;
  if (pass.training) {
    gradient = pass.tape.push("residual gradient", DType::fp32, x.shape);
  }
  const Tape::Scope temporaries(pass.tape);
  const Norm::Saved norm = norm_.prepare(pass, x);
  const Tensor normed = pass.tape.push("norm", pass.dtype, x.shape);
  norm_.forward(pass, norm, normed);
  const int64_t chunk =
      chunks_of(options_.embedding.vocabulary, pass.stream.arena().on_device()).rows;
  const auto all_chunks = [&](const Tensor& sum) {
    for (int64_t first = 0; first < x.rows(); first += chunk) {
      loss_chunk(pass, normed, first, std::min(chunk, x.rows() - first), sum);
    }
  };
  if (pass.training && pass.dtype != DType::fp32 && x.rows() > chunk) {
    // Each addition to a 16-bit gradient rounds it: chunks are added in fp32, and rounded once.
    linear_.weight().accumulate_computed(pass.stream, pass.accumulate, all_chunks);
  } else {
    all_chunks({});
  }
  if (pass.training) {
    pass.kernels.fill(pass.stream, {.x = gradient});
    norm_.backward(pass, norm, normed, gradient);
    pass.tape.save(this, gradient);
  }
  return {};
}

Tensor Head::backward(Pass& pass, const Tensor& /*dy*/) { return pass.tape.saved<Tensor>(this); }

Tensor Head::logits(Pass& pass, const Tensor& x) {
  const Tensor out =
      pass.tape.push("logits", DType::fp32, Shape{x.rows(), options_.embedding.vocabulary});
  const Tensor normed = pass.tape.push("norm", pass.dtype, x.shape);
  norm_.forward(pass, norm_.prepare(pass, x), normed);
  linear_.forward(pass, {.x = normed, .y = out});
  return out;
}

void Head::loss_chunk(Pass& pass, const Tensor& normed, int64_t first, int64_t rows,
                      const Tensor& sum) {
  const Tape::Scope temporaries(pass.tape);
  const int64_t vocabulary = options_.embedding.vocabulary;
  const Shape shape{rows, chunks_of(vocabulary, pass.stream.arena().on_device()).stride};
  const Tensor input = normed.row_range(first, rows);
  const Tensor logits =
      pass.tape.push("logits of a chunk", DType::fp32, shape).column_range(0, vocabulary);
  linear_.forward(pass, {.x = input, .y = logits});
  Tensor dlogits;
  if (pass.training) {
    dlogits = pass.dtype == DType::fp32
                  ? logits
                  : pass.tape.push("logits gradient of a chunk", pass.dtype, shape)
                        .column_range(0, vocabulary);
  }
  compute_losses(pass, first, logits, dlogits);
  if (pass.training) {
    if (sum) {
      pass.kernels.gemm(
          pass.stream,
          {.a = dlogits, .b = input, .c = sum, .transpose_a = true, .accumulate = first > 0});
    } else {
      linear_.backward_weight(pass, input, dlogits, pass.accumulate || first > 0);
    }
    linear_.backward_input(pass, {.dy = dlogits, .dx = input});
  }
}

}  // namespace espalier::model
