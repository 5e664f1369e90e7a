#pragma once
// A part of the network: contiguous layers, with buffers and tapes for the micro-batches in flight.
// Without a pipeline one part holds all layers and processes one micro-batch at a time. In a
// pipeline each chunk of a rank is a part.
//
// Messages enter and leave at the part's ends: activations forward, their gradients backward, as
// Layer::output defines them, or encoded in a wire format of fewer bits.
// A backward can be split: `backward` with `defer` frees the activations, and keeps copies of the
// operands of weight gradients until `backward_weight`.
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>

#include "src/core/staging.h"
#include "src/model/network.h"
#include "src/model/networks/registry.h"
#include "src/train/stage/graph_cache.h"

namespace espalier::train {

class Teacher;
using model::ProblemShape;

/// The cost of one forward and backward of a micro-batch.
struct PassCost {
  size_t tape_bytes = 0;
  size_t deferred_bytes = 0;  ///< kept by a deferred backward
  size_t teacher_bytes = 0;   ///< of the tape of a teacher
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

struct PartShape {
  size_t first = 0, end = 0;  ///< layers [first, end) of the network
  int tapes = 1;              ///< micro-batches between forward and backward, at most
  int deferred = 0;           ///< micro-batches between backward and backward_weight, at most
};

/// Options of passes, the same for all parts.
struct PassOptions {
  int64_t samples = 1;  ///< of a micro-batch, at most
  DType dtype = DType::fp32;
  float label_smoothing = 0;
  float dropout = 0;
  int64_t global_batch = 1;
  uint64_t seed = 0;
  model::Recompute recompute = model::Recompute::none;
  bool training = true;
  bool tied_head_on_other_stage = false;  ///< see Pass
  kernels::WireFormat wire{};             ///< of messages; fp32: not encoded
};

class Part {
 public:
  /// The part's own layers, and the tensors that cross its ends (none at an end of the network).
  struct Layers {
    std::vector<std::unique_ptr<model::Layer>> layers;
    std::optional<model::TensorSpec> in{}, out{};  ///< of `options.samples` samples
    Teacher* teacher = nullptr;  ///< of training; only where the network ends; null: none
  };
  Part(Stream& stream, const kernels::Kernels& kernels, const ProblemShape& problem, Layers layers,
       const PartShape& shape, const PassOptions& options);
  void bind(sparse::Store& store) {
    store_ = &store;
    network_.bind(store, kernels_);
  }
  /// Call once before the first pass. Allocates memory for `shape.tapes` micro-batches of this
  /// cost. A dry part accepts any cost.
  void allocate(const PassCost& cost);
  /// Bytes of the tapes that `allocate` makes, not in a dry part.
  size_t tape_bytes(const PassCost& cost) const {
    return static_cast<size_t>(shape_.tapes) * cost.tape_bytes +
           static_cast<size_t>(shape_.deferred) * cost.deferred_bytes + cost.teacher_bytes;
  }

  const model::Network& network() const { return network_; }
  const PartShape& shape() const { return shape_; }
  bool begins() const { return !input_spec_; }  ///< holds the first layer of the network
  bool ends() const { return !output_spec_; }   ///< holds the last layer of the network
  /// Message bytes of a full micro-batch from the part before and to the next one; 0: no message.
  size_t bytes_in() const { return input_spec_ ? wire_bytes(*input_spec_) : 0; }
  size_t bytes_out() const { return output_spec_ ? wire_bytes(*output_spec_) : 0; }
  /// Of a message of such elements in PassOptions::wire.
  static size_t message_bytes(const kernels::WireFormat& wire, DType dtype, int64_t count) {
    return wire == kernels::WireFormat{} ? static_cast<size_t>(count) * size_of(dtype)
                                         : kernels::wire_bytes(wire, count);
  }

  /// Host memory of a micro-batch, to fill before `forward`: int32 or fp32 inputs [samples,
  /// features] if the part begins the network or has a teacher, int32 targets [samples x rows] if
  /// it ends it. Opens micro-batch `number`, unless it is open.
  struct Feed {
    Tensor inputs, targets;
  };
  Feed open(int64_t number, int64_t samples);

  /// Closes the micro-batch unless `training`; then its backward does. `in`, `out`: messages.
  void forward(int64_t number, const MicroBatch& batch, bool training,
               std::span<const std::byte> in = {}, std::span<std::byte> out = {});
  /// Sums over the rows of a forward at the end of the network.
  struct Loss {
    int64_t step = 0;  ///< of the micro-batch
    double sum = 0;
    double teacher = 0;  ///< sum of the rows' losses from the teacher; 0: there is none
    /// Evaluations of images: targets that are the most likely class, and among the first five.
    int64_t top1 = 0, top5 = 0;

    Loss& operator+=(const Loss& other);  ///< keeps `step`
  };
  /// Losses of forwards since the last call that belong to steps up to `last`, in order. On a
  /// device waits for these forwards, not for later ones.
  std::vector<Loss> take_losses(int64_t last = kAllSteps);
  static constexpr int64_t kAllSteps = INT64_MAX;
  /// The sum of all.
  Loss take_loss();
  /// An evaluation at the end of the network: the loss of each row. Waits for it.
  std::vector<float> row_losses(int64_t number, const MicroBatch& batch);
  /// Passes once kernels have read the last pass's message.
  Mark message_read() const { return message_read_; }
  /// The kernels of the gradients of layers `layer` and later, counted in this part, are enqueued;
  /// the stream follows those on its side stream after `join` of sparse::GradientPanels.
  using Done = std::function<void(size_t layer)>;
  void backward(int64_t number, bool defer, const Done& done, std::span<const std::byte> in = {},
                std::span<std::byte> out = {});
  /// Completes a deferred backward.
  void backward_weight(int64_t number, const Done& done);
  /// Predictions for rows [first, first + rows) of an opened micro-batch. Closes it.
  Tensor logits(int64_t number, int64_t first, int64_t rows, const Tensor& inputs);

  /// On a device: passes that repeat the same launches are captured and replayed as graphs, without
  /// calls between layers. `done_at_end`: a captured backward calls `Done` for all layers at its
  /// end; else a backward with `Done` is never captured.
  void enable_graphs(bool on, bool done_at_end) {
    graphs_.enable(on);
    done_at_end_ = done_at_end && graphs_.on();
  }
  int64_t replayed() const { return graphs_.replayed(); }
  /// The reason of the first failed capture, once; else empty.
  std::string take_graph_failure() { return graphs_.take_failure(); }
  /// Training passes share statistics of batch norm with them.
  void set_replicas(model::BatchStatistics::Replicas replicas) { replicas_ = std::move(replicas); }
  /// Called between layers, to progress messages.
  void set_after_layer(std::function<void()> after_layer) { after_layer_ = std::move(after_layer); }
  /// The cost of a pass. Dry parts only.
  PassCost measure(bool defer);

 private:
  struct Slot {
    Buffer inputs, targets, losses;
    Feed feed;  ///< the host's side of inputs and targets
    std::unique_ptr<model::Tape> tape;
    int64_t number = kFree;
    MicroBatch batch;
  };
  struct Deferred {
    std::unique_ptr<model::Tape> tape;
    std::unique_ptr<model::DeferredGradients> gradients;
    int64_t number = kFree;
    MicroBatch batch;
  };
  static constexpr int64_t kFree = -1;

  bool coded() const { return options_.wire != kernels::WireFormat{}; }
  size_t wire_bytes(DType dtype, int64_t count) const {
    return message_bytes(options_.wire, dtype, count);
  }
  size_t wire_bytes(const model::TensorSpec& spec) const {
    return wire_bytes(spec.dtype, spec.shape.count());
  }
  /// Codecs read and write fp32: `tensor` itself, or a buffer for its values.
  Tensor as_fp32(const Tensor& tensor);
  /// Between a tensor and its message.
  void read_message(std::span<const std::byte> from, const Tensor& to);
  void write_message(const Tensor& from, std::span<std::byte> to);
  void allocate(Slot& slot, size_t tape_bytes);
  Deferred make_deferred(size_t bytes);
  template <class Some>
  Some& find(std::vector<Some>& among, int64_t number);
  model::Pass make_pass(Slot& slot, bool training);
  /// A second number of each row beside its loss: the loss from the teacher, or, in evaluations,
  /// the rank of the target.
  enum class Second : uint8_t { none, teacher, target_rank };
  Second second_of(bool training) const;
  /// Losses of the rows, then their second numbers.
  Tensor losses_of(const Slot& slot, Second second) const;
  /// The second numbers alone.
  Tensor second_numbers(const Slot& slot) const;
  /// Losses that are being copied to the host.
  struct PendingLosses {
    int64_t step = 0;
    Staging::Arrival rows;
    Second second = Second::none;
  };
  /// The key of sparse::Store::Pass.
  int pass_key(bool backward) const {
    return 2 * static_cast<int>(shape_.first) + (backward ? 1 : 0);
  }
  /// Passes with equal keys repeat the same launches as long as the store does not change.
  struct PassKey {
    size_t slot = 0;
    bool backward = false, training = false, accumulate = false;
    int64_t samples = 0;
    double loss_scale = 1;
    bool operator==(const PassKey&) const = default;
  };
  /// The host's results of a pass.
  struct PassResult {
    Tensor output;
    model::Tape::Contents tape;
  };
  void all_done(const Done& done) const;
  /// `calls_between`: `Done` is called between layers.
  bool repeats(const model::Pass& pass, bool calls_between) const;
  template <class Run>
  Tensor replay(Slot& slot, model::Pass& pass, bool backward, const Run& layers);
  void send_feed(Slot& slot, const model::Pass& pass);
  void collect_losses();

  Stream& stream_;
  const kernels::Kernels& kernels_;
  ProblemShape problem_;
  PartShape shape_;
  PassOptions options_;
  std::optional<model::TensorSpec> input_spec_, output_spec_;
  Teacher* teacher_;
  model::Network network_;
  sparse::Store* store_ = nullptr;
  std::vector<Slot> slots_;
  std::vector<Deferred> deferred_;
  Buffer fp32_;  ///< values of a 16-bit tensor that is encoded
  Staging staging_;
  std::deque<PendingLosses> pending_losses_;
  std::vector<Loss> losses_;
  Mark message_read_ = 0;
  GraphCache<PassKey, PassResult> graphs_;
  bool done_at_end_ = false;
  std::function<void()> after_layer_;
  std::optional<model::BatchStatistics::Replicas> replicas_;
};

}  // namespace espalier::train
