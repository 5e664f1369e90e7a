#pragma once
// Executes schedules: on each rank of a pipeline its program, action by action, over any
// communicator. What an action computes is its caller's (PipelineWork); when, and with which
// message, is the runner's.
//
//   PipelineRunner runner(pipeline, arena, {.chunks…, .message_bytes…});
//   runner.run(schedule, work);          // one step; collective over the pipeline
//
// Receives are posted for all buffers from the beginning, sends do not wait, and messages move in
// every call of `progress`, which the work should make between its kernels. A program that never
// ends is refused before it begins (check.h). A rank waits for a message for at most the
// communicator's timeout and then throws PeerLost that names it and its sender; a message that is
// not the expected one is a Failure (mailbox.h).
//
// A step sends, over all ranks, 2 × micro-batches × the bytes of each boundary between ranks, and
// an envelope of 16 bytes with each message.
#include <map>
#include <memory>
#include <optional>

#include "parallel/mailbox.h"
#include "parallel/schedule/simulate.h"

namespace espalier::parallel {

/// What the actions of a rank do.
class PipelineWork {
 public:
  virtual ~PipelineWork() = default;
  /// One compute action, `reduce` or `step`. `in`: the activation from the stage before (forward)
  /// or the gradient from the stage after (backward); `out`: where what goes to the next one
  /// belongs. Empty at the ends of the network and where there is none.
  virtual void run(const Action& action, std::span<const std::byte> in,
                   std::span<std::byte> out) = 0;
};

struct PipelineShape {
  Placement placement = Placement::loop;
  int chunks = 1;
  int buffers =
      2;  ///< messages that may wait on a channel; more than needed_buffers() overlap better
  int handed_over = 1;                ///< the same between two stages of one rank
  std::vector<size_t> message_bytes;  ///< [S - 1] of what stages s and s + 1 exchange, each way
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
  /// Collective over `pipeline`, whose ranks are those of one replica, in order.
  PipelineRunner(Communicator& pipeline, Arena& arena, PipelineShape shape);
  ~PipelineRunner();

  /// Runs this rank's program. All ranks pass the same schedule, of this runner's placement and
  /// chunks.
  void run(const Schedule& schedule, PipelineWork& work);
  /// Whatever has arrived, backward first.
  void run(const MessageDriven& policy, PipelineWork& work);

  /// Moves messages, without waiting.
  void progress() { comm_->progress(); }
  const RunTimes& times() const { return times_; }
  Communicator& communicator() { return *comm_; }
  /// Runs so far; what envelopes carry.
  uint32_t runs() const { return runs_; }

 private:
  /// Of an owned stage: where its activations and gradients come from and go to.
  struct Stage {
    std::unique_ptr<Inbox> activation, gradient;
    std::unique_ptr<Outbox> next_activation, next_gradient;
    std::unique_ptr<LocalBox> handed_activation, handed_gradient;  ///< to this stage
  };

  void open(int stage);
  void begin(PipelineWork& work);
  void end();
  void perform(const Action& action);
  void compute(const Action& action);
  void receive(const Action& action);
  void send(const Action& action);
  std::span<std::byte> room_for(const Action& action);
  std::span<const std::byte> input_of(const Action& action);
  void release_input(const Action& action);
  Envelope envelope(bool gradient, int stage, int micro_batch) const;
  std::optional<int> unsent();
  void wait(const std::function<bool()>& ready, int peer, const std::string& doing);
  Stage& stage(int number) { return stages_.at(number); }
  bool last(int stage) const { return stage + 1 == grid_.stages(); }

  std::unique_ptr<Communicator> comm_;  ///< of its own: no other runner's messages come here
  Arena& arena_;
  PipelineShape shape_;
  Schedule grid_;  ///< without programs: who owns which stage
  std::map<int, Stage> stages_;
  PipelineWork* work_ = nullptr;
  uint32_t runs_ = 0;
  RunTimes times_;
};

/// Most results that wait between two stages of one rank.
int needed_handed_over(const Schedule& schedule);

}  // namespace espalier::parallel
