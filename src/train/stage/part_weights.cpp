#include "src/train/stage/part_weights.h"

#include <algorithm>

#include "src/optim/schedule.h"

namespace espalier::train {

namespace {

/// Number of weight copies that exist at a time.
int copies_of(const PartWeights::Options& options) {
  const optim::PredictionEntry& rule = *options.prediction;
  return rule.previous ? 1 : rule.keeps && options.delay > 0 ? options.under_way : 0;
}

}  // namespace

PartWeights::PartWeights(Stage& stage, size_t part, Options options)
    : stage_(stage),
      range_(stage.parameters_of_part(part)),
      part_(part),
      options_(std::move(options)),
      rule_(*options_.prediction) {
  kept_.resize(static_cast<size_t>(copies_of(options_)));
  allocate();
}

void PartWeights::allocate() {
  sparse::Store& store = stage_.store();
  if ((rule_.predicts || !kept_.empty()) && (current_.bytes() == 0 || !current_.fits(store))) {
    current_ = {};
    current_ = sparse::ValueCopy(store, range_, "weights beside predicted ones");
  }
  for (Kept& kept : kept_) {
    if (kept.values.bytes() == 0 || !kept.values.fits(store)) {
      kept.values = {};
      kept.values = sparse::ValueCopy(store, range_, "kept weights");
    }
  }
}

size_t PartWeights::bytes() const {
  size_t sum = current_.bytes();
  for (const Kept& kept : kept_) {
    sum += kept.values.bytes();
  }
  return sum;
}

void PartWeights::begin(int64_t done) {
  require(forwards_.empty(), "no micro-batch under way", forwards_.size());
  allocate();
  begin_ = done_ = done;
  held_ = current();
}

PartWeights::Key PartWeights::key_of_forward(int micro_batch) const {
  if (rule_.previous) {
    return {.done = std::max(begin_, update_of(micro_batch) - 1), .ahead = 0};
  }
  Key key = current();
  if (rule_.predicts && done_ > 0) {  // before the first update there is no direction
    key.ahead = static_cast<int>(update_of(micro_batch) - done_) + shift();
  }
  return key;
}

void PartWeights::before_forward(int micro_batch) {
  const Key key = key_of_forward(micro_batch);
  hold(key);
  const int64_t delay = update_of(micro_batch) - key.done;
  const bool kept = rule_.keeps && !rule_.previous && delay > 0;
  if (kept) {
    keep(key);
  }
  forwards_[micro_batch] = {.key = key, .kept = kept};
  ++delay_.micro_batches;
  delay_.sum += delay;
  delay_.most = std::max(delay_.most, delay);
}

void PartWeights::before_backward(int micro_batch) {
  Key key = current();
  if (rule_.keeps) {
    key = forwards_.at(micro_batch).key;
  } else if (rule_.predicts && done_ > 0) {
    key.ahead = shift();
  }
  hold(key);
}

void PartWeights::after_backward(int micro_batch) {
  const auto [key, kept] = forwards_.at(micro_batch);
  forwards_.erase(micro_batch);
  if (kept) {
    --find(key)->users;
  }
}

optim::StepResult PartWeights::update() {
  hold(current());
  if (rule_.previous) {
    kept_.front().users = 0;  // frees the weights that computed these gradients
    keep(current());
  }
  const double lr = optim::learning_rate(options_.optimizer, done_, options_.steps);
  const optim::StepResult result = stage_.result(stage_.update_part(part_, done_, lr));
  if (result.applied) {
    ++done_;
    held_ = current();
  }
  return result;
}

void PartWeights::end() {
  require(forwards_.empty(), "no micro-batch under way", forwards_.size());
  hold(current());
  for (Kept& kept : kept_) {
    kept.users = 0;
  }
}

void PartWeights::hold(const Key& wanted) {
  if (held_ == wanted) {
    return;
  }
  Stream& stream = stage_.stream();
  const kernels::Kernels& kernels = stage_.kernels();
  sparse::Store& store = stage_.store();
  if (held_ == current()) {
    current_.save_from(stream, kernels, store);
  }
  if (wanted == current()) {
    current_.restore_to(stream, kernels, store);
  } else if (const Kept* kept = find(wanted); kept != nullptr) {
    kept->values.restore_to(stream, kernels, store);
  } else {
    predict(wanted);
  }
  held_ = wanted;
}

void PartWeights::predict(const Key& wanted) {
  require(wanted.done == done_ && wanted.ahead > 0, "weights that are kept or can be predicted",
          wanted.done, wanted.ahead, done_);
  const kernels::PredictArgs::Term shared = optim::prediction_term(
      options_.optimizer, {.done = done_, .ahead = wanted.ahead, .steps = options_.steps});
  sparse::Store& store = stage_.store();
  for (sparse::Parameter& parameter :
       store.parameters().subspan(range_.first, range_.end - range_.first)) {
    const sparse::OptimizerState state = store.state(parameter);
    kernels::PredictArgs::Term term = shared;
    term.step *= static_cast<float>(stage_.parametrization().factors_of(parameter).lr);
    term = parameter.spec.average ? kernels::PredictArgs::Term{} : term;
    stage_.kernels().predict(stage_.stream(),
                             {.value = current_.part(parameter),
                              .low = state.low,
                              .moment1 = state.moment1,
                              .moment2 = state.moment2,
                              .scale1 = state.scale1,
                              .scale2 = state.scale2,
                              .out = state.value,
                              .exact = parameter.exact_copy() ? parameter.dense : Tensor(),
                              .terms = &term,
                              .term_count = 1,
                              .epsilon = static_cast<float>(options_.optimizer.epsilon)});
    if (!parameter.exact_copy()) {
      store.refresh(parameter);
    }
  }
}

PartWeights::Kept* PartWeights::find(const Key& key) {
  const auto found = std::ranges::find_if(
      kept_, [&key](const Kept& kept) { return kept.users > 0 && kept.key == key; });
  return found == kept_.end() ? nullptr : &*found;
}

/// Keeps the weights that the store holds, under `key`.
void PartWeights::keep(const Key& key) {
  if (Kept* kept = find(key); kept != nullptr) {
    ++kept->users;
    return;
  }
  const auto free = std::ranges::find(kept_, 0, &Kept::users);
  require(free != kept_.end(), "a free copy for weights to keep", kept_.size());
  free->values.save_from(stage_.stream(), stage_.kernels(), stage_.store());
  free->key = key;
  free->users = 1;
}

std::vector<PartWeights> make_part_weights(const io::Config& config, const Layout& layout, int rank,
                                           Stage& stage) {
  const parallel::Schedule& schedule = layout.schedule;
  // A single stage has no delays and predicts nothing.
  const optim::PredictionEntry& prediction =
      optim::prediction_entry(layout.stages() == 1 ? "none" : config.parallel.weight_prediction);
  std::vector<PartWeights> weights;
  for (int number = 0; number < layout.stages(); ++number) {
    if (schedule.rank_of(number) == rank) {
      const size_t part = layout.part_of(number);
      weights.emplace_back(
          stage, part,
          PartWeights::Options{.prediction = &prediction,
                               .optimizer = config.optimizer,
                               .steps = config.train.steps,
                               .stage = number,
                               .micro_batches_per_update = schedule.micro_batches_per_update,
                               .under_way = stage.parts()[part]->shape().tapes,
                               .delay = layout.delay(number)});
    }
  }
  return weights;
}

}  // namespace espalier::train
