#include "src/kernels/operation_times.h"

#include <algorithm>

#include "src/core/error.h"
#include "src/kernels/verify/verify.h"

namespace espalier::kernels {
namespace {

thread_local OperationTimes* t_times = nullptr;

std::string name_of(const char* row, const GemmArgs& args) {
  const int64_t inner = args.transpose_a ? args.a.rows() : args.a.cols();
  return fmt::format("{} {}x{}x{}{}", row, args.c.rows(), args.c.cols(), inner,
                     args.preactivation ? " slope"
                     : args.activated   ? " activated"
                                        : "");
}

template <class Args>
std::string name_of(const char* row, const Args& /*args*/) {
  return row;
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
  t_times->add(name_of(row, args), cost(args), stream, std::move(begin));
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

OperationTimes::OperationTimes(const Kernels& inner) : inner_(inner), table_(timed_table(inner)) {
  require(t_times == nullptr, "one OperationTimes a thread");
  t_times = this;
}

OperationTimes::~OperationTimes() { t_times = nullptr; }

void OperationTimes::clear() {
  settle(0);
  sums_.clear();
}

void OperationTimes::add(std::string name, const DryCount& cost, Stream& stream,
                         std::unique_ptr<TimePoint> begin) {
  constexpr size_t kMostPending = 4096;  // events in use at a time
  pending_.push_back({.key = {.name = std::move(name), .flops = cost.flops, .bytes = cost.bytes},
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
                    .calls = sum.calls,
                    .seconds = sum.seconds,
                    .cost = {.flops = key.flops, .bytes = key.bytes}});
  }
  std::ranges::sort(rows, std::greater{}, &OperationRow::seconds);
  return rows;
}

}  // namespace espalier::kernels
