// Tensor cores and asynchronous copies of the harness: products against plain loops, matrices from
// shared memory in all four orders, copies that arrive at a wait, broken rules.
#include "src/kernels/cuda/simt/mma.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "tests/simt/both_orders.h"

namespace espalier::kernels::ESPALIER_GPU::mma_test {
namespace {

using simt::Violation;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

class TensorCore : public BothOrders {
 protected:
  template <class... Params, class... Arguments>
  void run(void (*kernel)(Params...), unsigned threads, const Arguments&... arguments) {
    launch(kernel, {.name = "tested", .block = threads, .shared_bytes = 4096}, stream_,
           arguments...);
    stream_.synchronize();
  }
  template <class Kernel>
  void expect_violation(Kernel kernel, const std::string& what, unsigned threads = 32) {
    alignas(16) uint16_t x[64] = {};
    EXPECT_THAT([&] { run(kernel, threads, static_cast<uint16_t*>(x)); },
                ThrowsMessage<Violation>(HasSubstr(what)));
  }
};
ESPALIER_BOTH_ORDERS(TensorCore);

struct Matrix {
  int rows, columns;
  std::vector<float> x;
  Matrix(int r, int c) : rows(r), columns(c), x(static_cast<size_t>(r * c)) {}
  float& at(int r, int c) { return x[static_cast<size_t>(r * columns + c)]; }
  float at(int r, int c) const { return x[static_cast<size_t>(r * columns + c)]; }

  static Matrix random(int r, int c) {
    static std::mt19937 bits(3);
    Matrix made(r, c);
    for (float& value : made.x) {
      value = static_cast<float>(static_cast<int>(bits() % 257) - 128) / 64;
    }
    return made;
  }
  static Matrix identity(int n) {
    Matrix made(n, n);
    for (int i = 0; i < n; ++i) {
      made.at(i, i) = 1;
    }
    return made;
  }
  Matrix transposed() const {
    Matrix made(columns, rows);
    for (int r = 0; r < rows; ++r) {
      for (int c = 0; c < columns; ++c) {
        made.at(c, r) = at(r, c);
      }
    }
    return made;
  }
  template <DType kHalf = DType::bf16>
  std::vector<uint16_t> halves() const {
    std::vector<uint16_t> made;
    for (const float value : x) {
      made.push_back(static_cast<uint16_t>(pack_halves<kHalf>(value, 0)));
    }
    return made;
  }
};

Matrix product(const Matrix& a, const Matrix& b, Matrix sum) {
  for (int m = 0; m < a.rows; ++m) {
    for (int n = 0; n < b.columns; ++n) {
      for (int k = 0; k < a.columns; ++k) {
        sum.at(m, n) += a.at(m, k) * b.at(k, n);
      }
    }
  }
  return sum;
}

/// c [16, 8] += a [16, 16] b [16, 8], element by element into the places that mma.h names.
template <DType kHalf>
__global__ void multiply_plain(const uint16_t* a, const uint16_t* b, float* c) {
  const int g = static_cast<int>(threadIdx.x) / 4;
  const int t = static_cast<int>(threadIdx.x) % 4;
  const auto pair = [](uint32_t low, uint32_t high) { return low | high << 16; };
  uint32_t ra[4];
  uint32_t rb[2];
  for (int i = 0; i < 4; ++i) {
    const uint16_t* const at = a + (g + i % 2 * 8) * 16 + 2 * t + i / 2 * 8;
    ra[i] = pair(at[0], at[1]);
  }
  for (int i = 0; i < 2; ++i) {
    const uint16_t* const at = b + (2 * t + 8 * i) * 8 + g;
    rb[i] = pair(at[0], at[8]);
  }
  float* const top = c + g * 8 + 2 * t;
  float rc[4] = {top[0], top[1], top[64], top[65]};
  multiply_add<kHalf>(rc, ra, rb);
  top[0] = rc[0];
  top[1] = rc[1];
  top[64] = rc[2];
  top[65] = rc[3];
}

TEST_P(TensorCore, products_are_those_of_plain_loops) {
  for (const Matrix& a : {Matrix::identity(16), Matrix::random(16, 16)}) {
    const Matrix b = Matrix::random(16, 8);
    const Matrix c = Matrix::random(16, 8);
    const Matrix want = product(a, b, c);
    Matrix got = c;
    run(multiply_plain<DType::bf16>, 32, a.halves().data(), b.halves().data(), got.x.data());
    EXPECT_EQ(got.x, want.x);
    got = c;
    run(multiply_plain<DType::fp16>, 32, a.halves<DType::fp16>().data(),
        b.halves<DType::fp16>().data(), got.x.data());
    EXPECT_EQ(got.x, want.x);
  }
}

/// c [16, 16] = a b from shared memory; a is stored [16, 16] by rows or, transposed, by columns,
/// and so is b.
template <bool kTransposeA, bool kTransposeB>
__global__ void multiply_loaded(const uint16_t* a, const uint16_t* b, float* c) {
  auto* const shared_a = dynamic_shared<uint16_t>();
  uint16_t* const shared_b = shared_a + 256;
  const int lane = static_cast<int>(threadIdx.x);
  for (int i = lane; i < 256; i += 32) {
    shared_a[i] = a[i];
    shared_b[i] = b[i];
  }
  __syncthreads();
  uint32_t ra[4];
  uint32_t rb[4];
  const MatrixRow down = down_first(lane);
  const MatrixRow across = across_first(lane);
  if constexpr (kTransposeA) {
    load_matrices_transposed(ra, shared_a + 16 * across.row + across.column);
  } else {
    load_matrices(ra, shared_a + 16 * down.row + down.column);
  }
  if constexpr (kTransposeB) {
    load_matrices(rb, shared_b + 16 * across.row + across.column);
  } else {
    load_matrices_transposed(rb, shared_b + 16 * down.row + down.column);
  }
  for (int half = 0; half < 2; ++half) {
    float sums[4] = {};
    multiply_add<DType::bf16>(sums, ra, {rb[2 * half], rb[2 * half + 1]});
    for (int i = 0; i < 4; ++i) {
      c[(lane / 4 + i / 2 * 8) * 16 + 8 * half + lane % 4 * 2 + i % 2] = sums[i];
    }
  }
}

TEST_P(TensorCore, four_matrices_load_in_any_order) {
  const Matrix a = Matrix::random(16, 16);
  const Matrix b = Matrix::random(16, 16);
  const Matrix want = product(a, b, Matrix(16, 16));
  const auto got = [&](auto kernel, const Matrix& stored_a, const Matrix& stored_b) {
    Matrix c(16, 16);
    run(kernel, 32, stored_a.halves().data(), stored_b.halves().data(), c.x.data());
    return c.x;
  };
  EXPECT_EQ(got(multiply_loaded<false, false>, a, b), want.x);
  EXPECT_EQ(got(multiply_loaded<true, false>, a.transposed(), b), want.x);
  EXPECT_EQ(got(multiply_loaded<false, true>, a, b.transposed()), want.x);
  EXPECT_EQ(got(multiply_loaded<true, true>, a.transposed(), b.transposed()), want.x);
}

/// Two matrices, one below the other; lanes from 16 on pass no address.
__global__ void load_two(const uint16_t* x, uint32_t* plain, uint32_t* transposed) {
  auto* const shared = dynamic_shared<uint16_t>();
  const unsigned lane = threadIdx.x;
  for (unsigned i = lane; i < 128; i += 32) {
    shared[i] = x[i];
  }
  __syncthreads();
  const uint16_t* const row = shared + 8 * (lane % 16);
  uint32_t r[2];
  load_matrices(r, row);
  plain[lane] = r[0];
  plain[32 + lane] = r[1];
  load_matrices_transposed(r, row);
  transposed[lane] = r[0];
  transposed[32 + lane] = r[1];
}

TEST_P(TensorCore, two_matrices_load) {
  std::vector<uint16_t> x(128);
  for (size_t i = 0; i < x.size(); ++i) {
    x[i] = static_cast<uint16_t>(i);
  }
  std::vector<uint32_t> plain(64), transposed(64);
  run(load_two, 32, x.data(), plain.data(), transposed.data());
  for (uint32_t i = 0; i < 64; ++i) {
    const uint32_t first = i / 32 * 64;
    const uint32_t g = i % 32 / 4;
    const uint32_t t = i % 4;
    const uint32_t across = first + 8 * g + 2 * t;
    const uint32_t down = first + 16 * t + g;
    EXPECT_EQ(plain[i], across | (across + 1) << 16);
    EXPECT_EQ(transposed[i], down | (down + 8) << 16);
  }
}

template <DType kHalf>
__global__ void pack(const float* x, uint32_t* pairs) {
  *pairs = pack_halves<kHalf>(x[0], x[1]);
}

TEST_P(TensorCore, pairs_are_rounded_to_nearest_even) {
  const auto by = [&](auto kernel, float low, float high) {
    const float x[] = {low, high};
    uint32_t pair = 0;
    run(kernel, 1, static_cast<const float*>(x), &pair);
    return pair;
  };
  const auto packed = [&](float low, float high) { return by(pack<DType::bf16>, low, high); };
  EXPECT_EQ(packed(1.0F, -2.0F), 0xc0003f80U);
  EXPECT_EQ(packed(1.0F + 0x1p-8F, 1.0F + 0x3p-8F), 0x3f823f80U);
  EXPECT_EQ(packed(NAN, INFINITY), 0x7f807fffU);
  const auto ieee = [&](float low, float high) { return by(pack<DType::fp16>, low, high); };
  EXPECT_EQ(ieee(1.0F, -2.0F), 0xc0003c00U);
  EXPECT_EQ(ieee(1.0F + 0x1p-11F, 1.0F + 0x3p-11F), 0x3c023c00U);
  EXPECT_EQ(ieee(0x1p-24F, 65520.0F), 0x7c000001U);
  EXPECT_EQ(ieee(NAN, INFINITY), 0x7c007fffU);
}

/// Two groups; `early` is the contents after the wait for the first, `late` at the end.
__global__ void copy_twice(const uint16_t* from, uint16_t* early, uint16_t* late) {
  auto* const shared = dynamic_shared<uint16_t>();
  uint16_t* const mine = shared + 16 * threadIdx.x;
  for (int i = 0; i < 16; ++i) {
    mine[i] = 77;
  }
  const uint16_t* const source = from + 16 * threadIdx.x;
  copy_async(mine, source);
  commit_copies();
  copy_async(mine + 8, source + 8, 2 * static_cast<int>(threadIdx.x % 9));
  commit_copies();
  wait_copies<1>();
  for (int i = 0; i < 16; ++i) {
    early[16 * threadIdx.x + i] = mine[i];
  }
  wait_copies<0>();
  for (int i = 0; i < 16; ++i) {
    late[16 * threadIdx.x + i] = mine[i];
  }
}

TEST_P(TensorCore, copies_arrive_with_their_group_and_are_filled_with_zeros) {
  std::vector<uint16_t> from(512), early(512), late(512);
  for (size_t i = 0; i < from.size(); ++i) {
    from[i] = static_cast<uint16_t>(i + 1);
  }
  run(copy_twice, 32, from.data(), early.data(), late.data());
  for (size_t i = 0; i < from.size(); ++i) {
    const bool second = i % 16 >= 8;
    EXPECT_EQ(early[i], second ? 0xffffU : from[i]);
    EXPECT_EQ(late[i], !second || i % 8 < i / 16 % 9 ? from[i] : 0);
  }
}

/// Thread t reads what thread t + 1 has copied.
template <bool kWait, bool kBarrier>
__global__ void read_neighbour(const uint16_t* from, uint16_t* to) {
  auto* const shared = dynamic_shared<uint16_t>();
  copy_async(shared + 8 * threadIdx.x, from + 8 * threadIdx.x);
  commit_copies();
  if constexpr (kWait) {
    wait_copies<0>();
  }
  if constexpr (kBarrier) {
    __syncthreads();
  }
  to[threadIdx.x] = shared[8 * ((threadIdx.x + 1) % blockDim.x)];
  wait_copies<0>();
}

TEST_P(TensorCore, a_forgotten_wait_or_barrier_is_seen) {
  const std::vector<uint16_t> from(512, 5);
  std::vector<uint16_t> to(64);
  const auto right = [&](auto kernel) {
    run(kernel, 64, from.data(), to.data());
    return std::count(to.begin(), to.end(), 5);
  };
  EXPECT_EQ((right(read_neighbour<true, true>)), 64);
  EXPECT_LT((right(read_neighbour<false, true>)), 64);
  EXPECT_LT((right(read_neighbour<true, false>)), 64);
}

__global__ void change_source(uint16_t* x) {
  auto* const shared = dynamic_shared<uint16_t>();
  copy_async(shared, x);
  commit_copies();
  x[0] = 9;
  wait_copies<0>();
  x[1] = shared[0];
}

TEST_P(TensorCore, the_source_is_read_late) {
  alignas(16) uint16_t x[8] = {1};
  run(change_source, 1, static_cast<uint16_t*>(x));
  EXPECT_EQ(x[1], 9);
}

__global__ void lane_stays_away(uint16_t*) {
  float c[4] = {};
  if (threadIdx.x != 7) {
    multiply_add<DType::bf16>(c, {}, {});
  }
}
__global__ void lane_does_another_thing(uint16_t*) {
  float c[4] = {};
  uint32_t r[4];
  if (threadIdx.x != 7) {
    multiply_add<DType::bf16>(c, {}, {});
  } else {
    load_matrices(r, dynamic_shared<uint16_t>());
  }
}
__global__ void load_misaligned(uint16_t*) {
  uint32_t r[2];
  load_matrices(r, dynamic_shared<uint16_t>() + (threadIdx.x == 5 ? 4 : 0));
}
__global__ void ignored_lane_is_misaligned(uint16_t*) {
  uint32_t r[2];
  load_matrices(r, dynamic_shared<uint16_t>() + (threadIdx.x == 16 ? 4 : 0));
}
__global__ void copy_from_misaligned(uint16_t* x) { copy_async(dynamic_shared<uint16_t>(), x + 1); }
__global__ void copy_to_misaligned(uint16_t* x) { copy_async(dynamic_shared<uint16_t>() + 4, x); }
__global__ void copy_too_much(uint16_t* x) { copy_async(dynamic_shared<uint16_t>(), x, 17); }
__global__ void never_waits(uint16_t* x) {
  copy_async(dynamic_shared<uint16_t>(), x);
  commit_copies();
  wait_copies<1>();
}

TEST_P(TensorCore, broken_rules_are_found) {
  expect_violation(lane_stays_away, "lane");
  expect_violation(lane_stays_away, "names lanes 0xfffffff0 that left or never were", 4);
  expect_violation(lane_does_another_thing, "in another operation");
  expect_violation(load_misaligned, "lane 5 names a row that is not at 16 bytes");
  alignas(16) uint16_t x[64] = {};
  run(ignored_lane_is_misaligned, 32, static_cast<uint16_t*>(x));
  expect_violation(copy_from_misaligned, "between addresses at 16 bytes");
  expect_violation(copy_to_misaligned, "between addresses at 16 bytes");
  expect_violation(copy_too_much, "copies 17 bytes");
  expect_violation(never_waits, "leaves before its asynchronous copies have arrived");
}

}  // namespace
}  // namespace espalier::kernels::ESPALIER_GPU::mma_test
