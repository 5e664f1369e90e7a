#pragma once
// Times of the operations of a table, summed by name, shape and cost: what a step spends where.
//
//   OperationTimes times(kernels);        kernels: any table
//   Backend backend(times.table(), …);    a table whose calls are timed
//   times.rows();                         sums so far, longest first
//
// On the CPU a clock reads the time of each call. On a device, events in the call's queue do, so
// the host does not wait; calls of a captured graph cannot be timed this way. Operations of queues
// that overlap count in full, so sums can exceed the elapsed time.
#include <array>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "src/kernels/kernels.h"

namespace espalier::kernels {

struct OperationRow {
  std::string name;  ///< of the operation, and a fused one: "gemm", "gemm slope"
  /// Of a product: M, N, K. Of a sparse one: tokens, rows, columns, kept elements. Of a
  /// convolution: positions of its outputs, channels out, extent² × channels in, and the kept
  /// elements of a sparse one. Of attention: sequences, tokens, heads, columns of a head. Else
  /// zeros.
  std::array<int64_t, 4> extents{};
  int64_t calls = 0;
  double seconds = 0;  ///< of all calls
  DryCount cost;       ///< of one call: flops, and bytes if every operand moves once

  std::string text() const;  ///< "gemm 768x3072x512"
};

/// One per thread at a time; the thread that creates it makes the calls of its table.
class OperationTimes {
 public:
  explicit OperationTimes(const Kernels& inner);
  ~OperationTimes();
  OperationTimes(const OperationTimes&) = delete;
  OperationTimes& operator=(const OperationTimes&) = delete;

  const Kernels& table() const { return table_; }
  const Kernels& inner() const { return inner_; }
  /// Forgets all calls so far, as after a warm-up.
  void clear();
  /// Whether the next calls count; they do until told otherwise.
  void count(bool on) { counts_ = on; }
  bool counts() const { return counts_; }
  /// Waits for the calls so far.
  std::vector<OperationRow> rows();

  /// For the table: the time of a call, from `begin` to now.
  void add(const OperationRow& row, Stream& stream, std::unique_ptr<TimePoint> begin);

 private:
  struct Key {
    std::string name;
    std::array<int64_t, 4> extents;
    double flops, bytes;
    auto operator<=>(const Key&) const = default;
  };
  struct Sum {
    int64_t calls = 0;
    double seconds = 0;
  };
  struct Pending {
    Key key;
    std::unique_ptr<TimePoint> begin, end;
  };
  void settle(size_t most_pending);

  const Kernels& inner_;
  Kernels table_;
  bool counts_ = true;
  std::map<Key, Sum> sums_;
  std::deque<Pending> pending_;  ///< calls that a device may not have finished
};

/// During its lifetime calls do not count. `times` may be null.
class Uncounted {
 public:
  explicit Uncounted(OperationTimes* times) : times_(times) { count(false); }
  ~Uncounted() { count(true); }
  Uncounted(const Uncounted&) = delete;
  Uncounted& operator=(const Uncounted&) = delete;

 private:
  void count(bool on) {
    if (times_ != nullptr) {
      times_->count(on);
    }
  }

  OperationTimes* times_;
};

}  // namespace espalier::kernels
