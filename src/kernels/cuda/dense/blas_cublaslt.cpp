// cuBLASLt is column-major: row-major c = a b is column-major cᵀ = bᵀ aᵀ. So b is the first
// operand, the bias runs along the rows of its result, and sums of a's rows are those of its second
// operand (BGRADB). Accumulation is in fp32.
//
// In cuBLASLt, bias and sums have the result's type. Consequences:
// - The bias of a 16-bit result is rounded first, by a kernel of n elements in each call.
// - Sums of a shorter type, or sums added to others, pass through the workspace.
// - Sums of a longer type are left to the caller.
// - On Hopper and later, products of 16-bit operands do not fuse sums: the library's only kernels
//   with both are Ampere's (cuBLASLt 13.1).
// - Extras that the library refuses to fuse are computed after the product.
#include "src/kernels/cuda/dense/blas_cublaslt.h"

#include <algorithm>

#include "src/kernels/cuda/table.h"

namespace espalier::kernels::ESPALIER_GPU {
namespace {

/// The library reads vectors and matrices 16 bytes at a time.
bool is_aligned(const void* pointer) { return reinterpret_cast<uintptr_t>(pointer) % 16 == 0; }

DType type_of_result(const Product& p) { return p.half_result ? p.half : DType::fp32; }

/// The library cannot add to the result after gelu's slope, and reads the slope's input in rows of
/// whole 16-byte pieces.
bool has_slope(const Product& p) {
  return p.gelu_slope_of != nullptr && p.half_result && p.addend == nullptr &&
         p.c_stride % 8 == 0 && p.k > 1 && is_aligned(p.gelu_slope_of);
}

bool has_row_sums(const Product& p, int capability) {
  constexpr int kHopper = 90;
  return p.row_sums && (p.row_sums.dtype != DType::fp32 || !p.half_result) && p.n > 1 &&
         (!p.half_inputs || capability < kHopper);
}

/// Sets the extra and the address of its vector or matrix. `spare`: workspace for a vector.
void add_extra(ProductCall& call, std::byte* spare) {
  const Product& p = call.product;
  const DType type = type_of_result(p);
  if (p.bias != nullptr) {
    auto* bias = const_cast<float*>(p.bias);
    call.extra = BlasExtra::bias;
    call.beside = p.half_result || !is_aligned(bias) ? spare : static_cast<void*>(bias);
    if (call.beside == spare) {
      cast(call.stream, {.x = Tensor(bias, DType::fp32, {p.n}), .y = Tensor(spare, type, {p.n})});
    }
  } else if (has_slope(p)) {
    call.extra = BlasExtra::gelu_slope;
    call.beside = const_cast<void*>(p.gelu_slope_of);
  } else if (has_row_sums(p, blas_queue(call.stream).blas.capability())) {
    const bool straight =
        !p.accumulate_sums && p.row_sums.dtype == type && is_aligned(p.row_sums.data);
    call.extra = BlasExtra::row_sums;
    call.beside = straight ? p.row_sums.data : spare;
  }
}

/// Enqueues the product; if the library refuses, enqueues it again without the extra.
const ProductPlan& enqueue(const ProductCall& call) {
  const ProductPlan* plan = &plan_of(call);
  cublasStatus_t status = enqueue(call, *plan, plan->algorithm, call.product.c);
  if (is_refusal(status) && plan->extra != BlasExtra::none) {
    plan = &plan_without_extra(call);
    status = enqueue(call, *plan, plan->algorithm, call.product.c);
  }
  check_blas(status, "product");
  return *plan;
}

}  // namespace

void check_blas(cublasStatus_t status, const char* what) {
  check(status == CUBLAS_STATUS_SUCCESS, "cuBLASLt, {}: {}", what,
        blas_library().status_text(status));
}

Blas::Blas(int capability) : capability_(capability) {
  check_blas(blas_library().create(&handle_), "handle");
}
Blas::~Blas() { static_cast<void>(blas_library().destroy(handle_)); }

cublasStatus_t enqueue(const ProductCall& call, const ProductPlan& plan,
                       const cublasLtMatmulAlgo_t& algorithm, void* to) {
  const BlasQueue queue = blas_queue(call.stream);
  const Product& p = call.product;
  if (plan.extra == BlasExtra::gelu_slope) {
    set(plan.product, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, call.beside);
  } else if (plan.extra != BlasExtra::none) {
    set(plan.product, CUBLASLT_MATMUL_DESC_BIAS_POINTER, call.beside);
  }
  const float one = 1;
  const float beta = p.addend != nullptr ? 1 : 0;
  return blas_library().matmul(queue.blas.handle(), plan.product.handle, &one, p.b, plan.b.handle,
                               p.a, plan.a.handle, &beta, p.addend != nullptr ? p.addend : p.c,
                               plan.c.handle, to, plan.c.handle, &algorithm, call.workspace,
                               queue.workspace, queue.native);
}

size_t matmul_workspace(int64_t m, int64_t n) {
  return blas_workspace() + static_cast<size_t>(std::max(n, m)) * sizeof(float);
}

bool matmul(Stream& stream, const Product& product) {
  ProductCall call{.stream = stream,
                   .product = product,
                   .workspace = stream.workspace(matmul_workspace(product.m, product.n))};
  if (stream.arena().dry()) {
    return false;  // plans count the separate kernels too: only the library knows what it fuses
  }
  add_extra(call, call.workspace + blas_workspace());
  const ProductPlan& plan = enqueue(call);
  if (product.bias != nullptr && plan.extra != BlasExtra::bias) {
    Tensor c(product.c, type_of_result(product), {product.m, product.n});
    c.stride = product.c_stride;
    add_bias(stream, c, product.bias);
  }
  if (plan.extra == BlasExtra::row_sums && call.beside != product.row_sums.data) {
    cast(stream, {.x = Tensor(call.beside, type_of_result(product), {product.m}),
                  .y = product.row_sums,
                  .accumulate = product.accumulate_sums});
  }
  return plan.extra == BlasExtra::gelu_slope || plan.extra == BlasExtra::row_sums;
}

}  // namespace espalier::kernels::ESPALIER_GPU
