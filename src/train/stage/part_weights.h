#pragma once
// The weights that a part of an asynchronous pipeline computes with (optim/prediction.h has the
// methods and formulas). Between two actions the store holds one of
//
//   the current weights    after all updates so far; only these are updated
//   weights ahead          predicted from them in one pass over kept elements
//   kept weights           those of a forward whose backward needs them again
//
// While it holds others, a copy holds the current ones. Cost of a switch: one pass over the kept
// values, and over the moments for a prediction. Memory: `bytes()`.
#include <map>
#include <vector>

#include "sparse/store/value_copy.h"
#include "src/optim/prediction.h"
#include "src/train/stage/layout.h"
#include "src/train/stage/stage.h"

namespace espalier::train {

class PartWeights {
 public:
  struct Options {
    const optim::PredictionEntry* prediction = nullptr;
    io::OptimizerConfig optimizer;
    int64_t steps = 1;                 ///< updates of the run
    int stage = 0;                     ///< k
    int micro_batches_per_update = 1;  ///< micro-batches of an update
    int under_way = 1;                 ///< micro-batches in flight, at most
    int delay = 0;                     ///< updates, at most
  };
  /// `part` of `stage`, which must outlive it.
  PartWeights(Stage& stage, size_t part, Options options);

  /// Updates so far; micro-batches count from here.
  void begin(int64_t done);
  /// Puts the weights of the forward, or of the backward, of `micro_batch` into the store.
  void before_forward(int micro_batch);
  void before_backward(int micro_batch);
  /// Call after the backward of `micro_batch`.
  void after_backward(int micro_batch);
  /// The next update, with the gradients of `every` micro-batches.
  optim::StepResult update();
  /// Puts the current weights into the store. No micro-batch may be in flight.
  void end();

  int64_t done() const { return done_; }
  size_t bytes() const;

  /// Updates between the forward of a micro-batch and the one with its gradient.
  struct Delay {
    int64_t micro_batches = 0, sum = 0, most = 0;
    double mean() const {
      return micro_batches == 0 ? 0 : static_cast<double>(sum) / static_cast<double>(micro_batches);
    }
  };
  const Delay& delay() const { return delay_; }
  int kept() const { return static_cast<int>(kept_.size()); }
  /// Allocates the copies for the present masks, if they do not fit.
  void allocate();

 private:
  /// Identifies weights: after `done` updates, predicted `ahead` updates further.
  struct Key {
    int64_t done = 0;
    int ahead = 0;
    bool operator==(const Key&) const = default;
  };
  struct Kept {
    sparse::ValueCopy values;
    Key key;
    int users = 0;  ///< 0: free
  };

  Key current() const { return {.done = done_, .ahead = 0}; }
  Key key_of_forward(int micro_batch) const;
  int64_t update_of(int micro_batch) const {
    return begin_ + micro_batch / options_.micro_batches_per_update;
  }
  /// Updates ahead that SpecTrain adds for the stage: floor(k / 2) micro-batches.
  int shift() const { return options_.stage / 2 / options_.micro_batches_per_update; }
  void hold(const Key& wanted);
  void predict(const Key& wanted);
  Kept* find(const Key& key);
  void keep(const Key& key);

  Stage& stage_;
  sparse::ParameterRange range_;
  size_t part_;
  Options options_;
  const optim::PredictionEntry& rule_;
  int64_t begin_ = 0, done_ = 0;
  Key held_;                   ///< in the store
  sparse::ValueCopy current_;  ///< while others are held
  std::vector<Kept> kept_;
  struct Forward {
    Key key;
    bool kept = false;
  };
  std::map<int, Forward> forwards_;  ///< of micro-batches in flight
  Delay delay_;
};

/// One PartWeights for each part of rank `rank`; all of them are in `stage`.
std::vector<PartWeights> make_part_weights(const io::Config& config, const Layout& layout, int rank,
                                           Stage& stage);

}  // namespace espalier::train
