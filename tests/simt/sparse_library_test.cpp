// Unstructured products through the layer that is cuSPARSE on a GPU: the cases of the table on
// aligned memory, strided operands, cases that fall back to our own kernels, and an analysis that
// is freed with its lists.
#include <gtest/gtest.h>

#include "src/kernels/cuda/sparse/products.h"
#include "src/kernels/cuda/table.h"
#include "tests/kernels/kernel_cases_sparse.h"
#include "tests/simt/queue.h"
#include "tests/simt/sparse_host.h"

namespace espalier::kernels::sparse_library_test {
namespace {

using simt::library_products;

class SparseLibrary : public ::testing::Test {
 protected:
  Tensor make(DType dtype, const Shape& shape) {
    buffers_.push_back(arena_.allocate(Memory::scratch, "operand", dtype, shape));
    return buffers_.back().tensor();
  }
  /// Operands of a case, with their numbers.
  Tensors operands(const Case& one) {
    Tensors made;
    for (const Operand& operand : one.operands) {
      made.push_back(make(operand.dtype, operand.shape));
      write_all(operand, made.back());
    }
    return made;
  }

  Arena arena_;
  simt::Queue queue_;
  Stream stream_{arena_, 1, &queue_};
  std::vector<Buffer> buffers_;
};

TEST_F(SparseLibrary, computes_the_cases_of_the_table) {
  Cases cases;
  add_sparse_cases(cases);
  int64_t taken = 0;
  for (const Case& one : cases) {
    if (one.name.find("_lists") == std::string::npos) {
      continue;
    }
    const int64_t before = library_products();
    const Tensors memory = operands(one);
    one.run(cuda_simt::table(), stream_, memory);
    stream_.synchronize();
    EXPECT_EQ(mismatch(one, memory, expected(one)), "") << one.name;
    const bool strided = one.name.find("margin5") != std::string::npos;  // and not aligned
    const bool half_gradient =
        one.name.starts_with("sddmm") && one.operands[1].dtype != DType::fp32;
    const bool empty = std::ranges::any_of(
        one.operands, [](const Operand& operand) { return operand.shape.count() == 0; });
    EXPECT_EQ(library_products() - before, strided || half_gradient || empty ? 0 : 1) << one.name;
    taken += library_products() - before;
    buffers_.clear();
  }
  EXPECT_GT(taken, 100);
}

/// A separate problem, with rows of the operands that are longer than the matrix.
struct Strided {
  int64_t tokens = 19, rows = 30, cols = 45, more = 8;
  Kept kept{Form::bitmap, rows* cols, 0.3};
  KeptLists lists{rows, cols, kept};
};

TEST_F(SparseLibrary, takes_strided_rows) {
  const Strided s;
  const Tensor values = make(DType::fp32, {s.kept.count()});
  const Tensor x = make(DType::fp32, {s.tokens, s.cols + s.more});
  const Tensor y = make(DType::fp32, {s.tokens, s.rows + s.more});
  for (int64_t i = 0; i < x.count(); ++i) {
    x.get<float>()[i] = static_cast<float>(i % 7) - 3;
  }
  for (int64_t k = 0; k < values.count(); ++k) {
    values.get<float>()[k] = static_cast<float>(k % 5) - 2;
  }
  std::ranges::fill(y.span<float>(), 100.0F);
  std::unique_ptr<Prepared> prepared;
  const int64_t before = library_products();
  cuda_simt::spmm(stream_, {.weight = {s.rows, s.cols, values, s.kept.positions(stream_),
                                       s.lists.csr(stream_, prepared)},
                            .x = x.column_range(s.more, s.cols),
                            .y = y.column_range(s.more, s.rows)});
  stream_.synchronize();
  EXPECT_EQ(library_products() - before, 1);
  for (int64_t token = 0; token < s.tokens; ++token) {
    std::vector<float> want(static_cast<size_t>(s.rows + s.more), 0);
    std::fill_n(want.begin(), s.more, 100.0F);
    for (int64_t k = 0; k < s.kept.count(); ++k) {
      const int32_t place = s.kept.list[k];
      want[s.more + place / s.cols] +=
          values.get<float>()[k] *
          x.get<float>()[token * (s.cols + s.more) + s.more + place % s.cols];
    }
    for (int64_t n = 0; n < s.rows + s.more; ++n) {
      EXPECT_EQ(y.get<float>()[token * (s.rows + s.more) + n], want[n]);
    }
  }
}

TEST_F(SparseLibrary, keeps_an_analysis_with_the_lists) {
  const Strided s;
  std::unique_ptr<Prepared> prepared;
  const Tensor values = make(DType::fp32, {s.kept.count()});
  const Tensor x = make(DType::fp32, {s.tokens, s.cols});
  const Tensor y = make(DType::fp32, {s.tokens, s.rows});
  std::ranges::fill(x.span<float>(), 1.0F);
  const auto sum_with = [&](float value) {
    std::ranges::fill(values.span<float>(), value);
    cuda_simt::spmm(stream_, {.weight = {s.rows, s.cols, values, s.kept.positions(stream_),
                                         s.lists.csr(stream_, prepared)},
                              .x = x,
                              .y = y});
    stream_.synchronize();
    float sum = 0;
    for (const float element : y.span<float>()) {
      sum += element;
    }
    return sum;
  };
  const auto count = static_cast<float>(s.kept.count() * s.tokens);
  EXPECT_EQ(sum_with(1), count);
  const Prepared* const first = prepared.get();
  EXPECT_NE(first, nullptr);
  const int64_t enqueued = queue_.enqueued();
  EXPECT_EQ(sum_with(3), 3 * count);
  EXPECT_EQ(prepared.get(), first);
  EXPECT_EQ(queue_.enqueued() - enqueued, 1) << "the product alone";
}

/// Gradients from dense products, a few rows at a time, compared with those over kept elements.
TEST_F(SparseLibrary, takes_gradients_from_slabs) {
  constexpr int64_t kTokens = 33, kRows = 70, kCols = 45;
  for (const DType dtype : {DType::fp32, DType::bf16}) {
    for (const Form form : {Form::list, Form::bitmap, Form::all}) {
      const Kept kept(form, kRows * kCols, form == Form::all ? 1 : 0.2);
      const KeptLists lists(kRows, kCols, kept);
      for (const bool listed : {false, true}) {
        std::unique_ptr<Prepared> prepared;
        const SparseMatrix pattern{kRows,
                                   kCols,
                                   {},
                                   kept.positions(stream_),
                                   listed ? lists.csr(stream_, prepared) : Csr{}};
        const Tensor dy = make(dtype, {kTokens, kRows});
        const Tensor x = make(dtype, {kTokens, kCols});
        write_all(operand(dtype, dy.shape, -1, 1), dy);
        write_all(operand(dtype, x.shape, -1, 1), x);
        const auto gradient = [&](int64_t rows_each) {
          SparseMatrix weight = pattern;
          weight.values = make(DType::fp32, {kept.count()});
          std::ranges::fill(weight.values.span<float>(), 2.0F);
          const SddmmArgs args{.weight = weight, .dy = dy, .x = x, .accumulate = true};
          if (rows_each > 0) {
            cuda_simt::sddmm_by_slabs(stream_, args, rows_each);
          } else {
            cuda_simt::sddmm(stream_, args);
          }
          stream_.synchronize();
          return weight.values;
        };
        const Tensor whole = gradient(1000);
        const Tensor parts = gradient(16);
        const Tensor by_rows = listed ? whole : gradient(0);
        for (int64_t k = 0; k < kept.count(); ++k) {
          ASSERT_NEAR(parts.get<float>()[k], whole.get<float>()[k], 1e-5) << k;
          ASSERT_NEAR(by_rows.get<float>()[k], whole.get<float>()[k], 1e-5) << k;
        }
        buffers_.clear();
      }
    }
  }
}

TEST_F(SparseLibrary, leaves_matrices_without_lists_to_us) {
  const Strided s;
  const int64_t before = library_products();
  cuda_simt::spmm(stream_, {.weight = {s.rows, s.cols, make(DType::fp32, {s.kept.count()}),
                                       s.kept.positions(stream_)},
                            .x = make(DType::fp32, {s.tokens, s.cols}),
                            .y = make(DType::fp32, {s.tokens, s.rows})});
  stream_.synchronize();
  EXPECT_EQ(library_products(), before);
}

}  // namespace
}  // namespace espalier::kernels::sparse_library_test
