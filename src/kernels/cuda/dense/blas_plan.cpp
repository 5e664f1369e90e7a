// Descriptors of a product, and the choice of its algorithm.
#include <algorithm>
#include <cstdlib>
#include <limits>
#include <span>
#include <string_view>
#include <vector>

#include "src/kernels/cuda/dense/blas_cublaslt.h"

namespace espalier::kernels::ESPALIER_GPU {
namespace {

template <class T>
void set(const BlasPreference& to, cublasLtMatmulPreferenceAttributes_t what, const T& value) {
  check_blas(blas_library().set_preference(to.handle, what, &value, sizeof value), "preference");
}

cudaDataType_t type_of(const Product& p, bool half) {
  return !half ? CUDA_R_32F : p.half == DType::fp16 ? CUDA_R_16F : CUDA_R_16BF;
}

/// Makes the layout of a row-major [rows, cols] matrix.
void make(BlasLayout& layout, cudaDataType_t type, int64_t rows, int64_t cols, int64_t stride) {
  check_blas(blas_library().create_layout(&layout.handle, type, static_cast<uint64_t>(cols),
                                          static_cast<uint64_t>(rows), stride),
             "layout");
}

/// The largest power of two that divides the address, at most the arena's alignment of 64: whole
/// tensors of one shape have one algorithm at every address.
unsigned alignment_of(const void* pointer) {
  const auto address = reinterpret_cast<uintptr_t>(pointer);
  return static_cast<unsigned>(std::min<uintptr_t>(64, address & (~address + 1)));
}

/// The library needs the address of the extra, for its alignment, before it chooses an algorithm.
void describe_extra(const BlasProduct& product, const ProductCall& call) {
  switch (call.extra) {
    case BlasExtra::none:
      set(product, CUBLASLT_MATMUL_DESC_EPILOGUE, CUBLASLT_EPILOGUE_DEFAULT);
      return;
    case BlasExtra::gelu_slope:
      set(product, CUBLASLT_MATMUL_DESC_EPILOGUE, CUBLASLT_EPILOGUE_DGELU);
      set(product, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, call.product.c_stride);
      set(product, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, call.beside);
      return;
    case BlasExtra::bias:
      set(product, CUBLASLT_MATMUL_DESC_EPILOGUE, CUBLASLT_EPILOGUE_BIAS);
      break;
    case BlasExtra::row_sums:
      set(product, CUBLASLT_MATMUL_DESC_EPILOGUE, CUBLASLT_EPILOGUE_BGRADB);
      break;
  }
  set(product, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE,
      type_of(call.product, call.product.half_result));
  set(product, CUBLASLT_MATMUL_DESC_BIAS_POINTER, call.beside);
}

ProductPlan describe(const ProductCall& call) {
  const Product& p = call.product;
  ProductPlan made{.extra = call.extra};
  const cublasComputeType_t arithmetic = p.tf32 ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F;
  check_blas(blas_library().create_product(&made.product.handle, arithmetic, CUDA_R_32F),
             "descriptor");
  const cublasOperation_t first = p.transpose_b ? CUBLAS_OP_T : CUBLAS_OP_N;
  const cublasOperation_t second = p.transpose_a ? CUBLAS_OP_T : CUBLAS_OP_N;
  set(made.product, CUBLASLT_MATMUL_DESC_TRANSA, first);
  set(made.product, CUBLASLT_MATMUL_DESC_TRANSB, second);
  describe_extra(made.product, call);
  make(made.a, type_of(p, p.half_inputs), p.transpose_a ? p.k : p.m, p.transpose_a ? p.m : p.k,
       p.a_stride);
  make(made.b, type_of(p, p.half_inputs), p.transpose_b ? p.n : p.k, p.transpose_b ? p.k : p.n,
       p.b_stride);
  make(made.c, type_of(p, p.half_result), p.m, p.n, p.c_stride);
  return made;
}

using Algorithms = std::vector<cublasLtMatmulAlgo_t>;

/// Returns up to `most` algorithms in the library's order of expected speed; none if it refuses.
Algorithms find_algorithms(const ProductCall& call, const ProductPlan& plan, int most) {
  const ProductKey key = key_of(call);
  const BlasQueue queue = blas_queue(call.stream);
  BlasPreference preference;
  check_blas(blas_library().create_preference(&preference.handle), "preference");
  set(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, queue.workspace);
  // Parts of a split sum are added in fp32, not in the result's type, so it is rounded once.
  set(preference, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
      uint32_t{CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE});
  set(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, key.alignment_b);
  set(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, key.alignment_a);
  set(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, key.alignment_addend);
  set(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, key.alignment_c);
  std::vector<cublasLtMatmulHeuristicResult_t> found(static_cast<size_t>(most));
  int count = 0;
  const cublasStatus_t status = blas_library().find_algorithms(
      queue.blas.handle(), plan.product.handle, plan.b.handle, plan.a.handle, plan.c.handle,
      plan.c.handle, preference.handle, most, found.data(), &count);
  if (is_refusal(status)) {
    return {};
  }
  check_blas(status, "choosing an algorithm");
  Algorithms all;
  for (const auto& result : std::span(found).first(static_cast<size_t>(count))) {
    if (result.state == CUBLAS_STATUS_SUCCESS) {
      all.push_back(result.algo);
    }
  }
  return all;
}

/// Seconds of one product: the minimum of kRuns runs after a warm-up; infinity if a run fails.
double seconds_by(const ProductCall& call, const ProductPlan& plan,
                  const cublasLtMatmulAlgo_t& algorithm) {
  constexpr int kRuns = 5;
  double best = std::numeric_limits<double>::infinity();
  for (int run = 0; run <= kRuns; ++run) {
    bool done = false;
    const double seconds = seconds_of(call.stream, [&] {
      done = enqueue(call, plan, algorithm, call.product.c) == CUBLAS_STATUS_SUCCESS;
    });
    if (!done) {
      return std::numeric_limits<double>::infinity();
    }
    best = run == 0 ? best : std::min(best, seconds);
  }
  return best;
}

/// The algorithm with the shortest run. The trials overwrite c; the caller computes c afterwards.
cublasLtMatmulAlgo_t fastest(const ProductCall& call, const ProductPlan& plan,
                             const Algorithms& candidates) {
  double best = std::numeric_limits<double>::infinity();
  cublasLtMatmulAlgo_t chosen = candidates.front();
  for (const auto& algorithm : candidates) {
    const double seconds = seconds_by(call, plan, algorithm);
    if (seconds < best) {
      best = seconds;
      chosen = algorithm;
    }
  }
  return chosen;
}

/// The plan of the same product without the addend, with the same extra; null if there is none.
const ProductPlan* same_without_adding(const ProductCall& call) {
  const auto& plans = blas_queue(call.stream).blas.plans();
  ProductKey key = key_of(call);
  key.adds = false;
  const auto found = plans.find(key);
  return found != plans.end() && found->second.extra == call.extra ? &found->second : nullptr;
}

cublasLtMatmulAlgo_t choose(const ProductCall& call, const ProductPlan& plan,
                            const Algorithms& candidates) {
  if (!chooses_by_clock(call.stream)) {
    return candidates.front();
  }
  if (call.product.addend != call.product.c) {  // trials change c
    return fastest(call, plan, candidates);
  }
  const ProductPlan* same = same_without_adding(call);
  return same != nullptr ? same->algorithm : candidates.front();
}

ProductPlan make_plan(ProductCall call) {
  constexpr int kCandidates = 8;
  ProductPlan plan = describe(call);
  const Algorithms found =
      find_algorithms(call, plan, chooses_by_clock(call.stream) ? kCandidates : 1);
  if (found.empty() && call.extra != BlasExtra::none) {
    call.extra = BlasExtra::none;
    return make_plan(call);
  }
  check(!found.empty(), "cuBLASLt has no algorithm for a product of {} x {} x {}", call.product.m,
        call.product.n, call.product.k);
  plan.algorithm = choose(call, plan, found);
  return plan;
}

}  // namespace

bool chooses_by_clock(const Stream& stream) {
  const char* setting = std::getenv("ESPALIER_TUNE_PRODUCTS");
  return setting != nullptr ? std::string_view(setting) == "1" : !stream.deterministic();
}

ProductKey key_of(const ProductCall& call) {
  const Product& p = call.product;
  return {p.m,
          p.n,
          p.k,
          p.a_stride,
          p.b_stride,
          p.c_stride,
          alignment_of(p.a),
          alignment_of(p.b),
          alignment_of(p.c),
          alignment_of(p.addend != nullptr ? p.addend : p.c),
          alignment_of(call.beside),
          p.half,
          p.half_inputs,
          p.half_result,
          p.tf32,
          p.transpose_a,
          p.transpose_b,
          p.addend != nullptr,
          call.stream.deterministic(),
          call.extra};
}

const ProductPlan& plan_of(const ProductCall& call) {
  auto& plans = blas_queue(call.stream).blas.plans();
  const ProductKey key = key_of(call);
  auto known = plans.find(key);
  if (known == plans.end()) {
    known = plans.emplace(key, make_plan(call)).first;
  }
  return known->second;
}

const ProductPlan& plan_without_extra(const ProductCall& call) {
  auto& plans = blas_queue(call.stream).blas.plans();
  const ProductKey key = key_of(call);
  ProductCall alone = call;
  alone.extra = BlasExtra::none;
  plans.erase(key);
  return plans.emplace(key, make_plan(alone)).first->second;
}

}  // namespace espalier::kernels::ESPALIER_GPU
