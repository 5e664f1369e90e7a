#pragma once
// How the flat arrays of a stage get to its replicas and back (exchange.h says when): gradients
// become their sums, and values those of all ranks. By the host, or from device to device.
//
//   transfer.follow(gradient);                 kernels are about to compute it
//   transfer.sum(buckets);                     from now on buckets go as they become final
//   for each layer { …; transfer.ready(end); }
//   transfer.finish();                         kernels asked for from now on find sums
//
// Sums of whole arrays may begin late: `sum` after the last `ready`. Codecs go by `gradient_wire`
// and `value_wire`, whose segments the caller sets, and matrices of `low_rank` as factors.
#include <span>

#include "parallel/reduction/partition.h"
#include "parallel/reduction/powersgd/factors.h"
#include "parallel/wire/wire.h"
#include "sparse/store/sharding.h"
#include "src/train/exchange/timed_sum.h"

namespace espalier::train {

class Transfer {
 public:
  Transfer() = default;
  Transfer(const Transfer&) = delete;
  Transfer& operator=(const Transfer&) = delete;
  virtual ~Transfer() = default;

  virtual parallel::Wire& gradient_wire() = 0;
  virtual parallel::Wire& value_wire() = 0;
  /// Of gradients whose codec is powersgd.
  virtual parallel::LowRank& low_rank() = 0;

  /// Where gradients are cut: at ends of parameters, for sums on all ranks, or, with a partition,
  /// as that says, for those of a rank's slices.
  struct Cut {
    std::span<const int64_t> boundaries = {};
    const parallel::Partition* partition = nullptr;
    int64_t first = 0;  ///< number of the array's first element, as the wire counts
  };
  virtual void follow(const Tensor& gradient) = 0;
  virtual void sum(const Cut& cut) = 0;
  /// Elements [0, end) have been asked of kernels. `end` never decreases.
  virtual void ready(int64_t end) = 0;
  /// All of them, with waiting, for the host.
  virtual const Tensor& on_host() = 0;
  virtual void finish() = 0;

  /// This rank's slices of `value` are about to be made. `coded`: they travel by `value_wire`.
  virtual void gather(const Tensor& value, const parallel::Partition& partition, bool coded) = 0;
  /// Those within [0, end) have been asked of kernels.
  virtual void stepped(int64_t end) = 0;
  virtual void finish_gather() = 0;

  /// `elements` numbers that travel as gradients do, in this format. No array is on its way, and the
  /// gradient has no meaning, until it ends. Collective.
  virtual std::unique_ptr<TimedSum> timed_sum(const kernels::WireFormat& format,
                                              int64_t elements) = 0;

  /// Whether what follows can be called, for kernels asked for from now on.
  virtual bool on_device() const { return false; }
  /// Exact sums (ExactSum::add_to) of all replicas become one.
  virtual void sum_counts(const Tensor& /*counts*/) {}
  /// All replicas get each other's ranges.
  virtual void collect(std::span<const sparse::SharedVector> /*vectors*/) {}
};

}  // namespace espalier::train
