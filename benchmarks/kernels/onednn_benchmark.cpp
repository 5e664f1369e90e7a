// Dense products by oneDNN alone, and by the program (cpu/dense/product.cpp), with 1 to 4 threads:
// the numbers behind `library_divides_sums` and `bf16_is_fast`. A JSON line for each shape, type
// and number of threads:
//
//   library_us, program_us   fastest call; 0: not measured, or the library has no such product
//   library_same             the library's bits are those of one thread
//   program_same             likewise of the program
//   bits                     hash of the library's result, to compare with another version
//
// To compare two versions: build each against its own, run them alternating, and take minima.
#include <omp.h>
#include <xxhash.h>

#include <algorithm>
#include <cmath>
#include <unordered_map>

#include "src/core/cpus.h"
#include "src/core/rng.h"
#include "src/core/trace.h"
#include "src/kernels/backend.h"
#include "src/kernels/cpu/dense/onednn.h"

namespace espalier {
namespace {

using dnnl::memory;
namespace onednn = kernels::cpu::onednn;

/// c [m, n] = op(a) op(b), k products an element.
struct Product {
  int64_t m, n, k;
  bool transpose_a, transpose_b;
};

/// The three products of layers: forward, gradient of the input, gradient of the weight.
std::vector<Product> shapes() {
  std::vector<Product> made;
  for (const int64_t rows : {32, 512, 2048}) {
    for (const auto& [in, out] : {std::pair{64, 256}, {128, 128}, {384, 1536}, {768, 768}}) {
      made.push_back({rows, out, in, false, true});
      made.push_back({rows, in, out, false, false});
      made.push_back({out, in, rows, true, false});
    }
  }
  return made;
}

Buffer filled(Arena& arena, DType dtype, int64_t rows, int64_t cols, uint64_t seed) {
  Buffer made = arena.allocate(Memory::scratch, "operand", dtype, {rows, cols});
  for (int64_t i = 0; i < rows * cols; ++i) {
    const auto draw = static_cast<float>(mix(seed, static_cast<uint64_t>(i)) >> 40U);
    const float value = std::ldexp(draw, -23) - 1.0F;
    if (dtype == DType::fp32) {
      static_cast<float*>(made.tensor().data)[i] = value;
    } else {  // bf16: the upper half
      const auto bits = std::bit_cast<uint32_t>(value);
      static_cast<uint16_t*>(made.tensor().data)[i] = static_cast<uint16_t>(bits >> 16U);
    }
  }
  return made;
}

memory described(const Tensor& tensor, bool transposed) {
  const auto type = tensor.dtype == DType::fp32 ? memory::data_type::f32 : memory::data_type::bf16;
  const memory::dims stored{tensor.rows(), tensor.cols()};
  const memory::dims swapped{tensor.cols(), tensor.rows()};
  memory made = onednn::view({transposed ? swapped : stored, type,
                              transposed ? memory::format_tag::ba : memory::format_tag::ab});
  made.set_data_handle(tensor.data);
  return made;
}

/// Of calls in 50 ms, at least three. With more threads than cores a call is made once, for its
/// bits, and 0 returned.
template <class Call>
double fastest_us(int threads, const Call& call) {
  if (threads > usable_cpu_count()) {
    call();
    return 0;
  }
  double fastest = 1e9;
  const double begin = now_seconds();
  for (int calls = 0; calls < 3 || now_seconds() - begin < 0.05; ++calls) {
    const double start = now_seconds();
    call();
    fastest = std::min(fastest, now_seconds() - start);
  }
  return 1e6 * fastest;
}

uint64_t hash(const Tensor& c) {
  return XXH3_64bits(c.data, static_cast<size_t>(c.count()) * size_of(c.dtype));
}

/// Fastest call, and the bits of its result. The bits are 0 if the library has no such product.
std::pair<double, uint64_t> by_library(const Product& shape, const Tensor& a, const Tensor& b,
                                       const Tensor& c, int threads) try {
  omp_set_num_threads(threads);
  std::unordered_map<int, memory> arguments{{DNNL_ARG_SRC, described(a, shape.transpose_a)},
                                            {DNNL_ARG_WEIGHTS, described(b, shape.transpose_b)},
                                            {DNNL_ARG_DST, described(c, false)}};
  const auto found = onednn::describe<dnnl::matmul>(
      onednn::attributes(), arguments.at(DNNL_ARG_SRC).get_desc(),
      arguments.at(DNNL_ARG_WEIGHTS).get_desc(), arguments.at(DNNL_ARG_DST).get_desc());
  const dnnl::matmul product(found);
  arguments[DNNL_ARG_SCRATCHPAD] = memory(found.scratchpad_desc(), onednn::engine());
  dnnl::stream queue(onednn::engine());
  const double us = fastest_us(threads, [&] {
    product.execute(queue, arguments);
    queue.wait();
  });
  return {us, hash(c)};
} catch (const dnnl::error&) {
  return {0, 0};
}

std::pair<double, uint64_t> by_program(const Product& shape, const Tensor& a, const Tensor& b,
                                       const Tensor& c, int threads) {
  kernels::Backend backend(kernels::by_name("auto"), threads);
  const kernels::GemmArgs args{
      .a = a, .b = b, .c = c, .transpose_a = shape.transpose_a, .transpose_b = shape.transpose_b};
  const double us = fastest_us(threads, [&] { backend.kernels().gemm(backend.stream(), args); });
  return {us, hash(c)};
}

void measure(DType dtype, const Product& shape) {
  Arena arena;
  const auto operand = [&](bool transposed, int64_t rows, int64_t cols, uint64_t seed) {
    return filled(arena, dtype, transposed ? cols : rows, transposed ? rows : cols, seed);
  };
  const Buffer a = operand(shape.transpose_a, shape.m, shape.k, 1);
  const Buffer b = operand(shape.transpose_b, shape.k, shape.n, 2);
  const Buffer c = filled(arena, dtype, shape.m, shape.n, 3);
  uint64_t library_bits = 0;
  uint64_t program_bits = 0;
  for (const int threads : {1, 2, 3, 4}) {
    const auto library = by_library(shape, a.tensor(), b.tensor(), c.tensor(), threads);
    const auto program = by_program(shape, a.tensor(), b.tensor(), c.tensor(), threads);
    library_bits = threads == 1 ? library.second : library_bits;
    program_bits = threads == 1 ? program.second : program_bits;
    fmt::print(
        "{{\"library\": \"{}\", \"type\": \"{}\", \"product\": \"{}{}\", \"m\": {}, \"n\": {}, "
        "\"k\": {}, \"threads\": {}, \"library_us\": {:.1f}, \"program_us\": {:.1f}, "
        "\"library_same\": {}, \"program_same\": {}, \"bits\": \"{:016x}\"}}\n",
        kernels::gemm_library(), name_of(dtype), shape.transpose_a ? "t" : "n",
        shape.transpose_b ? "t" : "n", shape.m, shape.n, shape.k, threads, library.first,
        program.first, library.second == library_bits, program.second == program_bits,
        library.second);
  }
}

}  // namespace
}  // namespace espalier

int main() {
  for (const auto dtype : {espalier::DType::fp32, espalier::DType::bf16}) {
    for (const auto& shape : espalier::shapes()) {
      espalier::measure(dtype, shape);
    }
  }
}
