// cuSPARSE products with W (CSR by rows) and with Wᵀ (CSR by columns). Both use the same library
// call. One pass over the kept elements first copies the values of Wᵀ into its order, because no
// transposing algorithm of the library is deterministic. Bias, activation and slope follow in our
// own pass over fp32 sums.
#include "src/kernels/cuda/sparse/by_library.h"

#include "src/kernels/cuda/sparse/library.h"
#include "src/kernels/cuda/sparse/spmm_output.h"

namespace espalier::kernels::ESPALIER_GPU {
namespace {

__global__ void __launch_bounds__(256)
    reorder(Elements from, Elements to, const int32_t* order, int64_t count) {
  const int64_t j = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (j < count) {
    store(to, j, load(from, order[j]));
  }
}

/// One block per token.
template <class Output>
__global__ void __launch_bounds__(256)
    finish_rows(const float* sums, int64_t stride, int64_t cols, Output output) {
  const int64_t token = blockIdx.x;
  for (int64_t c = threadIdx.x; c < cols; c += blockDim.x) {
    output.take(token, c, sums[token * stride + c]);
  }
}

template <class... Tensors>
bool suits(const SparseMatrix& weight, int64_t tokens, const Tensors&... operands) {
  constexpr uintptr_t kAlignment = 16;
  const bool aligned = ((reinterpret_cast<uintptr_t>(operands.data) % kAlignment == 0) && ... &&
                        (reinterpret_cast<uintptr_t>(weight.values.data) % kAlignment == 0));
  return weight.csr && weight.positions.count > 0 && tokens > 0 && aligned;
}

DenseMatrix dense(const Tensor& t) { return {.data = t.data, .stride = t.stride, .type = t.dtype}; }

CsrMatrix by_rows(const SparseMatrix& weight) {
  return {.rows = weight.rows,
          .cols = weight.cols,
          .count = weight.positions.count,
          .begin = weight.csr.row_begin,
          .column = weight.csr.column,
          .values = weight.values.data,
          .type = weight.values.dtype};
}

/// The transpose, with values in separate memory.
CsrMatrix by_columns(const SparseMatrix& weight, void* values) {
  return {.rows = weight.cols,
          .cols = weight.rows,
          .count = weight.positions.count,
          .begin = weight.csr.column_begin,
          .column = weight.csr.row,
          .values = values,
          .type = weight.values.dtype};
}

size_t rounded_up(size_t bytes) { return (bytes + 255) / 256 * 256; }

/// y (+)= x matrixᵀ. With `with_finish`, `output` computes the result from the sums.
template <class Output>
bool multiply(Stream& stream, LibraryProduct product, bool with_finish, const Output& output,
              const Csr& csr, float* sums) {
  if (stream.arena().dry()) {
    return false;  // a memory plan counts the workspace of both implementations
  }
  const int64_t cols = product.matrix.rows;
  if (!with_finish) {
    return library_spmm(stream, product, *csr.prepared);
  }
  if (!product.accumulate && product.b.type == DType::fp32) {
    sums = static_cast<float*>(product.b.data);
  } else {
    product.b = {.data = sums, .stride = (cols + 3) / 4 * 4};
  }
  product.accumulate = false;
  if (!library_spmm(stream, product, *csr.prepared)) {
    return false;
  }
  launch(finish_rows<Output>, {.name = "spmm_finish", .grid = blocks_for(product.tokens, 1)},
         stream, sums, product.b.stride, cols, output);
  return true;
}

size_t sums_bytes(int64_t tokens, int64_t cols) {
  return rounded_up(static_cast<size_t>(tokens * ((cols + 3) / 4 * 4)) * sizeof(float));
}

}  // namespace

bool by_library(Stream& stream, const SpmmArgs& args) {
  if (!suits(args.weight, args.x.rows(), args.x, args.y)) {
    return false;
  }
  const bool with_finish = args.bias || args.activated;
  std::byte* const memory =
      stream.workspace(with_finish ? sums_bytes(args.x.rows(), args.weight.rows) : 1);
  return multiply(stream,
                  {.matrix = by_rows(args.weight),
                   .a = dense(args.x),
                   .b = dense(args.y),
                   .tokens = args.x.rows(),
                   .accumulate = args.accumulate},
                  with_finish, output_of(args), args.weight.csr, reinterpret_cast<float*>(memory));
}

bool by_library(Stream& stream, const SpmmTransposedArgs& args) {
  const Tensor& values = args.weight.values;
  if (!suits(args.weight, args.dy.rows(), args.dy, args.dx)) {
    return false;
  }
  const bool with_finish = static_cast<bool>(args.preactivation);
  const size_t sums = with_finish ? sums_bytes(args.dy.rows(), args.weight.cols) : 0;
  std::byte* const memory = stream.workspace(sums + values.bytes());
  const Tensor reordered(memory + sums, values.dtype, values.shape);
  launch(reorder, {.name = "spmm_reorder", .grid = blocks_for(values.count(), 256)}, stream,
         elements(values), elements(reordered), args.weight.csr.order, values.count());
  return multiply(stream,
                  {.matrix = by_columns(args.weight, reordered.data),
                   .a = dense(args.dy),
                   .b = dense(args.dx),
                   .tokens = args.dy.rows(),
                   .accumulate = args.accumulate},
                  with_finish, output_of(args), args.weight.csr, reinterpret_cast<float*>(memory));
}

bool by_library(Stream& stream, const SddmmArgs& args) {
  return !stream.arena().dry() && suits(args.weight, args.x.rows(), args.dy, args.x) &&
         library_sddmm(stream,
                       {.matrix = by_rows(args.weight),
                        .a = dense(args.dy),
                        .b = dense(args.x),
                        .tokens = args.x.rows(),
                        .accumulate = args.accumulate},
                       *args.weight.csr.prepared);
}

}  // namespace espalier::kernels::ESPALIER_GPU
