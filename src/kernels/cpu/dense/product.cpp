#include "src/kernels/cpu/dense/product.h"

#include <omp.h>

#include <algorithm>
#include <array>
#include <exception>
#include <unordered_map>

#include "src/core/rng.h"
#include "src/kernels/cpu/dense/onednn.h"
#include "src/kernels/cpu/tables.h"

namespace espalier::kernels::cpu {
namespace {

using dnnl::memory;

/// Everything that a primitive is specialised for.
struct Key {
  int64_t m, n, k;
  int64_t a_stride, b_stride, c_stride;
  DType input, output;
  bool transpose_a, transpose_b, accumulate, bias;
  int threads;
  bool operator==(const Key&) const = default;
};

struct KeyHash {
  size_t operator()(const Key& key) const {
    uint64_t hash = 0;
    auto add = [&hash](auto value) { hash = mix(hash, static_cast<uint64_t>(value)); };
    add(key.m), add(key.n), add(key.k);
    add(key.a_stride), add(key.b_stride), add(key.c_stride);
    add(key.input), add(key.output), add(key.threads);
    add(key.transpose_a + 2 * key.transpose_b + 4 * key.accumulate + 8 * key.bias);
    return hash;
  }
};

struct Product {
  dnnl::matmul primitive;
  memory a, b, c, bias, scratch;
  size_t scratch_bytes = 0;
};

memory::data_type type_of(DType dtype) {
  require(multiplies(dtype), "products of this type are widened", name_of(dtype));
  return dtype == DType::fp32 ? memory::data_type::f32 : memory::data_type::bf16;
}

/// A row-major matrix with a row stride; `transposed` describes its transpose.
memory::desc matrix(int64_t rows, int64_t cols, DType dtype, int64_t stride, bool transposed) {
  const memory::dims strides = transposed ? memory::dims{1, stride} : memory::dims{stride, 1};
  return {memory::dims{rows, cols}, type_of(dtype), strides};
}

Product create(const Key& key) {
  const auto a = matrix(key.m, key.k, key.input, key.a_stride, key.transpose_a);
  const auto b = matrix(key.k, key.n, key.input, key.b_stride, key.transpose_b);
  const auto c = matrix(key.m, key.n, key.output, key.c_stride, false);
  const auto bias = key.bias ? matrix(1, key.n, DType::fp32, key.n, false) : memory::desc();
  const auto attributes = onednn::attributes(key.accumulate);
  const auto primitive = key.bias ? onednn::describe<dnnl::matmul>(attributes, a, b, bias, c)
                                  : onednn::describe<dnnl::matmul>(attributes, a, b, c);
  return {.primitive = dnnl::matmul(primitive),
          .a = onednn::view(a),
          .b = onednn::view(b),
          .c = onednn::view(c),
          .bias = key.bias ? onednn::view(bias) : memory(),
          .scratch = onednn::view(primitive.scratchpad_desc()),
          .scratch_bytes = primitive.scratchpad_desc().get_size()};
}

/// The product for `key`, created at its first use on this thread.
Product& product_for(const Key& key) {
  thread_local std::unordered_map<Key, Product, KeyHash> products;
  auto found = products.find(key);
  if (found == products.end()) {
    found = products.emplace(key, create(key)).first;
  }
  return found->second;
}

Key key_of(const Stream& stream, const GemmArgs& args) {
  const Tensor& a = args.a;
  const Tensor& b = args.b;
  const Tensor& c = args.c;
  const int64_t m = c.rows();
  const int64_t k = args.transpose_a ? a.rows() : a.cols();
  const int64_t n = c.cols();
  return {.m = m,
          .n = n,
          .k = k,
          .a_stride = a.stride,
          .b_stride = b.stride,
          .c_stride = c.stride,
          .input = a.dtype,
          .output = c.dtype,
          .transpose_a = args.transpose_a,
          .transpose_b = args.transpose_b,
          .accumulate = args.accumulate,
          .bias = static_cast<bool>(args.bias),
          .threads = stream.threads()};
}

/// oneDNN takes the number of threads only from OpenMP.
void set_threads(int threads) {
  if (omp_get_max_threads() != threads) {
    omp_set_num_threads(threads);
  }
}

/// For the calls of a scope.
class OneThread {
 public:
  OneThread() { set_threads(1); }
  ~OneThread() { set_threads(threads_); }
  OneThread(const OneThread&) = delete;
  OneThread& operator=(const OneThread&) = delete;

 private:
  int threads_ = omp_get_max_threads();
};

/// Without AVX-512 oneDNN (2.6 and 3.7) divides the sums of small products among threads, so bits
/// would depend on their number. There a product is divided into parts of c that depend on its
/// shape alone; each is computed by one thread.
bool library_divides_sums() {
  static const bool divides = !onednn::uses(dnnl_cpu_isa_avx512_core);
  return divides;
}

/// How c (m x n) is divided. Measured: smaller parts pack operands too often, larger ones leave
/// threads idle.
class Grid {
 public:
  Grid(int64_t m, int64_t n) : m_(m), n_(n) {
    constexpr int64_t kRows = 192;
    constexpr int64_t kCols = 384;
    constexpr int64_t kLeast = 64;  // of smaller parts, packing takes more than computing
    constexpr int64_t kEnough = 8;  // parts that keep the threads of most machines busy
    rows_ = (m + kRows - 1) / kRows;
    cols_ = (n + kCols - 1) / kCols;
    while (size() < kEnough && std::max(m / rows_, n / cols_) >= 2 * kLeast) {
      (m / rows_ > n / cols_ ? rows_ : cols_) *= 2;
    }
  }

  int64_t size() const { return rows_ * cols_; }
  int64_t row(int64_t part) const { return m_ * (part % rows_) / rows_; }
  int64_t col(int64_t part) const { return n_ * (part / rows_) / cols_; }
  int64_t rows(int64_t part) const { return m_ * (part % rows_ + 1) / rows_ - row(part); }
  int64_t cols(int64_t part) const { return n_ * (part / rows_ + 1) / cols_ - col(part); }

  /// Of all parts: they differ by at most one row and one column.
  int64_t fewest_rows() const { return m_ / rows_; }
  int64_t most_rows() const { return (m_ + rows_ - 1) / rows_; }
  int64_t fewest_cols() const { return n_ / cols_; }
  int64_t most_cols() const { return (n_ + cols_ - 1) / cols_; }

 private:
  int64_t m_, n_, rows_, cols_;
};

/// Operands of a product; `bias` may be null.
struct Addresses {
  std::byte *a, *b, *c, *bias;

  /// Those of the part of c that begins at an element.
  Addresses at(const Key& key, int64_t row, int64_t col) const {
    const auto input = static_cast<int64_t>(size_of(key.input));
    const auto output = static_cast<int64_t>(size_of(key.output));
    return {.a = a + input * row * (key.transpose_a ? 1 : key.a_stride),
            .b = b + input * col * (key.transpose_b ? key.b_stride : 1),
            .c = c + output * (row * key.c_stride + col),
            .bias = key.bias ? bias + 4 * col : nullptr};
  }
};

/// The product of one thread that computes m x n elements of c.
Key part_of(const Key& key, int64_t m, int64_t n) {
  Key part = key;
  part.m = m;
  part.n = n;
  part.threads = 1;
  return part;
}

/// Bytes that any part needs, in whole cache lines.
size_t part_scratch(const Key& key, const Grid& grid) {
  size_t most = 0;
  for (const int64_t m : {grid.fewest_rows(), grid.most_rows()}) {
    for (const int64_t n : {grid.fewest_cols(), grid.most_cols()}) {
      most = std::max(most, product_for(part_of(key, m, n)).scratch_bytes);
    }
  }
  return (most + 63) / 64 * 64;
}

/// Runs the product that `key` describes on this thread's stream.
void execute(const Key& key, const Addresses& at, std::byte* scratch) {
  Product& made = product_for(key);
  made.a.set_data_handle(at.a);
  made.b.set_data_handle(at.b);
  made.c.set_data_handle(at.c);
  made.scratch.set_data_handle(scratch);
  std::array<dnnl_exec_arg_t, 5> arguments{{{DNNL_ARG_SRC, made.a.get()},
                                            {DNNL_ARG_WEIGHTS, made.b.get()},
                                            {DNNL_ARG_DST, made.c.get()},
                                            {DNNL_ARG_SCRATCHPAD, made.scratch.get()},
                                            {}}};
  int count = 4;
  if (key.bias) {
    made.bias.set_data_handle(at.bias);
    arguments[4] = {DNNL_ARG_BIAS, made.bias.get()};
    count = 5;
  }
  thread_local dnnl::stream queue(onednn::engine());
  const auto status =
      dnnl_primitive_execute(made.primitive.get(), queue.get(), count, arguments.data());
  require(status == dnnl_success, "oneDNN runs the product", static_cast<int>(status));
  queue.wait();
}

/// Without AVX-512 oneDNN (2.6 and 3.7) has no product of bf16. Measured with 2.6: without
/// AVX-512's bf16 instructions it has one at a fifth of the speed of fp32, and on Intel's CPUs
/// without AMX, which start one bf16 dot product in two cycles, one at half the speed.
bool bf16_is_fast() {
  return onednn::uses(dnnl_cpu_isa_avx512_core_amx) ||
         (onednn::uses(dnnl_cpu_isa_avx512_core_bf16) && !has_slow_bf16_pairs());
}

}  // namespace

bool multiplies(DType dtype) {
  static const bool fast = bf16_is_fast();
  return dtype == DType::fp32 || (dtype == DType::bf16 && fast);
}

size_t product_scratch(const Stream& stream, const GemmArgs& args) {
  const Key key = key_of(stream, args);
  if (key.m == 0 || key.n == 0) {
    return 0;
  }
  if (!library_divides_sums()) {
    set_threads(key.threads);
    return product_for(key).scratch_bytes;
  }
  const OneThread alone;
  return part_scratch(key, Grid(key.m, key.n)) * static_cast<size_t>(key.threads);
}

void product(Stream& stream, const GemmArgs& args, std::byte* scratch) {
  const Key key = key_of(stream, args);
  if (key.m == 0 || key.n == 0 || stream.arena().dry()) {
    return;
  }
  const Addresses whole{.a = static_cast<std::byte*>(args.a.data),
                        .b = static_cast<std::byte*>(args.b.data),
                        .c = static_cast<std::byte*>(args.c.data),
                        .bias = static_cast<std::byte*>(args.bias.data)};
  if (!library_divides_sums()) {
    set_threads(key.threads);
    execute(key, whole, scratch);
    return;
  }
  const Grid grid(key.m, key.n);
  size_t bytes = 0;
  {
    const OneThread alone;
    bytes = part_scratch(key, grid);
  }
  std::exception_ptr failure;  // none may leave a parallel region
#pragma omp parallel num_threads(key.threads)
  {
    set_threads(1);  // of this thread: the library then starts none
    std::byte* const own = scratch + bytes * static_cast<size_t>(omp_get_thread_num());
#pragma omp for schedule(dynamic)
    for (int64_t part = 0; part < grid.size(); ++part) {
      try {
        execute(part_of(key, grid.rows(part), grid.cols(part)),
                whole.at(key, grid.row(part), grid.col(part)), own);
      } catch (...) {
#pragma omp critical(product_failure)
        failure = std::current_exception();
      }
    }
  }
  if (failure) {
    std::rethrow_exception(failure);
  }
}

}  // namespace espalier::kernels::cpu

bool espalier::kernels::has_native_bf16() { return cpu::multiplies(DType::bf16); }

std::string espalier::kernels::gemm_library() {
  const dnnl_version_t& version = *dnnl_version();
  return fmt::format("oneDNN {}.{}.{}", version.major, version.minor, version.patch);
}
