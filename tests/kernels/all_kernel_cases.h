#pragma once
// All kernel cases; see kernel_cases.h.
#include "tests/kernels/kernel_cases_batch_norm.h"
#include "tests/kernels/kernel_cases_block.h"
#include "tests/kernels/kernel_cases_generation.h"
#include "tests/kernels/kernel_cases_local_norm.h"
#include "tests/kernels/kernel_cases_memory.h"
#include "tests/kernels/kernel_cases_sparse.h"
#include "tests/kernels/kernel_cases_sparse_convolution.h"
#include "tests/kernels/kernel_cases_states.h"
#include "tests/kernels/kernel_cases_transformer.h"
#include "tests/kernels/kernel_cases_window.h"

namespace espalier::kernels {

/// Adds an update by one rule. Rules take turns, so that each meets every form of the state.
inline void add_update(Cases& cases, const KeptPointer& kept, const StateForm& form) {
  static size_t turn = 0;
  cases.push_back(update_case(rule_cases().at(turn++ % rule_cases().size()), kept, form));
}

/// Cases in fp16, which uses the code paths of bf16 except for conversions.
inline void add_fp16_index_cases(Cases& cases, const KeptPointer& kept) {
  for (const auto& [dtype, packed] :
       {std::pair{kFp32, kFp16}, std::pair{kFp16, kFp32}, std::pair{kFp16, kFp16}}) {
    cases.push_back(gather_case(kept, dtype, dtype == kFp32, packed));
    cases.push_back(scatter_case(kept, dtype, packed));
  }
  for (const Copy copy : {Copy::absent, Copy::fp32, Copy::bf16}) {
    for (const bool split : {true, false}) {
      const StateForm form{.gradient = copy == Copy::fp32 ? kFp32 : kFp16,
                           .split = split,
                           .coded = copy == Copy::bf16,
                           .copy = copy,
                           .half = kFp16,
                           .at_random = !split};
      add_update(cases, kept, form);
    }
  }
}

/// Arrays large enough to be divided among threads and blocks of threads. Of the updates only some
/// forms are included.
inline void add_large_index_cases(Cases& cases, const KeptPointer& kept) {
  for (const DType dtype : {kFp32, kBf16}) {
    cases.push_back(gather_case(kept, dtype, true, kBf16));
    cases.push_back(scatter_case(kept, dtype, kBf16));
  }
  add_update(cases, kept, {.copy = Copy::fp32});
  add_update(cases, kept, {.gradient = kBf16, .split = true, .coded = true, .copy = Copy::bf16});
  add_update(cases, kept, {.coded = true, .copy = Copy::bf16, .at_random = true});
}

inline void add_index_cases(Cases& cases, const KeptPointer& kept) {
  for (const DType dtype : {kFp32, kBf16}) {
    for (const DType packed : {kFp32, kBf16}) {
      cases.push_back(gather_case(kept, dtype, false, packed));
      cases.push_back(gather_case(kept, dtype, true, packed));
      cases.push_back(scatter_case(kept, dtype, packed));
    }
  }
  for (const Copy copy : {Copy::absent, Copy::fp32, Copy::bf16}) {
    for (int flags = 0; flags < 8; flags += copy == Copy::fp32 ? 3 : 1) {
      const StateForm form{.gradient = (flags & 1) != 0 ? kBf16 : kFp32,
                           .split = (flags & 2) != 0,
                           .coded = (flags & 4) != 0,
                           .copy = copy};
      add_update(cases, kept, form);
    }
    for (const bool coded : {false, true}) {
      const StateForm form{
          .gradient = coded ? kBf16 : kFp32, .coded = coded, .copy = copy, .at_random = true};
      add_update(cases, kept, form);
    }
    add_update(cases, kept, {.copy = copy, .factor = std::nan(""), .at_random = true});
    for (const double factor : {0.75, -HUGE_VAL, std::nan("")}) {
      const bool small = copy == Copy::bf16;
      const StateForm form{.gradient = small ? kBf16 : kFp32,
                           .split = small,
                           .coded = small,
                           .copy = copy,
                           .factor = factor};
      add_update(cases, kept, form);
    }
  }
}

/// Updates of many arrays in one call, in all forms, and of arrays large enough for their own
/// launch on a GPU.
inline void add_update_cases(Cases& cases) {
  for (const RuleCase& rule : rule_cases()) {
    std::vector<Update> updates;
    for (int i = 0; i < 47; ++i) {
      const std::array<int64_t, 6> sizes{1, 300, 64, 5000, 0, 2048};
      const auto kept = std::make_shared<const Kept>(static_cast<Form>(i % 3),
                                                     sizes.at(static_cast<size_t>(i) % 6), 0.3);
      const StateForm form{.gradient = i % 2 == 0 ? kFp32 : kBf16,
                           .split = i % 4 < 2,
                           .coded = i % 5 == 0,
                           .copy = static_cast<Copy>(i / 3 % 3),
                           .at_random = i % 4 == 2};
      updates.push_back(update_of(rule, kept, form));
    }
    cases.push_back(together(rule.name, std::move(updates)));
  }
  const auto large = std::make_shared<const Kept>(Form::all, (1 << 18) + 333, 1);
  for (const Copy copy : {Copy::fp32, Copy::bf16}) {
    const bool coded = copy == Copy::bf16;
    const StateForm form{.gradient = kBf16, .split = true, .coded = coded, .copy = copy};
    add_update(cases, large, form);
  }
  for (const DType dtype : {kFp32, kBf16}) {
    std::vector<int64_t> sizes(120, 77);
    sizes[3] = 0;
    sizes[60] = 50001;
    cases.push_back(sums_case(sizes, dtype));
  }
}

inline void add_memory_cases(Cases& cases) {
  add_update_cases(cases);
  for (const DType dtype : kNumbers) {
    for (const WindowCase& shape : window_shapes()) {
      add_window_cases(cases, shape, dtype);
    }
    for (const auto& [rows, channels] : std::vector<std::pair<int64_t, int64_t>>{
             {1, 1}, {2, 3}, {50, 17}, {700, 64}, {33, 600}, {1200, 40}}) {
      add_batch_norm_cases(cases, {rows, channels, dtype});
      for (const int64_t extent : {1, 5, 31}) {
        add_local_norm_cases(cases, {rows, channels, dtype, {.extent = extent}});
      }
    }
    cases.push_back(embedding_case({2, 3, 5}, 7, dtype));
    cases.push_back(embedding_case({3, 50, 260}, 300, dtype));
    cases.push_back(embedding_case({3, 5, 36}, 30, dtype, EmbeddingForm::scaled));
    for (const auto& [rows, cols] : std::vector<std::pair<int64_t, int64_t>>{
             {1, 1}, {5, 3}, {9, 65}, {33, 256}, {9, 5001}, {200, 256}}) {
      for (const Gradient gradient : {Gradient::absent, Gradient::beside, Gradient::in_place}) {
        cases.push_back(cross_entropy_case(rows, cols, dtype, gradient));
        cases.push_back(cross_entropy_case(rows, cols, dtype, gradient, 0.1F));
        if (cols > 1 && gradient != Gradient::absent) {
          cases.push_back(impossible_target_case(rows, cols, dtype, gradient));
        }
      }
    }
    for (const auto& [rows, cols] :
         std::vector<std::pair<int64_t, int64_t>>{{1, 1}, {5, 3}, {9, 65}, {33, 256}, {9, 5001}}) {
      cases.push_back(target_ranks_case(rows, cols, dtype, false));
      cases.push_back(target_ranks_case(rows, cols, dtype, true));
      const DistillationArgs warm{.weight = 0.3F, .temperature = 2.5F, .scale = 0.25F};
      cases.push_back(distillation_case(rows, cols, dtype, false, {}));
      cases.push_back(distillation_case(rows, cols, dtype, false, warm));
      if (dtype == kFp32) {
        cases.push_back(distillation_case(rows, cols, dtype, true, warm));
        cases.push_back(distillation_case(rows, cols, dtype, true, {.weight = 1}));
      }
    }
    for (const float probability : {0.0F, 0.1F, 0.9F}) {
      cases.push_back(dropout_case(3, 62, probability, dtype));
      cases.push_back(dropout_case(50001, 13, probability, dtype));
    }
    for (const int64_t n : {1, 100, 50001}) {
      cases.push_back(fill_case(n, dtype));
      cases.push_back(ordered_sum_case(2, n, 0, dtype));
      cases.push_back(ordered_sum_case(5, n, 3, dtype));
      for (const bool accumulate : {false, true}) {
        for (const DType to : types_beside(dtype)) {
          cases.push_back(cast_case(n, dtype, to, accumulate));
        }
      }
    }
  }
  for (const int64_t n : {1, 100, 50001}) {
    cases.push_back(difference_case(n, n == 100));
    cases.push_back(difference_case(n, false, 0.5));
    cases.push_back(difference_case(n, n == 100, std::nan("")));
  }
  for (const DType dtype : kNumbers) {
    cases.push_back(embedding_backward_case({2, 3, 5}, 4, dtype));
    cases.push_back(embedding_backward_case({4, 70, 260}, 30, dtype));
    cases.push_back(embedding_backward_case({4, 70, 36}, 3, dtype, EmbeddingForm::scaled));
    // More columns than a block has threads, and more tokens than half a 16-bit number.
    cases.push_back(embedding_backward_case({2, 20, 1100}, 300, dtype));
    cases.push_back(embedding_backward_case({2, 20, 5}, 50257, dtype));
    for (const int64_t n : {1, 100, 50001}) {
      cases.push_back(sum_squares_case(n, dtype));
    }
  }
  for (const double scale : {0.0, 1e-320, 1e-90, 0.3, 7e30, 1e300, HUGE_VAL, std::nan("")}) {
    for (const double clip : {0.0, 1.0, 1e-200}) {
      cases.push_back(clip_case(scale, clip));
      cases.push_back(clip_case(scale, clip, 1024));
    }
  }
  for (const DynamicMap map : {DynamicMap::with_sign, DynamicMap::without_sign}) {
    for (const int64_t n : {1, 255, 257, 50001}) {
      cases.push_back(quantize_case(n, map));
      cases.push_back(dequantize_case(n, map));
    }
  }
  for (const int64_t n : {0, 1, 255, 257, 50001}) {
    for (int flags = 0; flags < 16; flags += n < 1000 ? 1 : 5) {
      cases.push_back(predict_case(n, {.split = (flags & 1) != 0,
                                       .coded = (flags & 2) != 0,
                                       .moments = (flags & 4) != 0 ? 2 : 1,
                                       .terms = (flags & 8) != 0 ? 3 : 1}));
    }
    cases.push_back(predict_case(n, {.split = true, .half = kFp16}));
    cases.push_back(predict_case(n, {.half = kBf16, .alone = true}));
    cases.push_back(predict_case(n, {.coded = true, .half = kFp16, .alone = true}));
  }
  for (const Form form : {Form::all, Form::list, Form::bitmap}) {
    for (const auto& [size, density] : std::vector<std::pair<int64_t, double>>{
             {1, 1.0}, {50, 0.0}, {63, 0.5}, {1000, 0.1}, {3001, 0.9}}) {
      const auto kept = std::make_shared<const Kept>(form, size, density);
      add_index_cases(cases, kept);
      add_fp16_index_cases(cases, kept);
    }
    add_large_index_cases(cases, std::make_shared<const Kept>(form, 50001, 0.1));
    add_large_index_cases(cases, std::make_shared<const Kept>(form, 60001, 0.9));
  }
}

}  // namespace espalier::kernels
