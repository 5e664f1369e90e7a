#include "src/kernels/operation_times.h"

#include <algorithm>

#include "src/core/error.h"
#include "src/kernels/verify/verify.h"

namespace espalier::kernels {
namespace {

thread_local OperationTimes* t_times = nullptr;

OperationRow row_of(const char* name, const GemmArgs& args) {
  const int64_t inner = args.transpose_a ? args.a.rows() : args.a.cols();
  return {.name = fmt::format("{}{}", name,
                              args.preactivation ? " slope"
                              : args.activated   ? " activated"
                                                 : ""),
          .extents = {args.c.rows(), args.c.cols(), inner, 0},
          .cost = {}};
}

template <class Matrix>
OperationRow sparse_row(std::string name, const Matrix& weight, const Tensor& activations) {
  return {.name = std::move(name),
          .extents = {activations.rows(), weight.rows, weight.cols, weight.values.count()},
          .cost = {}};
}
template <class Matrix>
OperationRow row_of(const char* name, const SpmmOf<Matrix>& args) {
  return sparse_row(name, args.weight, args.x);
}
template <class Matrix>
OperationRow row_of(const char* name, const SpmmTransposedOf<Matrix>& args) {
  return sparse_row(name, args.weight, args.dy);
}
template <class Matrix>
OperationRow row_of(const char* name, const SddmmOf<Matrix>& args) {
  return sparse_row(name, args.weight, args.x);
}

template <class Args>
OperationRow attention_row(const char* name, const Args& args) {
  return {.name = name,
          .extents = {args.qkv.shape[0], args.qkv.shape[1], args.heads,
                      args.out.count() / (args.lse.count() > 0 ? args.lse.count() : 1)},
          .cost = {}};
}
OperationRow row_of(const char* name, const AttentionArgs& args) {
  return attention_row(name, args);
}
OperationRow row_of(const char* name, const AttentionBackwardArgs& args) {
  return attention_row(name, args);
}

/// A convolution is a product with as many rows as its outputs have positions.
OperationRow convolution_row(const char* name, const Tensor& outputs, int64_t rows, int64_t cols,
                             int64_t kept) {
  return {.name = name, .extents = {outputs.count() / rows, rows, cols, kept}, .cost = {}};
}
OperationRow row_of(const char* name, const ConvolutionArgs& args) {
  return convolution_row(name, args.y, args.weight.rows(), args.weight.cols(), 0);
}
OperationRow row_of(const char* name, const ConvolutionInputArgs& args) {
  return convolution_row(name, args.dy, args.weight.rows(), args.weight.cols(), 0);
}
OperationRow row_of(const char* name, const ConvolutionWeightArgs& args) {
  return convolution_row(name, args.dy, args.dweight.rows(), args.dweight.cols(), 0);
}
OperationRow row_of(const char* name, const SparseConvolutionArgs& args) {
  return convolution_row(name, args.y, args.weight.rows, args.weight.cols,
                         args.weight.values.count());
}
OperationRow row_of(const char* name, const SparseConvolutionInputArgs& args) {
  return convolution_row(name, args.dy, args.weight.rows, args.weight.cols,
                         args.weight.values.count());
}
OperationRow row_of(const char* name, const SparseConvolutionWeightArgs& args) {
  return convolution_row(name, args.dy, args.weight.rows, args.weight.cols,
                         args.weight.values.count());
}

template <class Args>
OperationRow row_of(const char* name, const Args& /*args*/) {
  return {.name = name, .cost = {}};
}

template <auto Row, class Args>
void timed(Stream& stream, const Args& args, const char* row) {
  require(t_times != nullptr, "the thread that calls timed operations made their table");
  if (!t_times->counts()) {
    (t_times->inner().*Row)(stream, args);
    return;
  }
  std::unique_ptr<TimePoint> begin = time_point(stream.queue());
  (t_times->inner().*Row)(stream, args);
  OperationRow called = row_of(row, args);
  called.cost = cost(args);
  t_times->add(called, stream, std::move(begin));
}

Kernels timed_table(const Kernels& inner) {
  Kernels table = inner;
#define ESPALIER_OPERATION(row, Args, on_cpu)          \
  if (inner.row != nullptr) {                          \
    table.row = [](Stream& stream, const Args& args) { \
      timed<&Kernels::row, Args>(stream, args, #row);  \
    };                                                 \
  }
#include "src/kernels/operations.def"
  return table;
}

}  // namespace

std::string OperationRow::text() const {
  std::string all = name;
  for (size_t i = 0; i < extents.size() && extents[i] > 0; ++i) {
    all += fmt::format("{}{}", i == 0 ? " " : "x", extents[i]);
  }
  return all;
}

OperationTimes::OperationTimes(const Kernels& inner) : inner_(inner), table_(timed_table(inner)) {
  require(t_times == nullptr, "one OperationTimes a thread");
  t_times = this;
}

OperationTimes::~OperationTimes() { t_times = nullptr; }

void OperationTimes::clear() {
  settle(0);
  sums_.clear();
}

void OperationTimes::add(const OperationRow& row, Stream& stream,
                         std::unique_ptr<TimePoint> begin) {
  constexpr size_t kMostPending = 4096;  // events in use at a time
  pending_.push_back({.key = {.name = row.name,
                              .extents = row.extents,
                              .flops = row.cost.flops,
                              .bytes = row.cost.bytes},
                      .begin = std::move(begin),
                      .end = time_point(stream.queue())});
  settle(stream.queue() == nullptr ? 0 : kMostPending);
}

void OperationTimes::settle(size_t most_pending) {
  while (pending_.size() > most_pending) {
    const Pending& first = pending_.front();
    Sum& sum = sums_[first.key];
    ++sum.calls;
    sum.seconds += first.end->seconds_since(*first.begin);
    pending_.pop_front();
  }
}

std::vector<OperationRow> OperationTimes::rows() {
  settle(0);
  std::vector<OperationRow> rows;
  for (const auto& [key, sum] : sums_) {
    rows.push_back({.name = key.name,
                    .extents = key.extents,
                    .calls = sum.calls,
                    .seconds = sum.seconds,
                    .cost = {.flops = key.flops, .bytes = key.bytes}});
  }
  std::ranges::sort(rows, std::greater{}, &OperationRow::seconds);
  return rows;
}

}  // namespace espalier::kernels
