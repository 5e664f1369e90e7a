#pragma once
// A part of the network: contiguous layers that compute together, with room for the micro-batches
// that are under way in them. Without a pipeline there is one part, of all layers, and one
// micro-batch at a time; a stage of a pipeline (parallel/pipeline) is a part.
//
// What crosses its ends are bytes: the output of the layer before or after, as Layer::output says,
// or in a wire format of fewer bits (activations forward, their gradients backward).
// A backward may be cut in two: `backward` with `defer` frees the activations, and keeps copies of
// what the gradients of matrices need until `backward_weight`.
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <span>

#include "src/core/staging.h"
#include "src/model/network.h"
#include "src/model/networks/registry.h"
#include "src/train/stage/graph_cache.h"

namespace espalier::train {

using model::ProblemShape;

/// What one forward and backward of a micro-batch takes.
struct PassCost {
  size_t tape_bytes = 0;
  size_t waiting_bytes = 0;  ///< of what a deferred backward keeps
  double flops = 0;
  double bytes = 0;  ///< read and written, as the "dry" kernels count
  std::map<std::string, size_t, std::less<>> activations;  ///< bytes by name

  PassCost& operator+=(const PassCost& other);
};

struct MicroBatch {
  int64_t samples = 0;
  int64_t step = 0;
  int64_t first_sample = 0;  ///< of the micro-batch, in the global batch
  double loss_scale = 1;     ///< 1 / rows of the global batch
  bool accumulate = false;   ///< not the first micro-batch of the step
};

/// Which layers, and how many micro-batches at once.
struct PartShape {
  size_t first = 0, end = 0;  ///< layers [first, end) of the network
  int tapes = 1;              ///< between forward and backward
  int waiting = 0;            ///< between backward and backward_weight
};

/// How passes compute; the same for all parts.
struct PassOptions {
  int64_t samples = 1;  ///< of a micro-batch, at most
  DType dtype = DType::fp32;
  float dropout = 0;
  uint64_t seed = 0;
  model::Recompute recompute = model::Recompute::none;
  bool training = true;
  bool tied_apart = false;     ///< see Pass
  kernels::WireFormat wire{};  ///< in which tensors cross ends; fp32: as they are
};

class Part {
 public:
  /// `cost`: what its passes take; of a dry part (dry arena) it does not matter.
  Part(Stream& stream, const kernels::Kernels& kernels, const ProblemShape& problem,
       std::vector<std::unique_ptr<model::Layer>> layers, const PartShape& shape,
       const PassOptions& options);
  void bind(sparse::Store& store) {
    store_ = &store;
    network_.bind(store, kernels_);
  }
  /// Once, before the first pass: memory for `shape.tapes` micro-batches.
  void allocate(const PassCost& cost);

  const model::Network& network() const { return network_; }
  const PartShape& shape() const { return shape_; }
  bool begins() const { return begins_; }  ///< the network
  bool ends() const { return ends_; }
  /// Bytes that enter from the part before (0: none) and leave to the next one, for full
  /// micro-batches.
  size_t bytes_in() const { return begins_ ? 0 : wire_bytes(flow_in_); }
  size_t bytes_out() const { return ends_ ? 0 : wire_bytes(flow_out_); }

  /// What a micro-batch reads, for the host to fill before `forward`: int32 or fp32 inputs
  /// [samples, features], int32 targets [samples x rows]. Opens micro-batch `number`, unless it is
  /// open.
  struct Feed {
    Tensor inputs, targets;
  };
  Feed open(int64_t number, int64_t samples);

  /// In training the micro-batch stays until its backward.
  void forward(int64_t number, const MicroBatch& batch, bool training,
               std::span<const std::byte> in = {}, std::span<std::byte> out = {});
  /// The sum of the rows' losses of a forward at the end of the network.
  struct Loss {
    int64_t step = 0;  ///< of the micro-batch
    double sum = 0;
  };
  /// Of the forwards since the last call that belong to steps up to `last`, in their order. Waits
  /// for them, on a device, but not for those that were asked for after them.
  std::vector<Loss> take_losses(int64_t last = kAllSteps);
  static constexpr int64_t kAllSteps = INT64_MAX;
  double take_loss_sum();
  /// Passes when kernels have read the message that the last action was given.
  Mark taken() const { return taken_; }
  using Done = std::function<void(size_t layer)>;  ///< of the network: its gradients are complete
  void backward(int64_t number, bool defer, const Done& done, std::span<const std::byte> in = {},
                std::span<std::byte> out = {});
  /// The rest of a deferred backward.
  void backward_weight(int64_t number, const Done& done);
  /// Predictions for rows [first, first + rows) of an opened micro-batch, which is closed.
  Tensor logits(int64_t number, int64_t first, int64_t rows, const Tensor& inputs);

  /// On a device: passes that ask for the same calls each time are recorded, and replayed. They do
  /// not stop between layers. `done_at_end`: `Done` of a backward may as well be told of all layers
  /// at its end; else such a backward is never recorded.
  void set_replays(bool on, bool done_at_end) {
    replays_.use(on);
    done_at_end_ = done_at_end && replays_.on();
  }
  int64_t replayed() const { return replays_.replayed(); }
  /// Why a pass could not be recorded, once; empty: nothing new.
  std::string take_news() { return replays_.take_news(); }
  /// Called between layers: for messages to move.
  void set_between(std::function<void()> between) { between_ = std::move(between); }
  /// Of a dry part: what a pass takes.
  PassCost measure(bool defer);

 private:
  struct Slot {
    Buffer inputs, targets, losses;
    Feed feed;  ///< the host's side of inputs and targets
    std::unique_ptr<model::Tape> tape;
    int64_t number = kFree;
    MicroBatch batch;
  };
  struct Waiting {
    std::unique_ptr<model::Tape> tape;
    std::unique_ptr<model::WeightParts> parts;
    int64_t number = kFree;
    MicroBatch batch;
  };
  static constexpr int64_t kFree = -1;

  bool coded() const { return options_.wire != kernels::WireFormat{}; }
  size_t wire_bytes(DType dtype, int64_t count) const {
    return coded() ? kernels::wire_bytes(options_.wire, count)
                   : static_cast<size_t>(count) * size_of(dtype);
  }
  size_t wire_bytes(const model::Flow& flow) const {
    return wire_bytes(flow.dtype, flow.shape.count());
  }
  /// Codes are made of fp32: `tensor` itself, or room for its values.
  Tensor as_fp32(const Tensor& tensor);
  /// Between a tensor and its bytes on the wire.
  void take(std::span<const std::byte> from, const Tensor& to);
  void give(const Tensor& from, std::span<std::byte> to);
  void allocate(Slot& slot, size_t tape_bytes);
  Waiting make_waiting(size_t bytes);
  template <class Some>
  Some& find(std::vector<Some>& among, int64_t number);
  model::Pass make_pass(Slot& slot, bool training);
  /// Losses on their way to the host.
  struct Arriving {
    int64_t step = 0;
    Staging::Arrival rows;
  };
  /// Of sparse::Store::Pass.
  int pass_key(bool backward) const {
    return 2 * static_cast<int>(shape_.first) + (backward ? 1 : 0);
  }
  /// What passes that ask for the same calls have in common, as long as the store does not change.
  struct PassKey {
    size_t slot = 0;
    bool backward = false, training = false, accumulate = false;
    int64_t samples = 0;
    double loss_scale = 1;
    bool operator==(const PassKey&) const = default;
  };
  /// What a pass leaves on the host.
  struct Passed {
    Tensor output;
    model::Tape::Contents tape;
  };
  void tell_all(const Done& done) const;
  struct Walk {
    bool backward = false;
    bool stops = false;  ///< between layers
  };
  bool repeats(const model::Pass& pass, const Walk& walk) const;
  /// The output of `layers(pass)`, by a replay where that may be.
  template <class Layers>
  Tensor run_pass(Slot& slot, model::Pass& pass, const Walk& walk, const Layers& layers);
  void send_feed(Slot& slot, const model::Pass& pass);
  void take_arrived();

  Stream& stream_;
  const kernels::Kernels& kernels_;
  ProblemShape problem_;
  PartShape shape_;
  PassOptions options_;
  bool begins_, ends_;
  model::Flow flow_in_, flow_out_;
  model::Network network_;
  sparse::Store* store_ = nullptr;
  std::vector<Slot> slots_;
  std::vector<Waiting> waiting_;
  Buffer fp32_;  ///< of a tensor that crosses an end and is not
  Staging staging_;
  std::deque<Arriving> arriving_;
  std::vector<Loss> losses_;
  Mark taken_ = 0;
  Replays<PassKey, Passed> replays_;
  bool done_at_end_ = false;
  std::function<void()> between_;
};

}  // namespace espalier::train
