// Sparse products for the harness: loops of the host, run by the queue. Like a library they analyse
// the lists of a matrix once, before its first product, and reuse the analysis: keeping one after
// the mask has changed gives wrong results. No SDDMM of halves, so that the fallback is tested.
#include "tests/simt/sparse_host.h"

#include <map>
#include <vector>

#include "src/kernels/cuda/device/launch.h"
#include "src/kernels/cuda/sparse/library.h"

namespace espalier::simt {

int64_t& library_products() {
  static thread_local int64_t count = 0;
  return count;
}

}  // namespace espalier::simt

namespace espalier::kernels::ESPALIER_GPU {
namespace {

struct Analysis {
  std::vector<int32_t> begin, column;
};

class Analyses final : public Prepared {
 public:
  std::shared_ptr<Analysis> of(Stream& stream, const CsrMatrix& matrix) {
    std::shared_ptr<Analysis>& known = known_[matrix.begin];
    if (known == nullptr) {
      known = std::make_shared<Analysis>();
      queue_of(stream).enqueue([into = known, matrix] {
        into->begin.assign(matrix.begin, matrix.begin + matrix.rows + 1);
        into->column.assign(matrix.column, matrix.column + matrix.count);
      });
    }
    return known;
  }

 private:
  std::map<const int32_t*, std::shared_ptr<Analysis>> known_;
};

std::shared_ptr<Analysis> analysis_of(Stream& stream, const CsrMatrix& matrix,
                                      std::unique_ptr<Prepared>& kept) {
  if (kept == nullptr) {
    kept = std::make_unique<Analyses>();
  }
  return dynamic_cast<Analyses&>(*kept).of(stream, matrix);
}

float load(const void* data, DType type, int64_t i) {
  float x = 0;
  with_number(type,
              [&]<class Number>(Number) { x = to_float(static_cast<const Number*>(data)[i]); });
  return x;
}
void store(void* data, DType type, int64_t i, float x) {
  with_number(type,
              [&]<class Number>(Number) { static_cast<Number*>(data)[i] = from_float<Number>(x); });
}
float at(const DenseMatrix& m, int64_t row, int64_t col) {
  return load(m.data, m.type, row * m.stride + col);
}

void multiply(const LibraryProduct& p, const Analysis& seen) {
  for (int64_t token = 0; token < p.tokens; ++token) {
    for (int64_t n = 0; n < p.matrix.rows; ++n) {
      float sum = 0;
      for (int32_t k = seen.begin[n]; k < seen.begin[n + 1]; ++k) {
        sum += load(p.matrix.values, p.matrix.type, k) * at(p.a, token, seen.column[k]);
      }
      const float before = p.accumulate ? at(p.b, token, n) : 0.0F;
      store(p.b.data, p.b.type, token * p.b.stride + n, before + sum);
    }
  }
}

void sample(const LibraryProduct& p, const Analysis& seen) {
  for (int64_t n = 0; n < p.matrix.rows; ++n) {
    for (int32_t k = seen.begin[n]; k < seen.begin[n + 1]; ++k) {
      float sum = 0;
      for (int64_t token = 0; token < p.tokens; ++token) {
        sum += at(p.a, token, n) * at(p.b, token, seen.column[k]);
      }
      const float before = p.accumulate ? load(p.matrix.values, p.matrix.type, k) : 0.0F;
      store(p.matrix.values, p.matrix.type, k, before + sum);
    }
  }
}

}  // namespace

bool library_spmm(Stream& stream, const LibraryProduct& product, std::unique_ptr<Prepared>& kept) {
  ++simt::library_products();
  queue_of(stream).enqueue(
      [product, seen = analysis_of(stream, product.matrix, kept)] { multiply(product, *seen); });
  return true;
}

bool library_sddmm(Stream& stream, const LibraryProduct& product, std::unique_ptr<Prepared>& kept) {
  if (product.a.type != DType::fp32) {
    return false;
  }
  ++simt::library_products();
  queue_of(stream).enqueue(
      [product, seen = analysis_of(stream, product.matrix, kept)] { sample(product, *seen); });
  return true;
}

}  // namespace espalier::kernels::ESPALIER_GPU
