#pragma once
// Kernel cases of random shapes and flags: a seed determines one case of each kind.
#include "tests/kernels/all_kernel_cases.h"
#include "tests/support/draw.h"

namespace espalier::kernels {

/// An extent up to `most`: near the sizes of vectors, tiles and blocks of threads, or any.
inline int64_t draw_extent(testing::Draw& draw, int64_t most) {
  const int64_t edge = draw.of<int64_t>({4, 8, 16, 32, 64, 128, 256, 512});
  const int64_t around = edge + draw.between(-1, 1);
  return draw.once_in(2) && around <= most ? around : draw.between(1, most);
}

inline DType draw_number(testing::Draw& draw) { return draw.of<DType>({kFp32, kBf16, kFp16}); }

/// A type that may be mixed with `dtype` in one call.
inline DType draw_beside(testing::Draw& draw, DType dtype) {
  const std::vector<DType> all = types_beside(dtype);
  return all[draw.between(0, static_cast<int64_t>(all.size()) - 1)];
}

inline Activation draw_activation(testing::Draw& draw) {
  return draw.of<Activation>({Activation::none, Activation::gelu, Activation::relu,
                              Activation::silu, Activation::gelu_erf});
}

inline void add_random_products(Cases& cases, testing::Draw& draw) {
  const auto [in, out] = kProductTypes[draw.between(0, std::ssize(kProductTypes) - 1)];
  const int64_t m = draw_extent(draw, 150), n = draw_extent(draw, 150), k = draw_extent(draw, 150);
  const GemmArgs flags{.transpose_a = draw.once_in(2),
                       .transpose_b = draw.once_in(2),
                       .accumulate = draw.once_in(2)};
  cases.push_back(gemm_case(flags, m, n, k, in, out, draw.once_in(2)));
  const GemmShape shape{m, n, k, in, out};
  const Activation f = draw.of<Activation>({Activation::gelu, Activation::relu});
  cases.push_back(gemm_activated_case(shape, f, draw.once_in(2)));
  cases.push_back(gemm_slope_case(shape, f));
  cases.push_back(gemm_addend_case(shape, draw.once_in(2)));
  const bool accumulate = draw.once_in(2);
  cases.push_back(gemm_sums_case(shape, draw.once_in(2) || in == kFp32 ? kFp32 : in, accumulate));
}

inline void add_random_attention(Cases& cases, testing::Draw& draw) {
  reference::Attention shape{
      .sequences = draw.between(1, 3),
      .tokens = draw_extent(draw, 140),
      .heads = draw.between(1, 3),
      .width = draw.once_in(2) ? 8 * draw.between(1, 16) : draw.between(1, 70)};
  const DType dtype = draw_number(draw);
  shape.causal = draw.once_in(2);
  if (draw.once_in(2)) {
    shape.kv_heads = draw.between(1, 3);
    shape.heads = shape.kv_heads * draw.between(1, 3);
    shape.window = shape.causal && draw.once_in(2) ? draw_extent(draw, 150) : 0;
    shape.scale = draw.of<float>({0, 0.1F, 0.5F});
  }
  cases.push_back(attention_case(shape, dtype));
  cases.push_back(attention_backward_case(shape, dtype));
}

inline void add_random_transformer(Cases& cases, testing::Draw& draw) {
  const DType dtype = draw_number(draw);
  const int64_t width = draw.between(1, 140);
  const int64_t heads = draw.between(1, 6), rows = draw_extent(draw, 140);
  cases.push_back(rotary_case({.sequences = draw.between(1, 3),
                               .tokens = rows,
                               .heads = heads,
                               .head_width = width + 1,
                               .width = 2 * draw.between(1, (width + 1) / 2),
                               .inverse = draw.once_in(2),
                               .positions = draw.once_in(2),
                               .before = draw.of<int64_t>({0, 3, 64})},
                              dtype));
  const GateCase gate{draw_activation(draw), rows, draw_extent(draw, 700),
                      draw.of<int64_t>({0, 4, 5})};
  cases.push_back(gated_case(gate, dtype));
  cases.push_back(gated_backward_case(gate, dtype, draw.once_in(2)));
  const HeadNormCase norm{rows, heads, width, draw.of<int64_t>({0, 3, 8})};
  cases.push_back(head_norm_case(norm, dtype, draw_beside(draw, dtype), draw.once_in(2)));
  cases.push_back(head_norm_backward_case(norm, dtype, draw_beside(draw, dtype), draw.once_in(2),
                                          draw.once_in(2)));
}

inline void add_random_rows(Cases& cases, testing::Draw& draw) {
  const int64_t rows = draw_extent(draw, 300), cols = draw_extent(draw, 700);
  const DType dtype = draw_number(draw);
  const DType out = draw_beside(draw, dtype);
  cases.push_back(column_sum_case(rows, cols, dtype, draw.once_in(2), out));
  cases.push_back(layernorm_case(rows, cols, dtype, draw.once_in(2) ? kFp32 : dtype));
  cases.push_back(layernorm_backward_case(rows, cols, dtype, draw.once_in(2), out));
  cases.push_back(layernorm_backward_over_dy_case(rows, cols, dtype));
  cases.push_back(rmsnorm_case(rows, cols, dtype, dtype));
  cases.push_back(rmsnorm_backward_case(rows, cols, dtype, true, out));
  cases.push_back(cross_entropy_case(
      rows, cols, dtype,
      draw.of<Gradient>({Gradient::absent, Gradient::beside, Gradient::in_place}),
      draw.of<float>({0, 0.05F, 0.9F})));
  cases.push_back(target_ranks_case(rows, cols, dtype, draw.once_in(2)));
  cases.push_back(distillation_case(
      rows, cols, dtype, dtype == kFp32 && draw.once_in(2),
      {.weight = draw.of<float>({0.1F, 1}), .temperature = draw.of<float>({0.5F, 1, 4})}));
  const Shape tokens{draw.between(1, 4), draw_extent(draw, 70), draw_extent(draw, 130)};
  cases.push_back(embedding_case(tokens, draw_extent(draw, 300), dtype));
  cases.push_back(embedding_backward_case(tokens, draw_extent(draw, 300), dtype));
}

inline void add_random_elements(Cases& cases, testing::Draw& draw) {
  const int64_t n = draw_extent(draw, 5000);
  const DType dtype = draw_number(draw);
  const Activation kind = draw_activation(draw);
  cases.push_back(activation_case(kind, n, dtype, 8));
  cases.push_back(activation_backward_case(kind, n, dtype, 8));
  cases.push_back(
      dropout_case(n, draw.between(0, 1000), draw.of<float>({0.1F, 0.5F, 0.9F}), dtype));
  cases.push_back(cast_case(n, dtype, draw_beside(draw, dtype), draw.once_in(2)));
  const int64_t rows = draw.between(1, 9);
  cases.push_back(ordered_sum_case(rows, n, draw.between(0, rows - 1), dtype));
  cases.push_back(fill_case(n, dtype));
  cases.push_back(sum_squares_case(n, dtype));
  cases.push_back(difference_case(n, draw.once_in(2)));
  const DynamicMap map = draw.of<DynamicMap>({DynamicMap::with_sign, DynamicMap::without_sign});
  cases.push_back(quantize_case(n, map));
  cases.push_back(dequantize_case(n, map));
  const bool split = draw.once_in(2);
  cases.push_back(predict_case(n, {.split = split,
                                   .coded = draw.once_in(2),
                                   .moments = static_cast<int>(draw.between(1, 2)),
                                   .terms = static_cast<int>(draw.between(1, 3)),
                                   .half = draw.of<DType>({kBf16, kFp16}),
                                   .alone = !split && draw.once_in(2)}));
}

inline void add_random_windows(Cases& cases, testing::Draw& draw) {
  Window window{.height = draw.between(1, 12), .width = draw.between(1, 12)};
  window.extent = draw.between(1, std::min(window.height, window.width));
  window.padding = draw.between(0, window.extent - 1);
  window.stride = draw.between(1, 3);
  const WindowCase whole{
      .window = window, .images = draw.between(1, 4), .channels = draw_extent(draw, 70)};
  const DType dtype = draw_number(draw);
  add_window_cases(cases, whole, dtype);
  WindowCase part = whole;
  part.first = draw.between(0, whole.out_rows() - 1);
  part.n = draw.between(1, whole.out_rows() - part.first);
  part.others = draw.between(0, 9);
  add_window_cases(cases, part, dtype);
  SparseConvolutionCase sparse{.images = whole,
                               .out = draw_extent(draw, 70),
                               .density = draw.of<double>({0.02, 0.1, 0.5}),
                               .form = draw.of<Form>({Form::list, Form::bitmap}),
                               .in = dtype,
                               .extra = draw.once_in(2)};
  sparse.images.others = draw.of<int64_t>({0, 5});
  sparse.result = draw.once_in(2) ? kFp32 : dtype;
  for (const Convolved which : {Convolved::forward, Convolved::input, Convolved::weight}) {
    cases.push_back(sparse_convolution_case(sparse, which));
  }
  add_batch_norm_cases(cases, {draw.between(1, 900), draw_extent(draw, 70), dtype});
  add_local_norm_cases(cases, {draw.between(1, 90),
                               draw_extent(draw, 700),
                               dtype,
                               {.extent = 2 * draw.between(0, 15) + 1}});
}

inline void add_random_states(Cases& cases, testing::Draw& draw) {
  const auto kept =
      std::make_shared<const Kept>(draw.of<Form>({Form::all, Form::list, Form::bitmap}),
                                   draw_extent(draw, 6000), draw.of<double>({0.02, 0.1, 0.5, 1}));
  const DType dtype = draw_number(draw), packed = draw_beside(draw, dtype);
  cases.push_back(gather_case(kept, dtype, draw.once_in(2), packed));
  cases.push_back(scatter_case(kept, dtype, packed));
  const DType half = draw.of<DType>({kBf16, kFp16});
  const bool at_random = draw.once_in(3);
  const StateForm form{
      .gradient = draw.once_in(2) ? kFp32 : half,
      .split = !at_random && (half == kFp16 || draw.once_in(2)),
      .coded = draw.once_in(2),
      .copy = draw.of<Copy>({Copy::absent, Copy::fp32, Copy::bf16}),
      .half = half,
      .factor = draw.once_in(2) ? std::optional<double>() : std::optional<double>(0.75),
      .at_random = at_random};
  for (const RuleCase& rule : rule_cases()) {
    cases.push_back(update_case(rule, kept, form));
  }
}

inline void add_random_sparse(Cases& cases, testing::Draw& draw) {
  const SparseShape shape{.tokens = draw_extent(draw, 140),
                          .rows = draw_extent(draw, 200),
                          .cols = draw_extent(draw, 200),
                          .density = draw.of<double>({0, 0.01, 0.1, 0.3, 0.9})};
  add_sparse_cases(cases, shape,
                   {.form = draw.of<Form>({Form::list, Form::bitmap}),
                    .activation = draw_activation(draw),
                    .accumulate = draw.once_in(2),
                    .bias = draw.once_in(2),
                    .strided = draw.once_in(2),
                    .lists = draw.once_in(2)});
  cases.push_back(csr_case(shape, draw.of<Form>({Form::list, Form::bitmap})));
}

inline void add_random_blocks(Cases& cases, testing::Draw& draw) {
  const Shape block = draw.once_in(2) ? Shape{16 * draw.between(1, 8), 16 * draw.between(1, 8)}
                                      : Shape{draw_extent(draw, 40), draw_extent(draw, 40)};
  const auto pattern = std::make_shared<const BlockPattern>(
      Shape{draw_extent(draw, 260), draw_extent(draw, 260)}, block, draw.of<double>({0.1, 0.3, 1}));
  const DType in = draw_number(draw);
  const bool extra = draw.once_in(2);
  const WeightCall call{.tokens = draw_extent(draw, 140),
                        .in = in,
                        .out = draw.once_in(2) ? kFp32 : in,
                        .activation = draw_activation(draw),
                        .extra = extra,
                        .bias = extra,
                        .accumulate = draw.once_in(2),
                        .margin = draw.of<int64_t>({0, 3, 8})};
  add_weight_products<BlockMatrix>(cases, pattern, call);
}

inline Cases random_cases(uint64_t number) {
  testing::Draw draw(number);
  Cases cases;
  add_random_products(cases, draw);
  add_random_attention(cases, draw);
  add_random_transformer(cases, draw);
  add_random_rows(cases, draw);
  add_random_elements(cases, draw);
  add_random_states(cases, draw);
  add_random_sparse(cases, draw);
  add_random_blocks(cases, draw);
  add_random_windows(cases, draw);
  return cases;
}

}  // namespace espalier::kernels
