#pragma once
// A group of ranks, each with its own GPU, that exchange GPU memory with NCCL in queue order. Calls
// enqueue work and return; the host does not wait. The link has its own queue beside the compute
// queue; `follow_compute` and `lead_compute` order the two.
//
//   NcclLink link(comm, stream);          collective
//   link.follow_compute();                messages run after the kernels enqueued so far
//   link.group("doing this", [&] { link.send(1, mine); link.receive(1, theirs); });
//   kernels.cast(link.stream(), …);       on received data
//   link.lead_compute();                  kernels enqueued from now on see the results
//
// Messages of a group run together; between two ranks, messages of one direction match in order.
// `comm` counts sent bytes.
//
// Lost peers: while the host waits for a queue of the device, a callback (wait_hook.h) checks NCCL
// and `comm`. The link aborts the group, which ends work that its GPU still waits for, and throws
// PeerLost with `doing` after any of:
// - `comm.timeout()` seconds without an answer; time spent waiting for kernels does not count
// - an error of NCCL (PeerLost if remote or of the system, else Failure)
// - a poisoned `comm`
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "parallel/transport/communicator.h"
#include "parallel/transport/device/link.h"
#include "parallel/transport/device/nccl_library.h"
#include "parallel/transport/device/wait_hook.h"
#include "src/core/stream.h"
#include "src/core/trace.h"

namespace espalier::parallel {

class NcclLink final : public DeviceLink {
 public:
  /// Human-readable reason why these ranks cannot have a link, the same on all ranks; empty: they
  /// can. Collective.
  static std::string obstacle(Communicator& comm, Stream& compute);

  /// Collective. Both must outlive it; `compute` has a queue. Throws Failure with the obstacle, or
  /// PeerLost.
  NcclLink(Communicator& comm, Stream& compute);
  /// A link of some ranks of `comm`, without an obstacle among them. Collective over these ranks;
  /// ranks of the link are indices into `members`. Sent bytes count as `traffic`.
  NcclLink(Communicator& comm, Stream& compute, std::vector<int> members, Traffic traffic);
  /// Waits for work in flight, unless an exception is in flight.
  ~NcclLink() override;

  int rank() const override { return rank_; }
  int size() const override { return static_cast<int>(members_.size()); }
  Stream& stream() override { return stream_; }

  void follow_compute() override;
  void lead_compute() override;
  /// A group between kernels of the compute stream: it follows those enqueued so far, and leads the
  /// later ones.
  void exchange(std::string_view doing, const std::function<void()>& calls) {
    follow_compute();
    group(doing, calls);
    lead_compute();
  }

  void group(std::string_view doing, const std::function<void()>& calls) override;
  void send(int to, std::span<const std::byte> data) override { send(to, data, traffic_); }
  void send(int to, std::span<const std::byte> data, Traffic traffic);
  void receive(int from, std::span<std::byte> data) override;
  void all_reduce(const Tensor& data) override;
  void reduce(int root, const Tensor& data) override;

  /// In place, counts of exact sums (core/exact_sum.h): digits are added; the word of non-finite
  /// values becomes the maximum (a NaN outranks an infinity). Counted as the bytes that CPU ranks
  /// send for the same sum.
  void sum_counts(const Tensor& counts);

  /// The span begins when the kernels before it and the previous span have ended. Times are those
  /// at which the host observes the events: in each call of `group` and repeatedly while it waits.
  void trace(std::string name) override;

  /// Throws if waiting for this link is useless, after ending work in flight. For callers that wait
  /// without a queue.
  void poll();

 private:
  struct UnderWay {
    Mark after = 0;  ///< of the compute queue
    Mark until = 0;  ///< of the link's queue
    std::string doing;
    double since = 0;  ///< seconds; 0: still waiting for kernels
  };

  /// A span whose end the host has not observed yet.
  struct Traced {
    Trace* trace = nullptr;
    std::string name;
    Mark after = 0;    ///< of the compute queue
    Mark until = 0;    ///< of the link's queue
    double begin = 0;  ///< seconds, when `after` was last observed not to have passed
  };

  void join();
  void share(std::span<std::byte> bytes);
  void close();
  void abort() noexcept;
  void forget_arrived();
  void end_spans();
  void check_overdue();
  nccl::Status state(std::string_view doing);
  void settle(nccl::Status status, std::string_view doing);
  void check_call(nccl::Status status, std::string_view doing);
  std::vector<int> others() const;

  Communicator& comm_;
  Stream& compute_;
  std::vector<int> members_;  ///< ranks of comm_
  Traffic traffic_;
  int rank_ = 0;
  const nccl::Library& nccl_;
  std::unique_ptr<Queue> queue_;
  Stream stream_;
  nccl::Comm* group_ = nullptr;  ///< empty: aborted
  void* native_ = nullptr;       ///< the queue, for NCCL
  Mark after_ = 0;
  std::deque<UnderWay> under_way_;
  std::deque<Traced> traced_;
  double last_span_ = 0;        ///< seconds, end of the last span
  std::exception_ptr failure_;  ///< the reason of the abort
  int exceptions_;
  std::optional<WaitHook> wait_hook_;
};

}  // namespace espalier::parallel
