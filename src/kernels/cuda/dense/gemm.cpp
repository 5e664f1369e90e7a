#include <cstddef>
#include <type_traits>

#include "src/kernels/cuda/dense/blas.h"
#include "src/kernels/cuda/table.h"

namespace espalier::kernels::ESPALIER_GPU {
namespace {

Product product_of(const Stream& stream, const GemmArgs& args) {
  return {.a = args.a.data,
          .b = args.b.data,
          .c = args.c.data,
          .bias = static_cast<const float*>(args.bias.data),
          .m = args.c.rows(),
          .n = args.c.cols(),
          .k = args.transpose_a ? args.a.rows() : args.a.cols(),
          .a_stride = args.a.stride,
          .b_stride = args.b.stride,
          .c_stride = args.c.stride,
          .half_inputs = args.a.dtype != DType::fp32,
          .half_result = args.c.dtype != DType::fp32,
          .half = args.a.dtype == DType::fp16 ? DType::fp16 : DType::bf16,
          .tf32 = stream.tf32() && args.a.dtype == DType::fp32,
          .transpose_a = args.transpose_a,
          .transpose_b = args.transpose_b,
          .addend = args.accumulate ? args.c.data : args.addend.data};
}

/// The product with the extra that the library is to fuse.
Product with_extras(const GemmArgs& args, Product product) {
  if (args.preactivation && args.activation == Activation::gelu && product.half_result) {
    product.gelu_slope_of = args.preactivation.data;
  } else if (!args.preactivation) {
    product.row_sums = args.row_sums;
    product.accumulate_sums = args.accumulate_sums;
  }
  return product;
}

/// Vocabularies such as GPT-2's 50,257 words leave rows that are no multiples of 16 bytes; the
/// library then has only kernels that load single elements, seven times slower (measured on an
/// H200). So the product of whole pieces of 64 is computed apart from the rest. Only for 16-bit
/// operands, without an epilogue, where the rest is small.
struct Split {
  int64_t columns = 0, terms = 0;  ///< of the rest: of c, and of each sum
};

Split split_of(const Product& p) {
  constexpr int64_t kWhole = 64;
  constexpr int64_t kLarge = 32 * kWhole;
  const bool plain =
      p.half_inputs && p.bias == nullptr && p.gelu_slope_of == nullptr && !p.row_sums;
  const auto rest = [](int64_t extent) {
    return extent % 8 != 0 && extent > kLarge ? extent % kWhole : 0;
  };
  return plain ? Split{.columns = rest(p.n), .terms = rest(p.k)} : Split{};
}

template <class T>
T* moved(T* data, int64_t elements, bool half) {
  using Byte = std::conditional_t<std::is_const_v<T>, const std::byte, std::byte>;
  return data == nullptr ? nullptr : static_cast<Byte*>(data) + elements * (half ? 2 : 4);
}

/// Columns [first, first + n) of c.
Product columns_of(Product p, int64_t first, int64_t n) {
  p.b = moved(p.b, first * (p.transpose_b ? p.b_stride : 1), p.half_inputs);
  p.c = moved(p.c, first, p.half_result);
  p.addend = moved(p.addend, first, p.half_result);
  p.n = n;
  return p;
}

/// Terms [first, first + k) of each sum.
Product terms_of(Product p, int64_t first, int64_t k) {
  p.a = moved(p.a, first * (p.transpose_a ? p.a_stride : 1), p.half_inputs);
  p.b = moved(p.b, first * (p.transpose_b ? 1 : p.b_stride), p.half_inputs);
  p.k = k;
  return p;
}

/// The product in parts. The rest of the sums comes first: rounded to c's type, it is small.
void split_product(Stream& stream, const Product& p, const Split& split) {
  if (split.columns > 0) {
    const int64_t whole = p.n - split.columns;
    for (const Product& part : {columns_of(p, 0, whole), columns_of(p, whole, split.columns)}) {
      split_product(stream, part, {.terms = split.terms});
    }
  } else if (split.terms > 0) {
    const int64_t whole = p.k - split.terms;
    matmul(stream, terms_of(p, whole, split.terms));
    Product rest = terms_of(p, 0, whole);
    rest.addend = p.c;
    matmul(stream, rest);
  } else {
    matmul(stream, p);
  }
}

}  // namespace

// This function alone decides whether an extra is fused into the product or computed after it:
//   activated      after it: the library would compute it from the sum before c is rounded, and
//                  backward, which recomputes it from c, would get other bits
//   preactivation  fused for gelu in 16 bits, where the saved rounding hides that the library's
//                  gelu has another form
//   row_sums       fused where the library supports it (blas_cublaslt.cpp)
void gemm(Stream& stream, const GemmArgs& args) {
  const Product product = product_of(stream, args);
  bool fused = false;
  if (product.m > 0 && product.n > 0) {
    require(product.k > 0, "a product has terms", product.m, product.n);
    const Product extended = with_extras(args, product);
    if (const Split split = split_of(extended); split.columns > 0 || split.terms > 0) {
      split_product(stream, product, split);
    } else {
      fused = matmul(stream, extended);
    }
  }
  if (args.activated) {
    activation(stream, {.kind = args.activation, .x = args.c, .y = args.activated});
  }
  if (args.preactivation && !fused) {
    activation_backward(
        stream, {.kind = args.activation, .dy = args.c, .x = args.preactivation, .dx = args.c});
  }
  if (args.row_sums && !fused) {
    column_sum(stream, {.x = args.a, .out = args.row_sums, .accumulate = args.accumulate_sums});
  }
}

}  // namespace espalier::kernels::ESPALIER_GPU
