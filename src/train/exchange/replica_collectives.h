#pragma once
// Collectives over the replicas of a stage: reduction of gradients, and with ZeRO-1 the gather of
// updated values: through the host (host_collectives.cpp) or between devices by NCCL
// (device_collectives.cpp).
//
//   collectives.begin(gradient);                  before kernels compute it
//   collectives.start_reduce(buckets);            from now on a bucket is sent once it is final
//   for each layer { …; collectives.gradient_ready(end); }
//   collectives.finish_reduce();                  kernels enqueued afterwards read sums
//
// `start_reduce` may also follow the last `gradient_ready`. Codecs are those of `gradient_wire` and
// `value_wire`, whose segments the caller sets.
#include <deque>
#include <memory>
#include <span>

#include "parallel/reduction/partition.h"
#include "parallel/wire/wire.h"
#include "sparse/store/sharding.h"
#include "src/core/stream.h"
#include "src/train/exchange/reduction_timer.h"

namespace espalier::train {

class ReplicaCollectives {
 public:
  ReplicaCollectives() = default;
  ReplicaCollectives(const ReplicaCollectives&) = delete;
  ReplicaCollectives& operator=(const ReplicaCollectives&) = delete;
  virtual ~ReplicaCollectives() = default;

  virtual parallel::Wire& gradient_wire() = 0;
  virtual parallel::Wire& value_wire() = 0;

  /// How the gradient is cut into buckets. Without `partition`: at `boundaries` (ends of
  /// parameters); sums reach all ranks. With `partition`: at its ends; each rank gets the sums of
  /// its slices.
  struct Buckets {
    std::span<const int64_t> boundaries = {};
    const parallel::Partition* partition = nullptr;
    int64_t first = 0;  ///< number of the array's first element in the wire's segments
  };
  virtual void begin(const Tensor& gradient) = 0;
  virtual void start_reduce(const Buckets& buckets) = 0;
  /// The kernels that compute elements [0, end) are enqueued. `end` never decreases.
  virtual void gradient_ready(int64_t end) = 0;
  /// The whole gradient in host memory. Waits for it.
  virtual const Tensor& gradient_on_host() = 0;
  virtual void finish_reduce() = 0;

  /// Before this rank's slices of `value` are updated. `coded`: values are sent by `value_wire`.
  virtual void start_gather(const Tensor& value, const parallel::Partition& partition,
                            bool coded) = 0;
  /// The kernels that update this rank's slices within [0, end) are enqueued.
  virtual void value_ready(int64_t end) = 0;
  virtual void finish_gather() = 0;

  /// A reduction of `elements` values in this format, for measurements. No other collective runs,
  /// and the gradient is overwritten, until it ends. Collective.
  virtual std::unique_ptr<TimedReduction> timed_reduction(const kernels::WireFormat& format,
                                                          int64_t elements) = 0;

  /// Whether the two functions below may be called. Kernels enqueued afterwards read their results.
  virtual bool on_device() const { return false; }
  /// Sums exact sums (ExactSum::add_to) over all replicas.
  virtual void all_reduce_counts(const Tensor& /*counts*/) {}
  /// Gathers each replica's ranges on all replicas.
  virtual void all_gather(std::span<const sparse::SharedVector> /*vectors*/) {}
};

std::unique_ptr<ReplicaCollectives> host_collectives(const io::Config& config,
                                                     parallel::Communicator& replicas,
                                                     Stage& stage);
/// Collective over the replicas. Throws Failure: parallel::NcclLink::obstacle.
std::unique_ptr<ReplicaCollectives> device_collectives(const io::Config& config,
                                                       parallel::Communicator& replicas,
                                                       Stage& stage);

/// The reason why this config needs reductions on the host on any device; empty: none.
std::string device_obstacle(const io::Config& config);
/// The reason why these ranks cannot reduce from device to device; empty: they can. Collective.
std::string device_obstacle(const io::Config& config, parallel::Communicator& ranks,
                            Stream& stream);

/// The host's view of a flat array. Without a device: the array itself. On a device: pinned memory
/// as large as the array. Prefixes are copied to it while kernels run; the result of the collective
/// is copied back.
class HostCopy {
 public:
  /// `stream` must outlive it. `copies`: false if there is one replica; then nothing is copied.
  HostCopy(Stream& stream, bool copies) : stream_(stream), copies_(copies) {}

  void begin(const Tensor& flat);
  const Tensor& host() const { return host_; }
  /// Enqueues the copy of elements up to `end`, whose kernels are enqueued. `end` never decreases.
  void fetch(int64_t end);
  /// The elements that have arrived. Does not wait.
  int64_t arrived();
  /// Fetches all elements and waits for them.
  void fetch_all();
  /// Copies the array back to where kernels read it.
  void write_back();

 private:
  bool copies() const { return copies_ && flat_.on_device; }

  Stream& stream_;
  bool copies_;
  Tensor flat_, host_;
  Buffer memory_;
  int64_t fetched_ = 0, arrived_ = 0;
  struct Copy {
    int64_t end = 0;
    Mark mark = 0;
  };
  std::deque<Copy> in_flight_;
};

}  // namespace espalier::train
