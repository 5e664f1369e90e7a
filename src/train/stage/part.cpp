#include "src/train/stage/part.h"

#include <algorithm>
#include <iterator>
#include <numeric>
#include <utility>

#include "src/core/mirror.h"
#include "src/core/rng.h"
#include "src/train/stage/teacher.h"

namespace espalier::train {
namespace {

/// The first elements of a tensor, as `shape`.
Tensor view(const Tensor& memory, const Shape& shape) {
  return memory ? memory.as(memory.dtype, shape) : Tensor();
}

/// The same for fewer samples.
model::TensorSpec cut(const model::TensorSpec& spec, int64_t samples) {
  const auto extents = spec.shape.extents();
  std::vector<int64_t> fewer(extents.begin(), extents.end());
  fewer.front() = samples;
  return {.dtype = spec.dtype, .shape = Shape(fewer)};
}

/// The bytes of a message as a tensor like `like`.
Tensor message(std::span<const std::byte> bytes, const Tensor& like) {
  return Tensor(const_cast<std::byte*>(bytes.data()), like.dtype, like.shape);
}

double sum_of(std::span<const float> losses) {
  return std::accumulate(losses.begin(), losses.end(), 0.0);
}

int64_t count_below(std::span<const float> numbers, float limit) {
  return std::ranges::count_if(numbers, [limit](float one) { return one < limit; });
}

}  // namespace

Part::Loss& Part::Loss::operator+=(const Loss& other) {
  sum += other.sum;
  teacher += other.teacher;
  top1 += other.top1;
  top5 += other.top5;
  return *this;
}

PassCost& PassCost::operator+=(const PassCost& other) {
  tape_bytes += other.tape_bytes;
  deferred_bytes += other.deferred_bytes;
  teacher_bytes += other.teacher_bytes;
  flops += other.flops;
  bytes += other.bytes;
  for (const auto& [name, size] : other.activations) {
    activations[name] += size;
  }
  return *this;
}

Part::Part(Stream& stream, const kernels::Kernels& kernels, const ProblemShape& problem,
           Layers layers, const PartShape& shape, const PassOptions& options)
    : stream_(stream),
      kernels_(kernels),
      problem_(problem),
      shape_(shape),
      options_(options),
      input_spec_(std::move(layers.in)),
      output_spec_(std::move(layers.out)),
      teacher_(layers.teacher),
      network_(std::move(layers.layers)),
      staging_(stream),
      graphs_(stream) {}

void Part::allocate(const PassCost& cost) {
  int64_t crossing = 0;
  for (const auto* spec : {&input_spec_, &output_spec_}) {
    const bool widened = *spec && coded() && (*spec)->dtype != DType::fp32;
    crossing = std::max(crossing, widened ? (*spec)->shape.count() : 0);
  }
  if (crossing > 0) {
    fp32_ = stream_.arena().allocate(Memory::activation, "between stages", DType::fp32,
                                     Shape{crossing});
  }
  if (teacher_ != nullptr) {
    teacher_->allocate(cost.teacher_bytes);
  }
  slots_.resize(static_cast<size_t>(shape_.tapes));
  for (Slot& slot : slots_) {
    allocate(slot, cost.tape_bytes);
  }
  for (int i = 0; i < shape_.deferred; ++i) {
    deferred_.push_back(make_deferred(cost.deferred_bytes));
  }
}

void Part::allocate(Slot& slot, size_t tape_bytes) {
  Arena& arena = stream_.arena();
  auto buffer = [&](std::string_view name, DType dtype, const Shape& shape) {
    return arena.allocate(Memory::activation, name, dtype, shape);
  };
  const int64_t samples = options_.samples;
  const bool taught = teacher_ != nullptr;
  if (begins() || taught) {
    slot.inputs = buffer("inputs", problem_.input_dtype, Shape{samples, problem_.features});
  }
  if (ends()) {
    slot.targets = buffer("targets", DType::int32, Shape{samples * problem_.rows});
    const bool second = taught || second_of(false) != Second::none;
    slot.losses = buffer("losses", DType::fp32, Shape{(second ? 2 : 1) * samples * problem_.rows});
  }
  slot.tape = std::make_unique<model::Tape>(arena, tape_bytes, arena.dry());
}

Part::Deferred Part::make_deferred(size_t bytes) {
  Deferred made;
  made.tape = std::make_unique<model::Tape>(stream_.arena(), bytes, stream_.arena().dry());
  made.gradients = std::make_unique<model::DeferredGradients>(model::DeferredGradients{*made.tape});
  return made;
}

template <class Some>
Some& Part::find(std::vector<Some>& among, int64_t number) {
  const auto found = std::ranges::find(among, number, &Some::number);
  require(found != among.end(), "a micro-batch in flight, or a free slot", number, among.size());
  return *found;
}

Part::Feed Part::open(int64_t number, int64_t samples) {
  const bool opened = std::ranges::find(slots_, number, &Slot::number) != slots_.end();
  Slot& slot = find(slots_, opened ? number : kFree);
  slot.number = number;
  if (!opened) {
    slot.feed = {.inputs = staging_.host_memory(slot.inputs.tensor()),
                 .targets = staging_.host_memory(slot.targets.tensor())};
  }
  return {.inputs = view(slot.feed.inputs, Shape{samples, problem_.features}),
          .targets = view(slot.feed.targets, Shape{samples * problem_.rows})};
}

/// Copies host inputs and targets to kernels' memory.
void Part::send_feed(Slot& slot, const model::Pass& pass) {
  for (const auto& [host, to] : {std::pair(&slot.feed.inputs, &pass.inputs),
                                 std::pair(&slot.feed.targets, &pass.losses.targets)}) {
    if (*to) {
      staging_.send(view(*host, to->shape), *to);
    }
  }
}

model::Pass Part::make_pass(Slot& slot, bool training) {
  const MicroBatch& batch = slot.batch;
  const bool ranks = !training && second_of(false) == Second::target_rank;
  return {.stream = stream_,
          .kernels = kernels_,
          .tape = *slot.tape,
          .dtype = options_.dtype,
          .samples = batch.samples,
          .inputs = view(slot.inputs.tensor(), Shape{batch.samples, problem_.features}),
          .training = training,
          .accumulate = batch.accumulate,
          .recompute = options_.recompute,
          .tied_head_on_other_stage = options_.tied_head_on_other_stage,
          .losses = {.targets = view(slot.targets.tensor(), Shape{batch.samples * problem_.rows}),
                     .values = losses_of(slot, Second::none),
                     .target_ranks = ranks ? second_numbers(slot) : Tensor(),
                     .scale = static_cast<float>(batch.loss_scale),
                     .smoothing = training ? options_.label_smoothing : 0},
          .batch = {.share = static_cast<float>(batch.samples) /
                             static_cast<float>(options_.global_batch),
                    .replicas = training && replicas_ ? &*replicas_ : nullptr},
          .dropout = {.rate = training ? options_.dropout : 0,
                      .key = mix(options_.seed, static_cast<uint64_t>(batch.step)),
                      .first_sequence = batch.first_sample},
          .after_layer = after_layer_ ? &after_layer_ : nullptr};
}

Part::Second Part::second_of(bool training) const {
  if (training) {
    return teacher_ != nullptr ? Second::teacher : Second::none;
  }
  return ends() && problem_.classifies_images() ? Second::target_rank : Second::none;
}

Tensor Part::losses_of(const Slot& slot, Second second) const {
  const int64_t rows = slot.batch.samples * problem_.rows;
  return view(slot.losses.tensor(), Shape{second == Second::none ? rows : 2 * rows});
}

Tensor Part::second_numbers(const Slot& slot) const {
  const int64_t rows = slot.batch.samples * problem_.rows;
  return view(slot.losses.tensor(), Shape{2 * rows}).elements(rows, rows);
}

/// Whether the pass repeats the launches of earlier passes with its key. False with
/// - calls between layers;
/// - dropout, which draws new masks in each step;
/// - a gradient probe, which runs between layers;
/// - a deferred backward, which keeps operands by number.
bool Part::repeats(const model::Pass& pass, bool calls_between) const {
  return graphs_.on() && !calls_between && pass.dropout.rate == 0 && pass.deferred == nullptr &&
         !store_->gradient_probe();
}

/// The output of `layers`, by a captured graph once it has one.
template <class Run>
Tensor Part::replay(Slot& slot, model::Pass& pass, bool backward, const Run& layers) {
  const PassKey key{.slot = static_cast<size_t>(&slot - slots_.data()),
                    .backward = backward,
                    .training = pass.training,
                    .accumulate = pass.accumulate,
                    .samples = pass.samples,
                    .loss_scale = slot.batch.loss_scale};
  const model::Tape::Contents before = slot.tape->contents();
  graphs_.invalidate_if(store_->changes() +
                        (teacher_ != nullptr ? teacher_->store().changes() : 0));
  const PassResult result = graphs_.run(key, [&](bool capturing) {
    slot.tape->restore(before);  // a failed capture may have moved it
    pass.after_layer = capturing ? nullptr : pass.after_layer;
    const Tensor output = layers();
    return PassResult{.output = output, .tape = slot.tape->contents()};
  });
  slot.tape->restore(result.tape);
  return result.output;
}

void Part::forward(int64_t number, const MicroBatch& batch, bool training,
                   std::span<const std::byte> in, std::span<std::byte> out) {
  Slot& slot = find(slots_, number);
  slot.tape->clear();
  slot.batch = batch;
  model::Pass pass = make_pass(slot, training);
  send_feed(slot, pass);
  Tensor x;
  if (input_spec_) {
    const model::TensorSpec spec = cut(*input_spec_, batch.samples);
    x = pass.tape.push("from the stage before", spec.dtype, spec.shape);
    read_message(in, x);
  }
  const Second second = second_of(training);
  const auto layers = [&] {
    const sparse::Store::Pass values(*store_, pass_key(false));
    if (second == Second::teacher) {
      pass.losses.distillation = &teacher_->predict(pass, second_numbers(slot));
    }
    return network_.forward(pass, x);
  };
  const Tensor y = repeats(pass, false) ? replay(slot, pass, false, layers) : layers();
  if (output_spec_) {
    write_message(y, out);
  }
  if (!training) {
    slot.number = kFree;
  }
  if (ends() && !stream_.arena().dry()) {
    pending_losses_.push_back(
        {.step = batch.step, .rows = staging_.fetch(losses_of(slot, second)), .second = second});
    collect_losses();
  }
}

std::vector<float> Part::row_losses(int64_t number, const MicroBatch& batch) {
  require(begins() && ends(), "this part is the whole network");
  const Slot& slot = find(slots_, number);
  forward(number, batch, false);
  const Mirror rows(stream_, losses_of(slot, Second::none));
  rows.read();
  const auto losses = rows.host().span<const float>();
  take_losses();  // of the same rows
  return {losses.begin(), losses.end()};
}

void Part::backward(int64_t number, bool defer, const Done& done, std::span<const std::byte> in,
                    std::span<std::byte> out) {
  Slot& slot = find(slots_, number);
  model::Pass pass = make_pass(slot, true);
  Tensor dy;
  if (output_spec_) {
    const model::TensorSpec spec = cut(*output_spec_, slot.batch.samples);
    dy = pass.tape.push("gradient from the stage after", spec.dtype, spec.shape);
    read_message(in, dy);
  }
  if (defer) {
    Deferred& deferred = find(deferred_, kFree);
    deferred.number = number;
    deferred.batch = slot.batch;
    pass.deferred = deferred.gradients.get();
  }
  const bool calls_between = done && !done_at_end_ && !defer;
  const auto layers = [&] {
    const sparse::Store::Pass values(*store_, pass_key(true));
    return network_.backward(pass, dy, calls_between ? done : Done());
  };
  const Tensor dx = repeats(pass, calls_between) ? replay(slot, pass, true, layers) : layers();
  if (!calls_between && !defer) {
    all_done(done);
  }
  if (input_spec_) {
    write_message(dx, out);
  }
  slot.number = kFree;
}

void Part::backward_weight(int64_t number, const Done& done) {
  Deferred& deferred = find(deferred_, number);
  Slot unused;  // another micro-batch may occupy the original slot
  unused.batch = deferred.batch;
  unused.tape = std::move(deferred.tape);
  model::Pass pass = make_pass(unused, true);
  for (const auto& part : deferred.gradients->gradients) {
    part(pass);
    if (after_layer_) {
      after_layer_();
    }
  }
  deferred.tape = std::move(unused.tape);
  deferred.tape->clear();
  deferred.gradients->gradients.clear();
  deferred.number = kFree;
  all_done(done);
}

void Part::all_done(const Done& done) const {
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
  require(stream_.arena().dry(), "a dry part measures passes");
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
    if (ends() && begins()) {
      open(0, samples);
      logits(0, 0, 1, feed.inputs);
    }
  }
  const kernels::DryCount counted = kernels::dry_count();
  return {.tape_bytes = slots_.front().tape->high_water(),
          .deferred_bytes = deferred_.empty() ? 0 : deferred_.front().tape->high_water(),
          .teacher_bytes = teacher_ != nullptr ? teacher_->tape_bytes() : 0,
          .flops = counted.flops,
          .bytes = counted.bytes,
          .activations = slots_.front().tape->peak_by_name()};
}

Tensor Part::as_fp32(const Tensor& tensor) {
  return tensor.dtype == DType::fp32 ? tensor : fp32_.tensor().as(DType::fp32, tensor.shape);
}

void Part::read_message(std::span<const std::byte> from, const Tensor& to) {
  if (stream_.arena().dry()) {
    return;
  }
  const size_t bytes = wire_bytes(to.dtype, to.count());
  require(bytes <= from.size(), "a whole message", bytes, from.size());
  const Tensor values = as_fp32(to);
  if (!coded()) {
    stream_.copy(message(from, to), to);
  } else {
    kernels_.decode(stream_, {.wire = from.first(bytes), .y = values, .format = options_.wire});
  }
  message_read_ = stream_.mark();
  if (coded() && values.data != to.data) {
    kernels_.cast(stream_, {.x = values, .y = to});
  }
}

void Part::write_message(const Tensor& from, std::span<std::byte> to) {
  if (stream_.arena().dry()) {
    return;
  }
  const size_t bytes = wire_bytes(from.dtype, from.count());
  require(bytes <= to.size(), "a buffer for a whole message", bytes, to.size());
  if (!coded()) {
    stream_.copy(from, message(to, from));
    return;
  }
  const Tensor values = as_fp32(from);
  if (values.data != from.data) {
    kernels_.cast(stream_, {.x = from, .y = values});
  }
  kernels_.encode(stream_, {.x = values, .wire = to.first(bytes), .format = options_.wire});
}

/// Sums the losses that have arrived on the host.
void Part::collect_losses() {
  while (!pending_losses_.empty() && stream_.passed(pending_losses_.front().rows.mark)) {
    const PendingLosses& first = pending_losses_.front();
    const std::span<const float> all = first.rows.host.span<float>();
    const size_t rows = all.size() / (first.second == Second::none ? 1 : 2);
    const std::span<const float> more = all.subspan(rows);
    Loss loss{.step = first.step, .sum = sum_of(all.first(rows))};
    if (first.second == Second::teacher) {
      loss.teacher = sum_of(more);
    } else if (first.second == Second::target_rank) {
      loss.top1 = count_below(more, 1);
      loss.top5 = count_below(more, 5);
    }
    losses_.push_back(loss);
    staging_.done(first.rows.host);
    pending_losses_.pop_front();
  }
}

std::vector<Part::Loss> Part::take_losses(int64_t last) {
  const auto later = [last](const auto& loss) { return loss.step > last; };
  const auto rest = std::ranges::find_if(pending_losses_, later);
  if (rest != pending_losses_.begin()) {
    stream_.wait(std::prev(rest)->rows.mark);
    collect_losses();
  }
  const auto end = std::ranges::find_if(losses_, later);
  const std::vector<Loss> taken(losses_.begin(), end);
  losses_.erase(losses_.begin(), end);
  return taken;
}

Part::Loss Part::take_loss() {
  Loss sum;
  for (const Loss& loss : take_losses()) {
    sum += loss;
  }
  return sum;
}

}  // namespace espalier::train
