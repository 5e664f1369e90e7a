// Loading of cuBLASLt by the first product. Needs no device.
#include "src/kernels/cuda/dense/blas_library.h"

#include <cstdlib>

#include "src/kernels/cuda/device/toolkit.h"
#include "tests/support/failure.h"

namespace espalier::kernels::cuda::blas_library_test {
namespace {

TEST(BlasLibrary, IsLookedForWhereTheUserSaysFirst) {
  ASSERT_EQ(setenv("ESPALIER_TEST_FOLDER", "/somewhere", 1), 0);
  EXPECT_THAT(toolkit_names("libx.so.7", "ESPALIER_TEST_FOLDER"),
              ElementsAre("/somewhere/libx.so.7", "libx.so.7", "/usr/local/cuda/lib64/libx.so.7",
                          "/usr/local/cuda/lib/libx.so.7"));
  ASSERT_EQ(unsetenv("ESPALIER_TEST_FOLDER"), 0);
  EXPECT_EQ(toolkit_names("libx.so.7", "ESPALIER_TEST_FOLDER").front(), "libx.so.7");
  EXPECT_THAT(blas_names().back(), HasSubstr(fmt::format("libcublasLt.so.{}", CUBLAS_VER_MAJOR)));
}

TEST(BlasLibrary, MissingSaysWhatToInstall) {
  EXPECT_THAT(failure_of([] { load_blas({"libnowhere.so.7"}); }),
              ::testing::AllOf(
                  HasSubstr("a product on a GPU needs a library"), HasSubstr("libnowhere.so.7"),
                  HasSubstr("set CUBLAS_DIR to the folder that holds libcublasLt.so.")));
}

TEST(BlasLibrary, RefusesAnotherVersion) {
  EXPECT_THAT(failure_of([] { load_blas({ESPALIER_OTHER_BLAS}); }),
              ::testing::AllOf(HasSubstr("is of cuBLAS 99, and this program was built for"),
                               HasSubstr("set CUBLAS_DIR")));
}

TEST(BlasLibrary, HasWhatProductsCall) {
  const BlasLibrary* library = nullptr;
  try {
    library = &blas_library();
  } catch (const Failure& failure) {
    GTEST_SKIP() << failure.what();
  }
  cublasLtMatmulDesc_t product = nullptr;
  ASSERT_EQ(library->create_product(&product, CUBLAS_COMPUTE_32F, CUDA_R_32F),
            CUBLAS_STATUS_SUCCESS);
  const cublasOperation_t transposed = CUBLAS_OP_T;
  EXPECT_EQ(
      library->set_product(product, CUBLASLT_MATMUL_DESC_TRANSA, &transposed, sizeof transposed),
      CUBLAS_STATUS_SUCCESS);
  EXPECT_EQ(library->destroy_product(product), CUBLAS_STATUS_SUCCESS);
}

}  // namespace
}  // namespace espalier::kernels::cuda::blas_library_test
