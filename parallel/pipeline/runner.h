#pragma once
// Executes schedules: on each rank of a pipeline its program, action by action, over any
// communicator. What an action computes is its caller's (PipelineWork); when, and with which
// message, is the runner's.
//
//   PipelineRunner runner(pipeline, stream, {.chunks…, .message_bytes…});
//   runner.run(schedule, work);          // one step; collective over the pipeline
//
// Receives are posted for all buffers from the beginning, sends do not wait, and messages move in
// every call of `progress`, which the work should make between its kernels, and while the host
// waits for a device. A program that never ends is refused before it begins (check.h). A rank waits
// for a message for at most the communicator's timeout, in which the time of its own kernels does
// not count, and then throws PeerLost that names it and its sender; a message that is not the
// expected one is a Failure (mailbox.h).
//
// On a device actions are asked for, and the host goes on to the next: it waits for messages, for
// buffers, and at the end of a run for what was sent to leave, but for no kernel. What RunTimes
// tells is then the host's time.
//
// A step sends, over all ranks, 2 × micro-batches × the bytes of each boundary between ranks, and
// an envelope of 16 bytes with each message.
#include <map>
#include <memory>
#include <optional>

#include "parallel/pipeline/mailbox.h"
#include "parallel/pipeline/schedule/simulate.h"
#include "parallel/transport/device/lookout.h"

namespace espalier::parallel {

/// What the actions of a rank do.
class PipelineWork {
 public:
  virtual ~PipelineWork() = default;
  /// One compute action, `reduce` or `step`. `in`: the activation from the stage before (forward)
  /// or the gradient from the stage after (backward); `out`: where what goes to the next one
  /// belongs, both in the memory that the carriage of the runner says. Empty at the ends of the
  /// network and where there is none. The mark passes when `in` has been read.
  virtual Mark run(const Action& action, std::span<const std::byte> in,
                   std::span<std::byte> out) = 0;
};

struct PipelineShape {
  Placement placement = Placement::loop;
  int chunks = 1;
  int buffers =
      2;  ///< messages that may wait on a channel; more than needed_buffers() overlap better
  int handed_over = 1;                ///< the same between two stages of one rank
  std::vector<size_t> message_bytes;  ///< [S - 1] of what stages s and s + 1 exchange, each way
  /// Between ranks. What stages of one rank exchange stays where they compute.
  Carriage carriage = Carriage::host;
};

/// What one run took on this rank, in seconds.
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
  /// the work computes. Of another carriage than `host` the caller knows that it can be had.
  PipelineRunner(Communicator& pipeline, Stream& stream, PipelineShape shape);
  ~PipelineRunner();

  /// Runs this rank's program. All ranks pass the same schedule, of this runner's placement and
  /// chunks.
  void run(const Schedule& schedule, PipelineWork& work);
  /// Whatever has arrived, backward first.
  void run(const MessageDriven& policy, PipelineWork& work);

  /// Moves messages, without waiting.
  void progress();
  const RunTimes& times() const { return times_; }
  Communicator& communicator() { return *comm_; }
  Carriage carriage() const { return shape_.carriage; }
  /// Runs so far; what envelopes carry.
  uint32_t runs() const { return runs_; }

 private:
  /// This rank's end of a channel: one of the two.
  struct Channel {
    std::unique_ptr<Inbox> in;
    std::unique_ptr<Outbox> out;
  };
  /// Of an owned stage: where its activations and gradients come from and go to.
  struct Stage {
    Inbox *activation = nullptr, *gradient = nullptr;
    Outbox *next_activation = nullptr, *next_gradient = nullptr;
    std::unique_ptr<LocalBox> handed_activation, handed_gradient;  ///< to this stage
  };

  void open_channels();
  void open(int number, int from, int to);
  void connect(int stage);
  std::unique_ptr<Carrier> make_carrier(const ChannelShape& shape);
  void advance();
  void begin(PipelineWork& work);
  void end();
  void perform(const Action& action);
  void compute(const Action& action);
  void receive(const Action& action);
  void send(const Action& action);
  std::span<std::byte> room_for(const Action& action);
  std::span<const std::byte> input_of(const Action& action);
  void release_input(const Action& action, Mark read);
  Envelope envelope(bool gradient, int stage, int micro_batch) const;
  std::optional<int> unsent();
  void wait(const std::function<bool()>& ready, int peer, const std::string& doing);
  Stage& stage(int number) { return stages_.at(number); }
  bool last(int stage) const { return stage + 1 == grid_.stages(); }

  std::unique_ptr<Communicator> comm_;  ///< of its own: no other runner's messages come here
  Stream& stream_;
  PipelineShape shape_;
  Schedule grid_;                    ///< without programs: who owns which stage
  std::map<int, Channel> channels_;  ///< by number
  std::map<int, Stage> stages_;
  PipelineWork* work_ = nullptr;
  uint32_t runs_ = 0;
  Mark computed_ = 0;  ///< of the last compute action
  RunTimes times_;
  std::optional<Lookout> lookout_;
};

/// Most results that wait between two stages of one rank.
int needed_handed_over(const Schedule& schedule);

}  // namespace espalier::parallel
