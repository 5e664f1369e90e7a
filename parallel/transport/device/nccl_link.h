#pragma once
// A group of ranks, each with a GPU of its own, that move memory of these GPUs to each other with
// NCCL, in the order of a queue: calls return at once, and the host waits for nothing. That queue
// stands beside the one that computes; `follow_compute` and `lead_compute` order the two.
//
//   NcclLink link(comm, stream);          collective
//   link.follow_compute();                what kernels were asked for so far comes first
//   link.group("doing this", [&] { link.send(1, mine); link.receive(1, theirs); });
//   kernels.cast(link.stream(), …);       on what has come
//   link.lead_compute();                  kernels asked for from now on see it
//
// Messages of a group travel together; between two ranks those of one direction match in order.
// Sent bytes are counted by `comm`.
//
// A peer that died or is silent: whoever waits for a queue of the device meanwhile asks NCCL and
// `comm` how things are (lookout.h). After `comm.timeout()` seconds without an answer, an
// error of NCCL, or a poisoned `comm` the group is aborted, which ends what its GPU still waits
// for, and PeerLost says what was going on. The time in which kernels are awaited does not count.
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
#include "parallel/transport/device/lookout.h"
#include "parallel/transport/device/nccl_library.h"
#include "src/core/stream.h"
#include "src/core/trace.h"

namespace espalier::parallel {

class NcclLink final : public DeviceLink {
 public:
  /// Why these ranks cannot have one, for people, the same on all; empty: they can. Collective.
  static std::string obstacle(Communicator& comm, Stream& compute);

  /// Collective. Both must outlive it; `compute` has a queue. Throws Failure with the obstacle,
  /// PeerLost.
  NcclLink(Communicator& comm, Stream& compute);
  /// Of some ranks of `comm`, among whom there is no obstacle. Collective over these; ranks of the
  /// link are places in `members`. What it sends counts as `traffic`.
  NcclLink(Communicator& comm, Stream& compute, std::vector<int> members, Traffic traffic);
  /// Waits for what is under way, unless an exception is.
  ~NcclLink() override;

  int rank() const override { return rank_; }
  int size() const override { return static_cast<int>(members_.size()); }
  Stream& stream() override { return stream_; }

  void follow_compute() override;
  void lead_compute();

  void group(std::string_view doing, const std::function<void()>& ask) override;
  void send(int to, std::span<const std::byte> data) override { send(to, data, traffic_); }
  void send(int to, std::span<const std::byte> data, Traffic traffic);
  void receive(int from, std::span<std::byte> data) override;
  void all_reduce(const Tensor& data) override;
  void reduce(int root, const Tensor& data) override;

  /// In place, counts of exact sums (core/exact_sum.h): digits are added, and of the words that tell
  /// what is not finite the largest stays (a NaN before an infinity). Counted as what ranks on the
  /// CPU send for it.
  void sum_counts(const Tensor& counts);

  /// Makes what was asked for since the last `follow_compute` a span on Track::allreduce, of the
  /// trace that there is now and that outlives the link. It begins when the kernels before it, and
  /// the span before it, have ended; as the host sees it, which looks in each call of `group` and
  /// again and again while it waits.
  void trace(std::string name);

  /// Throws what makes waiting for this link useless, after it has ended what is under way. For who
  /// waits without a queue.
  void look();

 private:
  struct UnderWay {
    Mark after = 0;  ///< of the compute queue
    Mark until = 0;  ///< of this one
    std::string doing;
    double since = 0;  ///< seconds; 0: kernels are awaited
  };

  /// Not seen to end.
  struct Traced {
    Trace* trace = nullptr;
    std::string name;
    Mark after = 0;    ///< of the compute queue
    Mark until = 0;    ///< of this one
    double begin = 0;  ///< seconds, when `after` was last seen not to have passed
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
  double last_span_ = 0;        ///< seconds, its end
  std::exception_ptr failure_;  ///< why it was aborted
  int exceptions_;
  std::optional<Lookout> lookout_;
};

}  // namespace espalier::parallel
