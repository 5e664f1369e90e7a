// Transposed parts of matrices, of any shape, in each size of elements.
#include "src/hub/transpose.h"

#include <gtest/gtest.h>

#include <random>

namespace espalier::hub::transpose_test {
namespace {

template <class T>
std::vector<T> numbers(int64_t count) {
  std::vector<T> all(static_cast<size_t>(count));
  for (size_t i = 0; i < all.size(); ++i) {
    all[i] = static_cast<T>(i * 2'654'435'761U >> 5U);
  }
  return all;
}

template <class T, class Transpose>
void expect_transposed(const Transpose& run) {
  std::mt19937 random(3);
  for (int round = 0; round < 60; ++round) {
    const auto rows = static_cast<int64_t>(1 + random() % 150);
    const auto cols = static_cast<int64_t>(1 + random() % 150);
    const auto first = static_cast<int64_t>(random() % static_cast<uint32_t>(cols));
    const auto count = static_cast<int64_t>(1 + random() % static_cast<uint32_t>(cols - first));
    std::vector<T> in = numbers<T>(rows * cols);
    std::vector<T> out(static_cast<size_t>(count * rows + 1), T{7});
    run(in, rows, cols, first, count, out);
    for (int64_t c = 0; c < count; ++c) {
      for (int64_t r = 0; r < rows; ++r) {
        ASSERT_EQ(out[c * rows + r], in[r * cols + first + c]) << rows << " x " << cols;
      }
    }
    EXPECT_EQ(out.back(), T{7}) << "written beyond the end";
  }
}

template <class T>
void expect_tensors(DType dtype) {
  expect_transposed<T>([&](std::vector<T>& in, int64_t rows, int64_t cols, int64_t first,
                           int64_t count, std::vector<T>& out) {
    transpose(Tensor(in.data(), dtype, Shape{rows, cols}), first,
              Tensor(out.data(), dtype, Shape{count, rows}));
  });
}

TEST(Transpose, PartsOfMatrices) {
  expect_tensors<uint32_t>(DType::fp32);
  expect_tensors<uint16_t>(DType::bf16);
  expect_transposed<uint8_t>([](std::vector<uint8_t>& in, int64_t rows, int64_t cols, int64_t first,
                                int64_t count, std::vector<uint8_t>& out) {
    transpose_bytes(in, rows, cols, first, count,
                    std::span(out).first(static_cast<size_t>(count * rows)));
  });
}

}  // namespace
}  // namespace espalier::hub::transpose_test
