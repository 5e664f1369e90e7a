// cublasLt thinks in columns: row-major c = a b is column-major cᵀ = bᵀ aᵀ, so that b comes first and
// the bias runs along the rows of its result. Accumulation in fp32. A bias to a bf16 result is
// rounded to bf16 first: cublasLt adds no fp32 bias there.
#include "src/kernels/cuda/blas_cublaslt.h"

#include <algorithm>

#include "src/kernels/cuda/queue.h"
#include "src/kernels/cuda/table.h"

namespace espalier::kernels::ESPALIER_GPU {
namespace {

constexpr size_t kWorkspace = size_t{32} << 20;

void check_blas(cublasStatus_t status, const char* what) {
  check(status == CUBLAS_STATUS_SUCCESS, "cublasLt, {}: {}", what, cublasLtGetStatusString(status));
}

/// Owns one of cublasLt's descriptors.
template <class Handle, cublasStatus_t (*Destroy)(Handle)>
struct Owner {
  Handle handle = nullptr;
  Owner() = default;
  Owner(const Owner&) = delete;
  Owner& operator=(const Owner&) = delete;
  ~Owner() {
    if (handle != nullptr) {
      static_cast<void>(Destroy(handle));
    }
  }
};
using Descriptor = Owner<cublasLtMatmulDesc_t, cublasLtMatmulDescDestroy>;
using Layout = Owner<cublasLtMatrixLayout_t, cublasLtMatrixLayoutDestroy>;
using Preference = Owner<cublasLtMatmulPreference_t, cublasLtMatmulPreferenceDestroy>;

template <class T>
void set(const Descriptor& to, cublasLtMatmulDescAttributes_t what, const T& value) {
  check_blas(cublasLtMatmulDescSetAttribute(to.handle, what, &value, sizeof value), "attribute");
}
template <class T>
void set(const Preference& to, cublasLtMatmulPreferenceAttributes_t what, const T& value) {
  check_blas(cublasLtMatmulPreferenceSetAttribute(to.handle, what, &value, sizeof value),
             "preference");
}

cudaDataType_t type_of(bool half) { return half ? CUDA_R_16BF : CUDA_R_32F; }

/// Of row-major [rows, cols].
void make(Layout& layout, bool half, int64_t rows, int64_t cols, int64_t stride) {
  check_blas(cublasLtMatrixLayoutCreate(&layout.handle, type_of(half), static_cast<uint64_t>(cols),
                                        static_cast<uint64_t>(rows), stride),
             "layout");
}

/// The largest power of two up to 256 that divides the address.
unsigned alignment_of(const void* pointer) {
  const auto address = reinterpret_cast<uintptr_t>(pointer);
  return static_cast<unsigned>(std::min<uintptr_t>(256, address & (~address + 1)));
}

ProductKey key_of(const Product& p) {
  return {p.m,
          p.n,
          p.k,
          p.a_stride,
          p.b_stride,
          p.c_stride,
          alignment_of(p.a),
          alignment_of(p.b),
          alignment_of(p.c),
          p.half_inputs,
          p.half_result,
          p.transpose_a,
          p.transpose_b,
          p.accumulate,
          p.bias != nullptr};
}

struct Problem {
  Descriptor product;
  Layout a, b, c;
};

void describe(const Product& p, const void* bias, Problem& made) {
  check_blas(cublasLtMatmulDescCreate(&made.product.handle, CUBLAS_COMPUTE_32F, CUDA_R_32F),
             "descriptor");
  const cublasOperation_t first = p.transpose_b ? CUBLAS_OP_T : CUBLAS_OP_N;
  const cublasOperation_t second = p.transpose_a ? CUBLAS_OP_T : CUBLAS_OP_N;
  set(made.product, CUBLASLT_MATMUL_DESC_TRANSA, first);
  set(made.product, CUBLASLT_MATMUL_DESC_TRANSB, second);
  if (bias != nullptr) {
    set(made.product, CUBLASLT_MATMUL_DESC_EPILOGUE, CUBLASLT_EPILOGUE_BIAS);
    set(made.product, CUBLASLT_MATMUL_DESC_BIAS_POINTER, bias);
    set(made.product, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, type_of(p.half_result));
  }
  make(made.a, p.half_inputs, p.transpose_a ? p.k : p.m, p.transpose_a ? p.m : p.k, p.a_stride);
  make(made.b, p.half_inputs, p.transpose_b ? p.n : p.k, p.transpose_b ? p.k : p.n, p.b_stride);
  make(made.c, p.half_result, p.m, p.n, p.c_stride);
}

cublasLtMatmulAlgo_t choose(Blas& blas, const Problem& problem, const ProductKey& key) {
  Preference preference;
  check_blas(cublasLtMatmulPreferenceCreate(&preference.handle), "preference");
  set(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, kWorkspace);
  set(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, key.alignment_b);
  set(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, key.alignment_a);
  set(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, key.alignment_c);
  set(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, key.alignment_c);
  cublasLtMatmulHeuristicResult_t found{};
  int count = 0;
  check_blas(cublasLtMatmulAlgoGetHeuristic(blas.handle(), problem.product.handle, problem.b.handle,
                                            problem.a.handle, problem.c.handle, problem.c.handle,
                                            preference.handle, 1, &found, &count),
             "choosing an algorithm");
  check(count > 0, "cublasLt has no algorithm for a product of {} x {} x {}", key.m, key.n, key.k);
  return found.algo;
}

}  // namespace

Blas::Blas() { check_blas(cublasLtCreate(&handle_), "handle"); }
Blas::~Blas() { static_cast<void>(cublasLtDestroy(handle_)); }

void matmul(Stream& stream, const Product& product) {
  std::byte* const workspace = stream.workspace(kWorkspace + static_cast<size_t>(product.n) * 2);
  if (stream.arena().dry()) {
    return;
  }
  auto* queue = dynamic_cast<CudaQueue*>(stream.queue());
  require(queue != nullptr, "products of a device need a stream with a queue of that device");
  const void* bias = product.bias;
  if (bias != nullptr && product.half_result) {
    const Tensor rounded(workspace + kWorkspace, DType::bf16, {product.n});
    cast(stream, {Tensor(const_cast<float*>(product.bias), DType::fp32, {product.n}), rounded});
    bias = rounded.data;
  }
  Problem problem;
  describe(product, bias, problem);
  Blas& blas = queue->blas();
  const ProductKey key = key_of(product);
  auto known = blas.algorithms().find(key);
  if (known == blas.algorithms().end()) {
    known = blas.algorithms().emplace(key, choose(blas, problem, key)).first;
  }
  const float one = 1;
  const float beta = product.accumulate ? 1 : 0;
  check_blas(
      cublasLtMatmul(blas.handle(), problem.product.handle, &one, product.b, problem.b.handle,
                     product.a, problem.a.handle, &beta, product.c, problem.c.handle, product.c,
                     problem.c.handle, &known->second, workspace, kWorkspace, queue->native()),
      "product");
}

}  // namespace espalier::kernels::ESPALIER_GPU
