#pragma once
// What a queue keeps for cuBLASLt: its handle, and for each product that was seen the library's
// descriptors and the algorithm chosen (blas_plan.cpp).
#include <compare>
#include <functional>
#include <map>
#include <utility>

#include "src/kernels/cuda/dense/blas.h"
#include "src/kernels/cuda/dense/blas_library.h"

namespace espalier::kernels::ESPALIER_GPU {

/// Throws Failure unless `status` is success: "cuBLASLt, what: reason".
void check_blas(cublasStatus_t status, const char* what);
/// The library cannot do what it was asked for, in this form.
inline bool is_refusal(cublasStatus_t status) {
  return status == CUBLAS_STATUS_NOT_SUPPORTED || status == CUBLAS_STATUS_INVALID_VALUE;
}

/// Owns one of cuBLASLt's descriptors; `Destroy`: which of the library's functions ends it.
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

/// Of operands in 8 bits; the library's first one is b.
inline void set_scales(const BlasProduct& to, const Product& product) {
  set(to, CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, product.b_scale);
  set(to, CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, product.a_scale);
}

/// What comes with a product; the library does one of them at a time.
enum class BlasExtra : uint8_t { none, bias, gelu_slope, row_sums };

/// What the choice of an algorithm depends on.
struct ProductKey {
  int64_t m, n, k, a_stride, b_stride, c_stride;
  unsigned alignment_a, alignment_b, alignment_c, alignment_addend;  ///< bytes
  unsigned alignment_extra;
  DType half;
  bool half_inputs, half_result, tf32, transpose_a, transpose_b;
  bool adds;
  bool deterministic;  ///< Stream::deterministic
  Float8 a_format, b_format;
  bool by_factors;
  BlasExtra extra;
  auto operator<=>(const ProductKey&) const = default;
};

/// A product as the library knows it. Only addresses, of the extra and of scales, are others from
/// call to call.
struct ProductPlan {
  BlasProduct product;
  BlasLayout a, b, c;
  cublasLtMatmulAlgo_t algorithm{};
  BlasExtra extra = BlasExtra::none;  ///< none, too, where the library cannot do it
  bool possible = true;               ///< products in 8 bits alone: false where it has no algorithm
};

class Blas {
 public:
  /// `capability`: of the device, 90 for 9.0.
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

/// Where the work of a stream goes.
struct BlasQueue {
  Blas& blas;
  cudaStream_t native;
  size_t workspace;  ///< bytes that the library may use
};
BlasQueue blas_queue(Stream& stream);
/// Of every queue; known without one.
size_t blas_workspace();

/// Seconds that the device takes for what `work` asks of the stream; waits for it.
double seconds_of(Stream& stream, const std::function<void()>& work);

/// One product with all its addresses.
struct ProductCall {
  Stream& stream;
  const Product& product;
  BlasExtra extra = BlasExtra::none;
  void* beside = nullptr;  ///< of the extra: bias or sums [n or m], of c's type, or gelu's input
  std::byte* workspace = nullptr;
};

/// Whether algorithms are chosen by the clock: where results need not be deterministic, or as
/// ESPALIER_TUNE_PRODUCTS in the environment says, 1 or 0.
bool chooses_by_clock(const Stream& stream);
/// What a call shares with others of its kind.
ProductKey key_of(const ProductCall& call);
/// The plan of a call, made at its first use. Where the library cannot do the extra, it is for the
/// product alone. Its algorithm is the library's first choice, the same in every run, or by the
/// clock: the fastest, timed here into c. What is added to c cannot be tried: it has the algorithm
/// of the same product that is not, where that came before, as in a first micro-batch.
const ProductPlan& plan_of(const ProductCall& call);
/// Another in its place, for the product alone: the library refused what it had an algorithm for.
const ProductPlan& plan_without_extra(const ProductCall& call);
/// Asks for the call by this plan and algorithm, with the result in `to`.
cublasStatus_t ask(const ProductCall& call, const ProductPlan& plan,
                   const cublasLtMatmulAlgo_t& algorithm, void* to);

}  // namespace espalier::kernels::ESPALIER_GPU
