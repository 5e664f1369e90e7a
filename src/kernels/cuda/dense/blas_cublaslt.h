#pragma once
// State of a queue for cuBLASLt: a handle and, per distinct product, the library's descriptors and
// the chosen algorithm (blas_plan.cpp).
#include <compare>
#include <functional>
#include <map>
#include <utility>

#include "src/kernels/cuda/dense/blas.h"
#include "src/kernels/cuda/dense/blas_library.h"

namespace espalier::kernels::ESPALIER_GPU {

/// Throws Failure unless `status` is success: "cuBLASLt, what: reason".
void check_blas(cublasStatus_t status, const char* what);
/// True if the library does not support the request in this form.
inline bool is_refusal(cublasStatus_t status) {
  return status == CUBLAS_STATUS_NOT_SUPPORTED || status == CUBLAS_STATUS_INVALID_VALUE;
}

/// Owns one of cuBLASLt's descriptors; `Destroy` is the library function that destroys it.
template <class Handle, cublasStatus_t (*BlasLibrary::*Destroy)(Handle)>
struct BlasOwner {
  Handle handle = nullptr;
  BlasOwner() = default;
  BlasOwner(BlasOwner&& other) noexcept : handle(std::exchange(other.handle, nullptr)) {}
  BlasOwner& operator=(BlasOwner&&) = delete;
  ~BlasOwner() {
    if (handle != nullptr) {
      static_cast<void>((blas_library().*Destroy)(handle));
    }
  }
};
using BlasProduct = BlasOwner<cublasLtMatmulDesc_t, &BlasLibrary::destroy_product>;
using BlasLayout = BlasOwner<cublasLtMatrixLayout_t, &BlasLibrary::destroy_layout>;
using BlasPreference = BlasOwner<cublasLtMatmulPreference_t, &BlasLibrary::destroy_preference>;

template <class T>
void set(const BlasProduct& to, cublasLtMatmulDescAttributes_t what, const T& value) {
  check_blas(blas_library().set_product(to.handle, what, &value, sizeof value), "attribute");
}

/// Epilogues; the library fuses at most one of them.
enum class BlasExtra : uint8_t { none, bias, gelu_slope, row_sums };

/// All properties that the choice of an algorithm depends on.
struct ProductKey {
  int64_t m, n, k, a_stride, b_stride, c_stride;
  unsigned alignment_a, alignment_b, alignment_c, alignment_addend;  ///< bytes
  unsigned alignment_extra;
  DType half;
  bool half_inputs, half_result, tf32, transpose_a, transpose_b;
  bool adds;
  bool deterministic;  ///< Stream::deterministic
  BlasExtra extra;
  auto operator<=>(const ProductKey&) const = default;
};

/// Descriptors of a product. Only the address of the epilogue's operand changes from call to call.
struct ProductPlan {
  BlasProduct product;
  BlasLayout a, b, c;
  cublasLtMatmulAlgo_t algorithm{};
  BlasExtra extra = BlasExtra::none;  ///< also `none` if the library cannot fuse it
};

class Blas {
 public:
  /// `capability`: compute capability of the device, 90 for 9.0.
  explicit Blas(int capability);
  ~Blas();
  Blas(const Blas&) = delete;
  Blas& operator=(const Blas&) = delete;

  cublasLtHandle_t handle() const { return handle_; }
  int capability() const { return capability_; }
  std::map<ProductKey, ProductPlan>& plans() { return plans_; }

 private:
  int capability_;
  cublasLtHandle_t handle_ = nullptr;
  std::map<ProductKey, ProductPlan> plans_;
};

/// The handle, CUDA stream and workspace size of a stream.
struct BlasQueue {
  Blas& blas;
  cudaStream_t native;
  size_t workspace;  ///< bytes that the library may use
};
BlasQueue blas_queue(Stream& stream);
/// The workspace size of every queue; needs no queue.
size_t blas_workspace();

/// Returns the device seconds of the kernels that `work` enqueues; waits for them.
double seconds_of(Stream& stream, const std::function<void()>& work);

/// One product with all its addresses.
struct ProductCall {
  Stream& stream;
  const Product& product;
  BlasExtra extra = BlasExtra::none;
  void* beside = nullptr;  ///< operand of the extra: bias or sums [n or m], of c's type; gelu input
  std::byte* workspace = nullptr;
};

/// True if algorithms are chosen by timing: if results need not be deterministic, or as
/// ESPALIER_TUNE_PRODUCTS in the environment sets it, 1 or 0.
bool chooses_by_clock(const Stream& stream);
/// The key that equal calls share.
ProductKey key_of(const ProductCall& call);
/// Returns the plan of a call, made at its first use. If the library cannot fuse the epilogue, the
/// plan is for the product alone.
///
/// The algorithm is the library's first choice, the same in every run, or the fastest when timed
/// here, writing to c. A product that adds to c cannot be timed, since a trial would change c. It
/// uses the algorithm of the same product without the sum, if that came before, as in a first
/// micro-batch.
const ProductPlan& plan_of(const ProductCall& call);
/// Replaces the plan by one for the product alone, after the library refused a fused epilogue that
/// it had an algorithm for.
const ProductPlan& plan_without_extra(const ProductCall& call);
/// Enqueues the call with this plan and algorithm; the result is written to `to`.
cublasStatus_t enqueue(const ProductCall& call, const ProductPlan& plan,
                       const cublasLtMatmulAlgo_t& algorithm, void* to);

}  // namespace espalier::kernels::ESPALIER_GPU
