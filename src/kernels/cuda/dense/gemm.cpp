#include <cstddef>
#include <type_traits>

#include "src/kernels/cuda/dense/blas.h"
#include "src/kernels/cuda/dense/fp8.h"
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

/// The same product with 8-bit codes as operands. `memory` stands for their addresses, which are
/// not known yet.
Product of_codes(Product product, const GemmArgs& args, const void* memory) {
  product.a = product.b = memory;
  product.a_scale = product.b_scale = static_cast<const float*>(memory);
  product.a_format = args.round_a;
  product.b_format = args.round_b;
  product.a_stride = product.b_stride = product.k;
  product.transpose_a = false;
  product.transpose_b = true;
  return product;
}

/// The product of operands rounded to 8 bits. If the library cannot multiply codes, the operands
/// are the rounded values in bf16: the sums have the same terms. A bias is fused only for a 16-bit
/// result: for an fp32 result the library accepts a bf16 bias only, so the bias is added
/// afterwards.
void rounded_product(Stream& stream, const GemmArgs& args, Product product) {
  // The product's own workspace is at the start: matmul requests it again and gets the same memory.
  const size_t own = (matmul_workspace(product.m, product.n) + 255) / 256 * 256;
  std::byte* const memory = stream.workspace(own + fp8_workspace(args)) + own;
  product.half_inputs = true;
  product.tf32 = false;
  product.bias = product.half_result ? product.bias : nullptr;
  const Product codes = of_codes(product, args, memory);
  if (!stream.arena().dry() && takes_fp8(stream, codes)) {
    const RoundedOperands rounded = round_to_codes(stream, args, memory);
    product = codes;
    product.a = rounded.a;
    product.b = rounded.b;
    product.a_scale = rounded.scale_a;
    product.b_scale = rounded.scale_b;
  } else {
    const RoundedOperands rounded = round_to_bf16(stream, args, memory);
    product.a = rounded.a;
    product.b = rounded.b;
    product.a_stride = args.a.cols();
    product.b_stride = args.b.cols();
    product.factors = rounded.factors;
  }
  matmul(stream, product);
  if (args.bias && product.bias == nullptr) {
    add_bias(stream, args.c, static_cast<const float*>(args.bias.data));
  }
}

/// The product of unrounded operands, with the extra that the library is to fuse.
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
  const bool plain = p.half_inputs && p.a_format == Float8::none && p.bias == nullptr &&
                     p.gelu_slope_of == nullptr && !p.row_sums && p.factors == nullptr;
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
// 8-bit products fuse only some biases: the library does not document slopes with 8-bit operands
// and a bf16 result, and row_sums are sums of unrounded operands.
void gemm(Stream& stream, const GemmArgs& args) {
  const Product product = product_of(stream, args);
  bool fused = false;
  if (product.m > 0 && product.n > 0) {
    require(product.k > 0, "a product has terms", product.m, product.n);
    if (args.round_a != Float8::none) {
      rounded_product(stream, args, product);
    } else if (const Split split = split_of(with_extras(args, product));
               split.columns > 0 || split.terms > 0) {
      split_product(stream, product, split);
    } else {
      fused = matmul(stream, with_extras(args, product));
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
