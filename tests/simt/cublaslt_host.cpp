#include <cublasLt.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <vector>

#include "src/kernels/kernels.h"
#include "tests/kernels/kernel_memory.h"

namespace espalier::simt::blas {
namespace {

template <class T>
T as(uint64_t bits) {
  T value{};
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

uint64_t bits_of(const void* value, size_t bytes) {
  uint64_t bits = 0;
  require(bytes <= sizeof bits, "attributes are scalars", bytes);
  std::memcpy(&bits, value, bytes);
  return bits;
}

template <class T>
T attribute(const ProductDescriptor& product, cublasLtMatmulDescAttributes_t what) {
  return as<T>(product.attributes[what]);
}

bool aligned(const void* pointer, uint64_t bytes) {
  return reinterpret_cast<uintptr_t>(pointer) % bytes == 0;
}

/// Arguments of a call, by value: descriptors may change before the queue runs it.
struct Call {
  ProductDescriptor product;
  LayoutDescriptor a_layout, b_layout, d_layout;
  const void *a = nullptr, *b = nullptr, *c = nullptr;
  void *d = nullptr, *workspace = nullptr;
  size_t workspace_bytes = 0;
  float beta = 0;

  bool transposed(cublasLtMatmulDescAttributes_t what) const {
    return attribute<cublasOperation_t>(product, what) == CUBLAS_OP_T;
  }
  cublasLtEpilogue_t epilogue() const {
    return attribute<cublasLtEpilogue_t>(product, CUBLASLT_MATMUL_DESC_EPILOGUE);
  }
  /// op(a) [m, k], op(b) [k, n]
  uint64_t rows_of_a() const {
    return transposed(CUBLASLT_MATMUL_DESC_TRANSA) ? a_layout.cols : a_layout.rows;
  }
  uint64_t cols_of_a() const {
    return transposed(CUBLASLT_MATMUL_DESC_TRANSA) ? a_layout.rows : a_layout.cols;
  }
  uint64_t rows_of_b() const {
    return transposed(CUBLASLT_MATMUL_DESC_TRANSB) ? b_layout.cols : b_layout.rows;
  }
  uint64_t cols_of_b() const {
    return transposed(CUBLASLT_MATMUL_DESC_TRANSB) ? b_layout.rows : b_layout.cols;
  }
};

bool fits(const LayoutDescriptor& layout) {
  return layout.rows > 0 && layout.cols > 0 && layout.stride >= static_cast<int64_t>(layout.rows);
}

cublasStatus_t judge_epilogue(const Call& call) {
  const cublasLtEpilogue_t epilogue = call.epilogue();
  if (epilogue == CUBLASLT_EPILOGUE_DGELU) {
    const auto* input =
        attribute<const void*>(call.product, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER);
    const auto stride = attribute<int64_t>(call.product, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD);
    const bool right = input != nullptr && aligned(input, 16) && stride % 8 == 0 &&
                       stride >= static_cast<int64_t>(call.d_layout.rows);
    return right ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_INVALID_VALUE;
  }
  if (epilogue != CUBLASLT_EPILOGUE_DEFAULT) {
    const auto* vector = attribute<const void*>(call.product, CUBLASLT_MATMUL_DESC_BIAS_POINTER);
    const auto type = attribute<cudaDataType_t>(call.product, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE);
    if (vector == nullptr || !aligned(vector, 16) || type != call.d_layout.type) {
      return CUBLAS_STATUS_INVALID_VALUE;
    }
  }
  if (epilogue == CUBLASLT_EPILOGUE_BIAS && call.d_layout.rows == 1) {
    return CUBLAS_STATUS_NOT_SUPPORTED;
  }
  return epilogue == CUBLASLT_EPILOGUE_BGRADB && call.rows_of_b() % 8 != 0
             ? CUBLAS_STATUS_NOT_SUPPORTED
             : CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t judge(const Call& call) {
  const bool shapes = fits(call.a_layout) && fits(call.b_layout) && fits(call.d_layout) &&
                      call.cols_of_a() == call.rows_of_b() &&
                      call.rows_of_a() == call.d_layout.rows &&
                      call.cols_of_b() == call.d_layout.cols;
  const bool types = call.a_layout.type == call.b_layout.type &&
                     (call.d_layout.type == call.a_layout.type || call.d_layout.type == CUDA_R_32F);
  return shapes && types ? judge_epilogue(call) : CUBLAS_STATUS_INVALID_VALUE;
}

DType dtype_of(cudaDataType_t type) {
  return type == CUDA_R_32F ? DType::fp32 : type == CUDA_R_16F ? DType::fp16 : DType::bf16;
}

float load(const void* from, cudaDataType_t type, int64_t i) {
  float value = 0;
  with_number(dtype_of(type),
              [&]<class Number>(Number) { value = to_float(static_cast<const Number*>(from)[i]); });
  return value;
}

void store(void* to, cudaDataType_t type, int64_t i, float value) {
  with_number(dtype_of(type), [&]<class Number>(Number) {
    static_cast<Number*>(to)[i] = from_float<Number>(value);
  });
}

/// The rows of a row-major matrix are columns here.
Tensor rows_of(const void* data, const LayoutDescriptor& layout) {
  Tensor made(const_cast<void*>(data), dtype_of(layout.type),
              {static_cast<int64_t>(layout.cols), static_cast<int64_t>(layout.rows)});
  made.stride = layout.stride;
  return made;
}

/// An operand as the library multiplies it: TF32 rounded to a mantissa of 10 bits, into `rounded`.
Tensor factor(const Call& call, const void* data, const LayoutDescriptor& layout,
              std::vector<float>& rounded) {
  Tensor rows = rows_of(data, layout);
  if (call.product.compute != CUBLAS_COMPUTE_32F_FAST_TF32 || layout.type != CUDA_R_32F) {
    return rows;
  }
  const auto* from = static_cast<const float*>(data);
  for (int64_t row = 0; row < rows.rows(); ++row) {
    for (int64_t col = 0; col < rows.cols(); ++col) {
      constexpr uint32_t kBelow = 13;  // bits that are lost
      const auto bits = std::bit_cast<uint32_t>(from[row * rows.stride + col]);
      rounded.push_back(std::bit_cast<float>((bits + (1U << (kBelow - 1U))) >> kBelow << kBelow));
    }
  }
  return Tensor(rounded.data(), DType::fp32, rows.shape);
}

/// op(a) op(b), column by column, fp32.
std::vector<float> multiply(const Call& call) {
  Arena arena;
  Stream stream(arena, 1);
  std::vector<float> sums(call.d_layout.rows * call.d_layout.cols);
  std::vector<float> rounded_a, rounded_b;
  kernels::computing_tables().back()->gemm(
      stream, {.a = factor(call, call.b, call.b_layout, rounded_b),
               .b = factor(call, call.a, call.a_layout, rounded_a),
               .c = Tensor(sums.data(), DType::fp32,
                           {static_cast<int64_t>(call.d_layout.cols),
                            static_cast<int64_t>(call.d_layout.rows)}),
               .transpose_a = call.transposed(CUBLASLT_MATMUL_DESC_TRANSB),
               .transpose_b = call.transposed(CUBLASLT_MATMUL_DESC_TRANSA)});
  return sums;
}

/// Slope of gelu in the tanh form, as in the library: other bits than our kernels'.
float gelu_slope(float x) {
  const float root = std::sqrt(2 / 3.14159265F);
  const float t = std::tanh(root * (x + 0.044715F * x * x * x));
  return 0.5F * (1 + t) + 0.5F * x * (1 - t * t) * root * (1 + 3 * 0.044715F * x * x);
}

void finish(const Call& call, const std::vector<float>& sums) {
  const cudaDataType_t type = call.d_layout.type;
  const cublasLtEpilogue_t epilogue = call.epilogue();
  const auto* bias = attribute<const void*>(call.product, CUBLASLT_MATMUL_DESC_BIAS_POINTER);
  const auto* input =
      attribute<const void*>(call.product, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER);
  const auto input_stride = attribute<int64_t>(call.product, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD);
  const auto rows = static_cast<int64_t>(call.d_layout.rows);
  const auto cols = static_cast<int64_t>(call.d_layout.cols);
  for (int64_t j = 0; j < cols; ++j) {
    for (int64_t i = 0; i < rows; ++i) {
      const int64_t at = j * call.d_layout.stride + i;
      float sum = sums[j * rows + i];
      sum += call.beta != 0 ? call.beta * load(call.c, type, at) : 0;
      sum += epilogue == CUBLASLT_EPILOGUE_BIAS ? load(bias, type, i) : 0;
      if (epilogue == CUBLASLT_EPILOGUE_DGELU) {
        sum *= gelu_slope(load(input, type, j * input_stride + i));
      }
      store(call.d, type, at, sum);
    }
  }
}

/// Adds the sums of op(b)'s columns.
void add_up(const Call& call) {
  auto* sums = attribute<void*>(call.product, CUBLASLT_MATMUL_DESC_BIAS_POINTER);
  const bool transposed = call.transposed(CUBLASLT_MATMUL_DESC_TRANSB);
  for (int64_t j = 0; j < static_cast<int64_t>(call.cols_of_b()); ++j) {
    float sum = 0;
    for (int64_t l = 0; l < static_cast<int64_t>(call.rows_of_b()); ++l) {
      const int64_t at = transposed ? l * call.b_layout.stride + j : j * call.b_layout.stride + l;
      sum += load(call.b, call.b_layout.type, at);
    }
    store(sums, call.d_layout.type, j, sum);
  }
}

void run(const Call& call) {
  std::memset(call.workspace, 0xff,
              call.workspace_bytes);  // NaN: the library may overwrite its workspace
  finish(call, multiply(call));
  if (call.epilogue() == CUBLASLT_EPILOGUE_BGRADB) {
    add_up(call);
  }
}

}  // namespace

const char* cublasLtGetStatusString(cublasStatus_t status) {
  return status == CUBLAS_STATUS_SUCCESS         ? "success"
         : status == CUBLAS_STATUS_INVALID_VALUE ? "invalid value"
                                                 : "not supported";
}

cublasStatus_t cublasLtCreate(cublasLtHandle_t* made) {
  *made = new Context;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtDestroy(cublasLtHandle_t handle) {
  delete handle;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t* made, cublasComputeType_t compute,
                                        cudaDataType_t scale) {
  *made = new ProductDescriptor{.compute = compute};
  return scale == CUDA_R_32F ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_INVALID_VALUE;
}
cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t product) {
  delete product;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t product,
                                              cublasLtMatmulDescAttributes_t what,
                                              const void* value, size_t bytes) {
  product->attributes[what] = bits_of(value, bytes);
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t* made, cudaDataType_t type,
                                          uint64_t rows, uint64_t cols, int64_t stride) {
  *made = new LayoutDescriptor{type, rows, cols, stride};
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t layout) {
  delete layout;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t* made) {
  *made = new PreferenceDescriptor;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t preference) {
  delete preference;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t preference,
                                                    cublasLtMatmulPreferenceAttributes_t what,
                                                    const void* value, size_t bytes) {
  preference->attributes[what] = bits_of(value, bytes);
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t handle, cublasLtMatmulDesc_t product,
                                              cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                              cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                              cublasLtMatmulPreference_t preference, int most,
                                              cublasLtMatmulHeuristicResult_t* results,
                                              int* found) {
  ++handle->choices;
  const Call call{.product = *product, .a_layout = *a, .b_layout = *b, .d_layout = *d};
  const cublasStatus_t status = c == d && most > 0 ? judge(call) : CUBLAS_STATUS_INVALID_VALUE;
  constexpr double kSeconds[] = {3e-6, 1e-6, 2e-6};  // the first is not the fastest
  *found = status == CUBLAS_STATUS_SUCCESS ? std::min(most, 3) : 0;
  for (int i = 0; i < *found; ++i) {
    results[i].algo = {
        .seconds = kSeconds[i], .preference = *preference, .epilogue = call.epilogue()};
  }
  return status;
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t handle, cublasLtMatmulDesc_t product,
                              const void* alpha, const void* a, cublasLtMatrixLayout_t a_layout,
                              const void* b, cublasLtMatrixLayout_t b_layout, const void* beta,
                              const void* c, cublasLtMatrixLayout_t c_layout, void* d,
                              cublasLtMatrixLayout_t d_layout,
                              const cublasLtMatmulAlgo_t* algorithm, void* workspace,
                              size_t workspace_bytes, cudaStream_t stream) {
  const Call call{.product = *product,
                  .a_layout = *a_layout,
                  .b_layout = *b_layout,
                  .d_layout = *d_layout,
                  .a = a,
                  .b = b,
                  .c = c,
                  .d = d,
                  .workspace = workspace,
                  .workspace_bytes = workspace_bytes,
                  .beta = *static_cast<const float*>(beta)};
  const bool unscaled = *static_cast<const float*>(alpha) == 1;
  const uint64_t* preference = algorithm->preference.attributes;
  const bool chosen_for = algorithm->epilogue == call.epilogue() &&
                          workspace_bytes >= preference[CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES] &&
                          aligned(a, preference[CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES]) &&
                          aligned(b, preference[CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES]) &&
                          aligned(c, preference[CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES]) &&
                          aligned(d, preference[CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES]);
  const bool rounds_once = preference[CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK] ==
                           CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
  if (!chosen_for || !rounds_once || c_layout != d_layout || !unscaled) {
    return CUBLAS_STATUS_INVALID_VALUE;
  }
  const bool refused = call.epilogue() == CUBLASLT_EPILOGUE_BIAS && call.rows_of_b() == 1;
  const cublasStatus_t status = refused ? CUBLAS_STATUS_NOT_SUPPORTED : judge(call);
  if (status == CUBLAS_STATUS_SUCCESS) {
    handle->seconds += algorithm->seconds;
    stream->enqueue([call] { run(call); });
  }
  return status;
}

}  // namespace espalier::simt::blas
