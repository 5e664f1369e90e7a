#pragma once
// Executes schedules: each rank of a pipeline runs its program, action by action, over any
// communicator. The caller implements the actions (PipelineWork); the runner orders them and moves
// the messages.
//
//   PipelineRunner runner(pipeline, stream, {.chunks…, .message_bytes…});
//   runner.run(schedule, work);          // one step; collective over the pipeline
//
// Receives are posted for all buffers at the start; sends do not wait. Messages progress in every
// call of `progress`, which the work should make between its kernels, and while the host waits for
// a device. check.h rejects a program that deadlocks before it runs. A rank waits for a message for
// at most the communicator's timeout, not counting the time of its own kernels. It then throws
// PeerLost naming the message and its sender. An unexpected message throws Failure (mailbox.h).
//
// On a device, actions are enqueued: the host waits for messages, for buffers, and at the end of a
// run for its sends, but not for kernels. RunTimes then holds the host's time.
//
// A step sends, over all ranks, 2 × micro-batches × the bytes of each boundary between ranks, and
// an envelope of 16 bytes with each message.
#include <map>
#include <memory>
#include <optional>

#include "parallel/pipeline/mailbox.h"
#include "parallel/pipeline/schedule/message_driven.h"
#include "parallel/transport/device/wait_hook.h"

namespace espalier::parallel {

/// Implements the actions of a rank.
class PipelineWork {
 public:
  virtual ~PipelineWork() = default;
  /// One compute action, `reduce` or `step`. `in`: the activation from the stage before (forward)
  /// or the gradient from the stage after (backward). `out`: for the result that the next stage
  /// needs. Both in the carrier's memory; empty at the ends of the network and for actions without
  /// input or output. The returned mark passes when `in` has been read.
  virtual Mark run(const Action& action, std::span<const std::byte> in,
                   std::span<std::byte> out) = 0;
};

struct PipelineShape {
  Placement placement = Placement::loop;
  int chunks = 1;
  int buffers = 2;        ///< messages that may wait on a channel: more than needed overlap better
  int local_buffers = 1;  ///< the same between two stages of one rank
  std::vector<size_t> message_bytes;  ///< [S - 1] between stages s and s + 1, each way
  /// Between ranks. Messages between stages of one rank stay in the memory where they compute.
  CarrierKind carrier = CarrierKind::host;
};

/// Bytes of the message buffers of a rank, where it computes and in memory of the host. Without a
/// device both are the same memory.
struct MessageMemory {
  size_t beside_kernels = 0, on_host = 0;
};
MessageMemory message_memory(const PipelineShape& shape, int ranks, int rank);

/// Times of one run on this rank, in seconds.
struct RunTimes {
  double total = 0;
  double compute = 0;                ///< in compute actions
  double waited = 0;                 ///< for messages
  double reduced = 0;                ///< in `reduce` and `step`
  double begin = 0;                  ///< by now_seconds()
  std::vector<TimedAction> actions;  ///< compute actions, since `begin`
};

class PipelineRunner {
 public:
  /// Collective over `pipeline`, whose ranks are those of one replica, in order. `stream`: where
  /// the work computes. The caller has checked that shape.carrier is available.
  PipelineRunner(Communicator& pipeline, Stream& stream, PipelineShape shape);
  ~PipelineRunner();

  /// Runs this rank's program. All ranks pass the same schedule, of this runner's placement and
  /// chunks.
  void run(const Schedule& schedule, PipelineWork& work);
  /// Runs the actions whose messages have arrived, backward first.
  void run(const MessageDriven& policy, PipelineWork& work);

  /// Progresses messages, without waiting.
  void progress();
  const RunTimes& times() const { return times_; }
  Communicator& communicator() { return *comm_; }
  CarrierKind carrier() const { return shape_.carrier; }
  /// Runs so far, the `run` of envelopes.
  uint32_t runs() const { return runs_; }

 private:
  /// This rank's end of a channel: one of the two.
  struct Channel {
    std::unique_ptr<Inbox> in;
    std::unique_ptr<Outbox> out;
  };
  /// Channels of an owned stage, [0] of activations and [1] of gradients.
  struct Stage {
    Inbox* in[2] = {};
    Outbox* out[2] = {};
    std::unique_ptr<LocalBox> local[2];  ///< to this stage
  };

  void open_channels();
  void open(int number, int from, int to);
  void connect(int stage);
  std::unique_ptr<Carrier> make_carrier(const ChannelShape& shape);
  void advance();
  void begin(PipelineWork& work);
  void end();
  void compute(const Action& action);
  void receive(const Action& action);
  void send(const Action& action);
  void reduce_or_step(const Action& action);
  /// Whether the action makes a gradient instead of an activation. Empty: neither.
  static std::optional<bool> passes_gradient(ActionKind kind);
  std::span<std::byte> output_of(const Action& action);
  std::span<const std::byte> input_of(const Action& action);
  void release_input(const Action& action, Mark read);
  Envelope envelope(bool gradient, int stage, int micro_batch) const;
  std::optional<int> unsent();
  void wait(const std::function<bool()>& ready, int peer, const std::string& doing);
  Stage& stage(int number) { return stages_.at(number); }
  bool last(int stage) const { return stage + 1 == grid_.stages(); }

  std::unique_ptr<Communicator> comm_;  ///< separate from other runners' messages
  Stream& stream_;
  PipelineShape shape_;
  Schedule grid_;                    ///< without programs: the rank of each stage
  std::map<int, Channel> channels_;  ///< by number
  std::map<int, Stage> stages_;
  PipelineWork* work_ = nullptr;
  uint32_t runs_ = 0;
  Mark computed_ = 0;  ///< of the last compute action
  RunTimes times_;
  std::optional<WaitHook> wait_hook_;
};

/// The most messages in flight between two stages of one rank.
int needed_local_buffers(const Schedule& schedule);

}  // namespace espalier::parallel
