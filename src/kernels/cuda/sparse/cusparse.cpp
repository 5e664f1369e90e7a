// cuSPARSE is used column-major: row-major [tokens, features] is column-major [features, tokens],
// and cuSPARSE computes yᵀ = W xᵀ.
//
// - SpMM: CUSPARSE_SPMM_CSR_ALG3 is the only deterministic algorithm; it does not transpose. Where
//   results need not be deterministic, the library's default is used.
// - SDDMM has one algorithm, which is deterministic.
// - A product of a shape is described, analysed and given its workspace once. Later calls set new
//   values and operands.
// - cuSPARSE reports an unsupported product when its workspace size is requested or when it is run.
#include "src/kernels/cuda/sparse/cusparse.h"

#include <algorithm>
#include <array>
#include <compare>
#include <functional>

#include "src/kernels/cuda/device/queue.h"
#include "src/kernels/cuda/device/toolkit.h"
#include "src/kernels/library_uses.h"

namespace espalier::kernels::ESPALIER_GPU {
namespace {

struct Loaded {
  std::unique_ptr<CusparseFunctions> functions;
  std::string why_not;
};

const Loaded& loaded() {
  // Never unloaded: queues and plans destroy their handles when the process ends.
  static const auto* const made = [] {
    auto load = std::make_unique<Loaded>();
    try {
      load->functions = std::make_unique<CusparseFunctions>();
    } catch (const Failure& failure) {
      load->why_not = failure.what();
    }
    return load.release();
  }();
  return *made;
}

void check_sparse(cusparseStatus_t status, const char* what) {
  check(status == CUSPARSE_STATUS_SUCCESS, "cuSPARSE, {}: {}", what,
        cusparse()->error_string(status));
}

/// Returns false if not supported. Throws Failure for any other error.
bool supported(cusparseStatus_t status, const char* what) {
  if (status == CUSPARSE_STATUS_NOT_SUPPORTED) {
    return false;
  }
  check_sparse(status, what);
  return true;
}

cudaDataType native_type(DType type) {
  return type == DType::bf16 ? CUDA_R_16BF : type == DType::fp16 ? CUDA_R_16F : CUDA_R_32F;
}

class SparseMatrixOf {
 public:
  explicit SparseMatrixOf(const CsrMatrix& m) {
    check_sparse(
        cusparse()->create_csr(&native_, m.rows, m.cols, m.count, const_cast<int32_t*>(m.begin),
                               const_cast<int32_t*>(m.column), m.values, CUSPARSE_INDEX_32I,
                               CUSPARSE_INDEX_32I, CUSPARSE_INDEX_BASE_ZERO, native_type(m.type)),
        "matrix");
  }
  ~SparseMatrixOf() { static_cast<void>(cusparse()->destroy_sparse(native_)); }
  SparseMatrixOf(const SparseMatrixOf&) = delete;
  SparseMatrixOf& operator=(const SparseMatrixOf&) = delete;
  void set(void* values) { check_sparse(cusparse()->set_sparse_values(native_, values), "values"); }
  cusparseSpMatDescr_t native() const { return native_; }

 private:
  cusparseSpMatDescr_t native_ = nullptr;
};

/// `order`: memory order of [rows, cols].
class DenseMatrixOf {
 public:
  DenseMatrixOf(const DenseMatrix& m, int64_t rows, int64_t cols, cusparseOrder_t order) {
    check_sparse(cusparse()->create_dense(&native_, rows, cols, m.stride, m.data,
                                          native_type(m.type), order),
                 "operand");
  }
  ~DenseMatrixOf() { static_cast<void>(cusparse()->destroy_dense(native_)); }
  DenseMatrixOf(const DenseMatrixOf&) = delete;
  DenseMatrixOf& operator=(const DenseMatrixOf&) = delete;
  void set(void* data) { check_sparse(cusparse()->set_dense_values(native_, data), "operand"); }
  cusparseDnMatDescr_t native() const { return native_; }

 private:
  cusparseDnMatDescr_t native_ = nullptr;
};

/// All properties that an analysis depends on.
struct Key {
  bool samples;  ///< SDDMM
  bool deterministic;
  const int32_t* begin;
  int64_t tokens, first_stride, second_stride;
  DType values, first, second;
  auto operator<=>(const Key&) const = default;
};

/// One product of one matrix; values and operands change from call to call.
struct Plan {
  Plan(const Key& k, const CsrMatrix& m, const DenseMatrix& first, cusparseOrder_t first_order,
       const DenseMatrix& second, cusparseOrder_t second_order, const std::array<int64_t, 4>& sizes)
      : key(k),
        matrix(m),
        a(first, sizes[0], sizes[1], first_order),
        b(second, sizes[2], sizes[3], second_order) {}

  void set(void* values, const DenseMatrix& first, const DenseMatrix& second) {
    matrix.set(values);
    a.set(first.data);
    b.set(second.data);
  }

  Key key;
  SparseMatrixOf matrix;
  DenseMatrixOf a, b;
  bool refused = false;
  Buffer workspace;
};

/// The plans of a matrix, the oldest first. At most kMax are kept: micro-batches have few shapes,
/// and each plan has a workspace. Recordings own the plans that they use.
class Plans final : public Prepared {
 public:
  std::shared_ptr<Plan> find(const Key& key) {
    const auto found = std::ranges::find(plans_, key, [](const auto& plan) { return plan->key; });
    return found == plans_.end() ? nullptr : *found;
  }
  std::shared_ptr<Plan> add(std::shared_ptr<Plan> plan) {
    constexpr size_t kMax = 8;
    if (plans_.size() == kMax) {
      plans_.erase(plans_.begin());
    }
    return plans_.emplace_back(std::move(plan));
  }

 private:
  std::vector<std::shared_ptr<Plan>> plans_;
};

Plans& plans_of(std::unique_ptr<Prepared>& kept) {
  if (kept == nullptr) {
    kept = std::make_unique<Plans>();
  }
  return dynamic_cast<Plans&>(*kept);
}

cusparseHandle_t handle_of(Stream& stream) { return queue_of(stream).cusparse().native(); }

/// Returns false if memory is exhausted: memory plans do not count this workspace, and our own
/// kernels need none.
bool take_workspace(Stream& stream, size_t bytes, Plan& plan) {
  try {
    plan.workspace =
        stream.arena().allocate(Memory::scratch, "cuSPARSE workspace", DType::uint8,
                                Shape{std::max<int64_t>(static_cast<int64_t>(bytes), 16)});
  } catch (const Failure&) {
    if (queue_of(stream).recording()) {
      throw;  // the recording may be the cause
    }
    return false;
  }
  return true;
}

constexpr cusparseOperation_t kAsIs = CUSPARSE_OPERATION_NON_TRANSPOSE;
constexpr float kOne = 1;

/// The product for these keys: a is x, b is y [tokens, rows] of SpMM; a is dyᵀ, b is x of SDDMM.
std::shared_ptr<Plan> describe(const Key& key, const LibraryProduct& p) {
  const CsrMatrix& m = p.matrix;
  return key.samples
             ? std::make_shared<Plan>(key, m, p.a, CUSPARSE_ORDER_COL, p.b, CUSPARSE_ORDER_ROW,
                                      std::array{m.rows, p.tokens, p.tokens, m.cols})
             : std::make_shared<Plan>(key, m, p.a, CUSPARSE_ORDER_COL, p.b, CUSPARSE_ORDER_COL,
                                      std::array{m.cols, p.tokens, m.rows, p.tokens});
}

/// Calls of cuSPARSE for one kind of product, with the operands of a plan.
struct Calls {
  std::function<cusparseStatus_t(const Plan&, size_t* bytes)> size;
  std::function<cusparseStatus_t(const Plan&, void*workspace)> prepare, run;
};

std::string text_of(const Key& key, const CsrMatrix& m) {
  return fmt::format("{} of {} x {} with {} kept, {} tokens, {}{}",
                     key.samples ? "gradient of a sparse matrix" : "sparse product", m.rows, m.cols,
                     m.count, key.tokens, name_of(key.values),
                     key.deterministic ? "" : ", any order");
}

/// Enqueues the product by its plan, which is made, analysed and given its workspace at its first
/// use. Returns false if the product is not supported.
bool enqueue(Stream& stream, const Key& key, const LibraryProduct& p,
             std::unique_ptr<Prepared>& kept, const Calls& calls) {
  Plans& plans = plans_of(kept);
  std::shared_ptr<Plan> plan = plans.find(key);
  const bool first = plan == nullptr;
  if (first) {
    plan = plans.add(describe(key, p));
    size_t bytes = 0;
    plan->refused = !supported(calls.size(*plan, &bytes), "size of a workspace") ||
                    !take_workspace(stream, bytes, *plan) ||
                    !supported(calls.prepare(*plan, plan->workspace.tensor().data), "analysis");
  }
  queue_of(stream).hold(plan);
  if (!plan->refused) {
    plan->set(p.matrix.values, p.a, p.b);
    plan->refused = !supported(calls.run(*plan, plan->workspace.tensor().data), "product");
  }
  if (first) {
    record_library_use(text_of(key, p.matrix),
                       plan->refused ? "our kernel: cuSPARSE has none" : "cuSPARSE");
  }
  return !plan->refused;
}

Key key_of(const Stream& stream, const LibraryProduct& p, bool samples) {
  return {.samples = samples,
          .deterministic = samples || stream.deterministic(),
          .begin = p.matrix.begin,
          .tokens = p.tokens,
          .first_stride = p.a.stride,
          .second_stride = p.b.stride,
          .values = p.matrix.type,
          .first = p.a.type,
          .second = p.b.type};
}

}  // namespace

CusparseFunctions::CusparseFunctions()
    : library(toolkit_names(fmt::format("libcusparse.so.{}", CUSPARSE_VER_MAJOR), "CUSPARSE_DIR"),
              "unstructured sparse products on a GPU",
              "set CUSPARSE_DIR to the folder that holds it; our own kernels compute instead") {
  library.find("cusparseCreate", create);
  library.find("cusparseDestroy", destroy);
  library.find("cusparseSetStream", set_stream);
  library.find("cusparseGetErrorString", error_string);
  library.find("cusparseCreateCsr", create_csr);
  library.find("cusparseDestroySpMat", destroy_sparse);
  library.find("cusparseSpMatSetValues", set_sparse_values);
  library.find("cusparseCreateDnMat", create_dense);
  library.find("cusparseDestroyDnMat", destroy_dense);
  library.find("cusparseDnMatSetValues", set_dense_values);
  library.find("cusparseSpMM_bufferSize", spmm_size);
  library.find("cusparseSpMM_preprocess", spmm_prepare);
  library.find("cusparseSpMM", spmm);
  library.find("cusparseSDDMM_bufferSize", sddmm_size);
  library.find("cusparseSDDMM_preprocess", sddmm_prepare);
  library.find("cusparseSDDMM", sddmm);
}

const CusparseFunctions* cusparse() { return loaded().functions.get(); }

std::string cusparse_state() {
  return loaded().functions != nullptr ? loaded().functions->library.name() : loaded().why_not;
}

CusparseHandle::CusparseHandle(cudaStream_t stream) {
  check_sparse(cusparse()->create(&handle_), "handle");
  check_sparse(cusparse()->set_stream(handle_, stream), "stream");
}

CusparseHandle::~CusparseHandle() { static_cast<void>(cusparse()->destroy(handle_)); }

bool library_spmm(Stream& stream, const LibraryProduct& p, std::unique_ptr<Prepared>& kept) {
  if (cusparse() == nullptr) {
    return false;
  }
  const Key key = key_of(stream, p, false);
  const CusparseFunctions& f = *cusparse();
  const auto algorithm = key.deterministic ? CUSPARSE_SPMM_CSR_ALG3 : CUSPARSE_SPMM_ALG_DEFAULT;
  const float beta = p.accumulate ? 1 : 0;
  const auto with = [&, handle = handle_of(stream)](auto* function) {
    return [&beta, algorithm, handle, function](const Plan& plan, auto workspace) {
      return function(handle, kAsIs, kAsIs, &kOne, plan.matrix.native(), plan.a.native(), &beta,
                      plan.b.native(), CUDA_R_32F, algorithm, workspace);
    };
  };
  return enqueue(stream, key, p, kept, {with(f.spmm_size), with(f.spmm_prepare), with(f.spmm)});
}

bool library_sddmm(Stream& stream, const LibraryProduct& p, std::unique_ptr<Prepared>& kept) {
  if (cusparse() == nullptr ||
      p.a.type != DType::fp32) {  // 12.6 has no bf16 SDDMM; each try prints to stderr
    return false;
  }
  const CusparseFunctions& f = *cusparse();
  const float beta = p.accumulate ? 1 : 0;
  const auto with = [&, handle = handle_of(stream)](auto* function) {
    return [&beta, handle, function](const Plan& plan, auto workspace) {
      return function(handle, kAsIs, kAsIs, &kOne, plan.a.native(), plan.b.native(), &beta,
                      plan.matrix.native(), CUDA_R_32F, CUSPARSE_SDDMM_ALG_DEFAULT, workspace);
    };
  };
  return enqueue(stream, key_of(stream, p, true), p, kept,
                 {with(f.sddmm_size), with(f.sddmm_prepare), with(f.sddmm)});
}

}  // namespace espalier::kernels::ESPALIER_GPU
