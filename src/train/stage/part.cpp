#include "src/train/stage/part.h"

#include <algorithm>
#include <utility>

#include "src/core/rng.h"

namespace espalier::train {
namespace {

/// The first elements of it, as `shape`.
Tensor view(const Tensor& memory, const Shape& shape) {
  return memory ? memory.as(memory.dtype, shape) : Tensor();
}

/// A flow of fewer samples.
model::Flow cut(const model::Flow& flow, int64_t samples) {
  const auto extents = flow.shape.extents();
  std::vector<int64_t> fewer(extents.begin(), extents.end());
  fewer.front() = samples;
  return {.dtype = flow.dtype, .shape = Shape(fewer)};
}

}  // namespace

PassCost& PassCost::operator+=(const PassCost& other) {
  tape_bytes += other.tape_bytes;
  waiting_bytes += other.waiting_bytes;
  flops += other.flops;
  bytes += other.bytes;
  for (const auto& [name, size] : other.activations) {
    activations[name] += size;
  }
  return *this;
}

Part::Part(Stream& stream, const kernels::Kernels& kernels, const ProblemShape& problem,
           std::vector<std::unique_ptr<model::Layer>> layers, const PartShape& shape,
           const PassOptions& options)
    : stream_(stream),
      kernels_(kernels),
      problem_(problem),
      shape_(shape),
      options_(options),
      begins_(shape.first == 0),
      ends_(shape.end == layers.size()),
      flow_in_(begins_ ? model::Flow()
                       : layers[shape.first - 1]->output(options.samples, options.dtype)),
      flow_out_(ends_ ? model::Flow()
                      : layers[shape.end - 1]->output(options.samples, options.dtype)),
      network_(model::Network::part(std::move(layers), shape.first, shape.end)),
      staging_(stream),
      replays_(stream) {}

void Part::allocate(const PassCost& cost) {
  int64_t crossing = 0;
  for (const auto& [flow, ends] : {std::pair(&flow_in_, begins_), std::pair(&flow_out_, ends_)}) {
    const bool widened = !ends && coded() && flow->dtype != DType::fp32;
    crossing = std::max(crossing, widened ? flow->shape.count() : 0);
  }
  if (crossing > 0) {
    fp32_ = stream_.arena().allocate(Memory::activation, "between stages", DType::fp32,
                                     Shape{crossing});
  }
  slots_.resize(static_cast<size_t>(shape_.tapes));
  for (Slot& slot : slots_) {
    allocate(slot, cost.tape_bytes);
  }
  for (int i = 0; i < shape_.waiting; ++i) {
    waiting_.push_back(make_waiting(cost.waiting_bytes));
  }
}

void Part::allocate(Slot& slot, size_t tape_bytes) {
  Arena& arena = stream_.arena();
  auto buffer = [&](std::string_view name, DType dtype, const Shape& shape) {
    return arena.allocate(Memory::activation, name, dtype, shape);
  };
  const int64_t samples = options_.samples;
  if (begins_) {
    slot.inputs = buffer("inputs", problem_.input_dtype, Shape{samples, problem_.features});
  }
  if (ends_) {
    slot.targets = buffer("targets", DType::int32, Shape{samples * problem_.rows});
    slot.losses = buffer("losses", DType::fp32, Shape{samples * problem_.rows});
  }
  slot.tape = std::make_unique<model::Tape>(arena, tape_bytes, arena.dry());
}

Part::Waiting Part::make_waiting(size_t bytes) {
  Waiting made;
  made.tape = std::make_unique<model::Tape>(stream_.arena(), bytes, stream_.arena().dry());
  made.parts = std::make_unique<model::WeightParts>(model::WeightParts{*made.tape});
  return made;
}

template <class Some>
Some& Part::find(std::vector<Some>& among, int64_t number) {
  const auto found = std::ranges::find(among, number, &Some::number);
  require(found != among.end(), "a micro-batch that is under way, or room for one more", number,
          among.size());
  return *found;
}

Part::Feed Part::open(int64_t number, int64_t samples) {
  const bool opened = std::ranges::find(slots_, number, &Slot::number) != slots_.end();
  Slot& slot = find(slots_, opened ? number : kFree);
  slot.number = number;
  if (!opened) {
    slot.feed = {.inputs = staging_.room(slot.inputs.tensor()),
                 .targets = staging_.room(slot.targets.tensor())};
  }
  return {.inputs = view(slot.feed.inputs, Shape{samples, problem_.features}),
          .targets = view(slot.feed.targets, Shape{samples * problem_.rows})};
}

/// What the host has filled in, for kernels.
void Part::send_feed(Slot& slot, const model::Pass& pass) {
  for (const auto& [room, to] :
       {std::pair(&slot.feed.inputs, &pass.inputs), std::pair(&slot.feed.targets, &pass.targets)}) {
    if (*to) {
      staging_.send(view(*room, to->shape), *to);
    }
  }
}

model::Pass Part::make_pass(Slot& slot, bool training) {
  const MicroBatch& batch = slot.batch;
  return {.stream = stream_,
          .kernels = kernels_,
          .tape = *slot.tape,
          .dtype = options_.dtype,
          .samples = batch.samples,
          .inputs = view(slot.inputs.tensor(), Shape{batch.samples, problem_.features}),
          .targets = view(slot.targets.tensor(), Shape{batch.samples * problem_.rows}),
          .losses = view(slot.losses.tensor(), Shape{batch.samples * problem_.rows}),
          .training = training,
          .recompute = options_.recompute,
          .accumulate = batch.accumulate,
          .tied_apart = options_.tied_apart,
          .loss_scale = static_cast<float>(batch.loss_scale),
          .dropout = training ? options_.dropout : 0,
          .dropout_key = mix(options_.seed, static_cast<uint64_t>(batch.step)),
          .first_sequence = batch.first_sample,
          .between = between_ ? &between_ : nullptr};
}

/// Whether it asks for the same calls as another one of its key. Draws of dropout are others in
/// each step, a probe sees gradients on the way, and what waits is kept by number.
bool Part::repeats(const model::Pass& pass, const Walk& walk) const {
  return replays_.on() && !walk.stops && pass.dropout == 0 && pass.waiting == nullptr &&
         !store_->gradient_probe();
}

template <class Layers>
Tensor Part::run_pass(Slot& slot, model::Pass& pass, const Walk& walk, const Layers& layers) {
  const auto ask = [&] {
    const sparse::Store::Pass values(*store_, pass_key(walk.backward));
    return layers(pass);
  };
  if (!repeats(pass, walk)) {
    return ask();
  }
  const PassKey key{.slot = static_cast<size_t>(&slot - slots_.data()),
                    .backward = walk.backward,
                    .training = pass.training,
                    .accumulate = pass.accumulate,
                    .samples = pass.samples,
                    .loss_scale = slot.batch.loss_scale};
  const model::Tape::Contents before = slot.tape->contents();
  replays_.rest_on(store_->changes());
  const Passed passed = replays_.run(key, [&](bool recorded) {
    slot.tape->restore(before);  // another attempt may have failed
    pass.between = recorded ? nullptr : pass.between;
    const Tensor output = ask();
    return Passed{.output = output, .tape = slot.tape->contents()};
  });
  slot.tape->restore(passed.tape);
  return passed.output;
}

void Part::forward(int64_t number, const MicroBatch& batch, bool training,
                   std::span<const std::byte> in, std::span<std::byte> out) {
  Slot& slot = find(slots_, number);
  slot.tape->clear();
  slot.batch = batch;
  model::Pass pass = make_pass(slot, training);
  send_feed(slot, pass);
  Tensor x;
  if (!begins_) {
    const model::Flow flow = cut(flow_in_, batch.samples);
    x = pass.tape.push("from the stage before", flow.dtype, flow.shape);
    take(in, x);
  }
  const Tensor y =
      run_pass(slot, pass, {}, [&](model::Pass& now) { return network_.forward(now, x); });
  if (!ends_) {
    give(y, out);
  }
  if (!training) {
    slot.number = kFree;
  }
  if (ends_ && !stream_.arena().dry()) {
    arriving_.push_back({.step = batch.step, .rows = staging_.fetch(pass.losses)});
    take_arrived();
  }
}

void Part::backward(int64_t number, bool defer, const Done& done, std::span<const std::byte> in,
                    std::span<std::byte> out) {
  Slot& slot = find(slots_, number);
  model::Pass pass = make_pass(slot, true);
  Tensor dy;
  if (!ends_) {
    const model::Flow flow = cut(flow_out_, slot.batch.samples);
    dy = pass.tape.push("gradient from the stage after", flow.dtype, flow.shape);
    take(in, dy);
  }
  if (defer) {
    Waiting& waiting = find(waiting_, kFree);
    waiting.number = number;
    waiting.batch = slot.batch;
    pass.waiting = waiting.parts.get();
  }
  const bool stops = done && !done_at_end_ && !defer;
  const Tensor dx = run_pass(slot, pass, {.backward = true, .stops = stops}, [&](model::Pass& now) {
    const auto settled = [&](size_t layer) {
      store_->panels().join();  // whoever sends gradients comes after their gathers
      done(layer);
    };
    return network_.backward(now, dy, stops ? Done(settled) : Done());
  });
  if (!stops && !defer) {
    tell_all(done);
  }
  if (!begins_) {
    give(dx, out);
  }
  slot.number = kFree;
}

void Part::backward_weight(int64_t number, const Done& done) {
  Waiting& waiting = find(waiting_, number);
  Slot unused;  // the tape of a deferred backward is another one's by now
  unused.batch = waiting.batch;
  unused.tape = std::move(waiting.tape);
  model::Pass pass = make_pass(unused, true);
  for (const auto& part : waiting.parts->parts) {
    part(pass);
    if (between_) {
      between_();
    }
  }
  waiting.tape = std::move(unused.tape);
  waiting.tape->clear();
  waiting.parts->parts.clear();
  waiting.number = kFree;
  tell_all(done);
}

void Part::tell_all(const Done& done) const {
  for (size_t layer = network_.layers().size(); done && layer-- > 0;) {
    done(layer);
  }
}

Tensor Part::logits(int64_t number, int64_t first, int64_t rows, const Tensor& inputs) {
  Slot& slot = find(slots_, number);
  slot.tape->clear();
  slot.batch = {.samples = inputs.shape[0]};
  model::Pass pass = make_pass(slot, false);
  pass.inputs = slot.inputs.tensor().as(inputs.dtype, inputs.shape);
  staging_.send(inputs, pass.inputs);
  staging_.done(slot.feed.targets);
  slot.number = kFree;
  const sparse::Store::Pass values(*store_, pass_key(false));
  return network_.logits(pass, first, rows);
}

PassCost Part::measure(bool defer) {
  require(stream_.arena().dry(), "only a dry part measures itself");
  kernels::dry_count() = {};
  const int64_t samples = options_.samples;
  const Feed feed = open(0, samples);
  if (options_.training) {
    forward(0, {.samples = samples}, true);
    backward(0, defer, {});
    if (defer) {
      backward_weight(0, {});
    }
  } else {
    forward(0, {.samples = samples}, false);
    if (ends_ && begins_) {
      open(0, samples);
      logits(0, 0, 1, feed.inputs);
    }
  }
  const kernels::DryCount counted = kernels::dry_count();
  return {.tape_bytes = slots_.front().tape->high_water(),
          .waiting_bytes = waiting_.empty() ? 0 : waiting_.front().tape->high_water(),
          .flops = counted.flops,
          .bytes = counted.bytes,
          .activations = slots_.front().tape->peak_by_name()};
}

}  // namespace espalier::train
