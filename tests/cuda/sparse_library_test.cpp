// Loading of cuSPARSE. Needs no GPU; skipped where this machine has no such library.

#include "src/kernels/cuda/sparse/cusparse.h"
#include "tests/support/matchers.h"

namespace espalier::kernels::cuda::sparse_library_test {
namespace {

TEST(Cusparse, has_the_functions_that_products_take) {
  if (cusparse() == nullptr) {
    GTEST_SKIP() << cusparse_state();
  }
  EXPECT_THAT(cusparse_state(), HasSubstr("libcusparse.so."));
  EXPECT_NE(cusparse()->spmm, nullptr);
  EXPECT_NE(cusparse()->sddmm, nullptr);
  EXPECT_STRNE(cusparse()->error_string(CUSPARSE_STATUS_NOT_SUPPORTED),
               cusparse()->error_string(CUSPARSE_STATUS_SUCCESS));
}

}  // namespace
}  // namespace espalier::kernels::cuda::sparse_library_test
