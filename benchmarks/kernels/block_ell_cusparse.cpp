// Row-major [tokens, features] is column-major [features, tokens]: yᵀ = W xᵀ. Blocked-ELL as the
// library documents it: columns of blocks [rows of blocks, width], -1 for none; values row-major
// [rows, width of a block x width].
#include <cusparse.h>

#include <algorithm>

#include "benchmarks/kernels/block_ell.h"
#include "src/core/mirror.h"
#include "src/core/shared_library.h"
#include "src/kernels/cuda/device/toolkit.h"

namespace espalier::bench {
namespace {

using kernels::BlockPattern;

struct Functions {
  SharedLibrary library{kernels::cuda::toolkit_names(
                            fmt::format("libcusparse.so.{}", CUSPARSE_VER_MAJOR), "CUSPARSE_DIR"),
                        "blocked-ELL products", "set CUSPARSE_DIR to the folder that holds it"};
  decltype(cusparseCreate)* create = nullptr;
  decltype(cusparseDestroy)* destroy = nullptr;
  decltype(cusparseSetStream)* set_stream = nullptr;
  decltype(cusparseGetErrorString)* error_string = nullptr;
  decltype(cusparseCreateBlockedEll)* create_ell = nullptr;
  decltype(cusparseDestroySpMat)* destroy_sparse = nullptr;
  decltype(cusparseCreateDnMat)* create_dense = nullptr;
  decltype(cusparseDestroyDnMat)* destroy_dense = nullptr;
  decltype(cusparseSpMM_bufferSize)* spmm_size = nullptr;
  decltype(cusparseSpMM)* spmm = nullptr;

  Functions() {
    library.find("cusparseCreate", create);
    library.find("cusparseDestroy", destroy);
    library.find("cusparseSetStream", set_stream);
    library.find("cusparseGetErrorString", error_string);
    library.find("cusparseCreateBlockedEll", create_ell);
    library.find("cusparseDestroySpMat", destroy_sparse);
    library.find("cusparseCreateDnMat", create_dense);
    library.find("cusparseDestroyDnMat", destroy_dense);
    library.find("cusparseSpMM_bufferSize", spmm_size);
    library.find("cusparseSpMM", spmm);
  }
  void check_status(cusparseStatus_t status) const {
    check(status == CUSPARSE_STATUS_SUCCESS, "cuSPARSE, blocked-ELL: {}", error_string(status));
  }
};

/// Never unloaded. Null if the library is missing.
const Functions* functions() {
  static const Functions* const loaded = []() -> const Functions* {
    try {
      return std::make_unique<Functions>().release();
    } catch (const Failure&) {
      return nullptr;
    }
  }();
  return loaded;
}

cudaDataType type_of(DType dtype) { return dtype == DType::bf16 ? CUDA_R_16BF : CUDA_R_32F; }

class CusparseEll final : public BlockEll {
 public:
  CusparseEll(kernels::Backend& backend, const BlockEllProduct& product)
      : call_(*functions()), stream_(backend.stream()), pattern_(product.pattern) {
    call_.check_status(call_.create(&handle_));
    call_.check_status(
        call_.set_stream(handle_, static_cast<cudaStream_t>(stream_.queue()->handle())));
    pack(backend.arena(), product.values);
    const cudaDataType type = type_of(product.x.dtype);
    call_.check_status(call_.create_ell(&w_, pattern_.rows, pattern_.cols, pattern_.height,
                                        width_ * pattern_.width, columns_.tensor().data,
                                        values_.tensor().data, CUSPARSE_INDEX_32I,
                                        CUSPARSE_INDEX_BASE_ZERO, type));
    const auto dense = [&](cusparseDnMatDescr_t& made, const Tensor& t, int64_t rows) {
      call_.check_status(
          call_.create_dense(&made, rows, t.rows(), t.stride, t.data, type, CUSPARSE_ORDER_COL));
    };
    dense(x_, product.x, pattern_.cols);
    dense(y_, product.y, pattern_.rows);
  }
  ~CusparseEll() override {
    stream_.synchronize();
    call_.destroy_dense(y_);
    call_.destroy_dense(x_);
    call_.destroy_sparse(w_);
    call_.destroy(handle_);
  }

  /// Returns whether the library supports the product; called once, before `run`.
  bool prepare(Arena& arena) {
    size_t bytes = 0;
    const cusparseStatus_t status =
        call_.spmm_size(handle_, kAsIs, kAsIs, &kOne, w_, x_, &kZero, y_, CUDA_R_32F, kWay, &bytes);
    if (status == CUSPARSE_STATUS_NOT_SUPPORTED) {
      return false;
    }
    call_.check_status(status);
    workspace_ = arena.allocate(Memory::scratch, "cuSPARSE workspace", DType::uint8,
                                {std::max<int64_t>(static_cast<int64_t>(bytes), 16)});
    const cusparseStatus_t first = multiply();
    if (first == CUSPARSE_STATUS_NOT_SUPPORTED) {
      return false;
    }
    call_.check_status(first);
    return true;
  }
  void run() override { call_.check_status(multiply()); }

 private:
  static constexpr cusparseOperation_t kAsIs = CUSPARSE_OPERATION_NON_TRANSPOSE;
  static constexpr cusparseSpMMAlg_t kWay = CUSPARSE_SPMM_BLOCKED_ELL_ALG1;
  static constexpr float kOne = 1, kZero = 0;

  cusparseStatus_t multiply() {
    return call_.spmm(handle_, kAsIs, kAsIs, &kOne, w_, x_, &kZero, y_, CUDA_R_32F, kWay,
                      workspace_.tensor().data);
  }

  /// Each row of blocks stores its blocks side by side, as our format does, plus empty blocks.
  void pack(Arena& arena, const Tensor& packed) {
    const auto& begin = pattern_.block_begin;
    const auto rows_of_blocks = static_cast<int64_t>(begin.size()) - 1;
    for (size_t r = 0; r + 1 < begin.size(); ++r) {
      width_ = std::max<int64_t>(width_, begin[r + 1] - begin[r]);
    }
    columns_ =
        arena.allocate(Memory::scratch, "ELL columns", DType::int32, {rows_of_blocks * width_});
    values_ = arena.allocate(Memory::scratch, "ELL values", packed.dtype,
                             {pattern_.rows, width_ * pattern_.width});
    const Mirror columns(stream_, columns_.tensor());
    const Mirror values(stream_, values_.tensor());
    const Mirror ours(stream_, packed);
    ours.read();
    std::ranges::fill(columns.host().span<int32_t>(), -1);
    std::memset(values.host().data, 0, values.host().bytes());
    int64_t k = 0;
    for (int64_t row = 0; row < pattern_.rows; ++row) {
      const auto r = static_cast<size_t>(row / pattern_.height);
      const int64_t kept = (begin[r + 1] - begin[r]) * pattern_.width;
      for (int64_t c = 0; c < kept; ++c) {
        kernels::write(values.host(), row * width_ * pattern_.width + c,
                       kernels::read(ours.host(), k++));
      }
    }
    for (size_t r = 0; r + 1 < begin.size(); ++r) {
      std::copy(pattern_.block_column.begin() + begin[r],
                pattern_.block_column.begin() + begin[r + 1],
                columns.host().span<int32_t>().begin() + static_cast<int64_t>(r) * width_);
    }
    columns.write();
    values.write();
  }

  const Functions& call_;
  Stream& stream_;
  const BlockPattern& pattern_;
  int64_t width_ = 1;  ///< blocks in a row of blocks
  Buffer columns_, values_, workspace_;
  cusparseHandle_t handle_ = nullptr;
  cusparseSpMatDescr_t w_ = nullptr;
  cusparseDnMatDescr_t x_ = nullptr, y_ = nullptr;
};

}  // namespace

std::unique_ptr<BlockEll> make_block_ell(kernels::Backend& backend,
                                         const BlockEllProduct& product) {
  const BlockPattern& p = product.pattern;
  const bool whole = p.height == p.width && p.rows % p.height == 0 && p.cols % p.width == 0;
  if (backend.kernels().name != "cuda" || functions() == nullptr || !whole) {
    return nullptr;
  }
  auto made = std::make_unique<CusparseEll>(backend, product);
  return made->prepare(backend.arena()) ? std::move(made) : nullptr;
}

}  // namespace espalier::bench
