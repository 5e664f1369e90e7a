#include "parallel/pipeline/runner.h"

#include <algorithm>
#include <exception>

#include "parallel/pipeline/nccl_carrier.h"
#include "src/core/trace.h"

namespace espalier::parallel {
namespace {

/// Numbers of the channels of a stage: its incoming activations and gradients.
int channel_of(int stage, bool gradient) { return 2 * stage + (gradient ? 1 : 0); }
constexpr int kMaxChannels = kTagNumbers / 2;  // envelopes have tags too

/// The stages of the ranks.
Schedule grid_of(const PipelineShape& shape, int ranks) {
  return {.name = {},
          .ranks = ranks,
          .chunks = shape.chunks,
          .placement = shape.placement,
          .programs = {}};
}

}  // namespace

/// As `open_channels` and `connect` allocate.
MessageMemory message_memory(const PipelineShape& shape, int ranks, int rank) {
  const Schedule grid = grid_of(shape, ranks);
  MessageMemory sum;
  for (int boundary = 0; boundary + 1 < grid.stages(); ++boundary) {
    if (grid.rank_of(boundary) != rank && grid.rank_of(boundary + 1) != rank) {
      continue;
    }
    const bool crosses = grid.crosses(boundary);
    const bool through_host = crosses && shape.carrier == CarrierKind::host;
    (through_host ? sum.on_host : sum.beside_kernels) +=
        2 * ring_bytes(shape.message_bytes[static_cast<size_t>(boundary)],  // each way
                       crosses ? shape.buffers : shape.local_buffers);
  }
  return sum;
}

PipelineRunner::PipelineRunner(Communicator& pipeline, Stream& stream, PipelineShape shape)
    : comm_(pipeline.split(0, pipeline.rank())), stream_(stream), shape_(std::move(shape)) {
  grid_ = grid_of(shape_, pipeline.size());
  require(shape_.message_bytes.size() + 1 == static_cast<size_t>(grid_.stages()),
          "the bytes of each boundary between stages", shape_.message_bytes.size(), grid_.stages());
  require(channel_of(grid_.stages(), false) <= kMaxChannels, "as many channels as tags",
          grid_.stages());
  open_channels();
  for (int chunk = 0; chunk < shape_.chunks; ++chunk) {
    connect(grid_.stage_of(pipeline.rank(), chunk));
  }
  if (shape_.carrier == CarrierKind::nccl) {
    wait_hook_.emplace(*stream_.queue(), [this] {
      // Between runs no wait of this rank depends on messages, and the sender may have finished. A
      // rank that unwinds from an exception accepts no messages.
      if (work_ != nullptr && std::uncaught_exceptions() == 0) {
        advance();
      }
    });
  }
}

/// Every run has waited for its sends. Both ends of the channels close them in the same order.
PipelineRunner::~PipelineRunner() {
  wait_hook_.reset();
  while (!channels_.empty()) {
    channels_.erase(channels_.begin());
  }
}

/// Opens channels in the order of their numbers on all ranks: opening a carrier may wait for its
/// other end.
void PipelineRunner::open_channels() {
  for (int stage = 0; stage < grid_.stages(); ++stage) {
    if (stage > 0 && grid_.crosses(stage - 1)) {
      open(channel_of(stage, false), stage - 1, stage);
    }
    if (!last(stage) && grid_.crosses(stage)) {
      open(channel_of(stage, true), stage + 1, stage);
    }
  }
}

void PipelineRunner::open(int number, int from, int to) {
  const bool sends = grid_.rank_of(from) == comm_->rank();
  if (!sends && grid_.rank_of(to) != comm_->rank()) {
    return;
  }
  auto carrier =
      make_carrier({.peer = grid_.rank_of(sends ? to : from),
                    .number = number,
                    .bytes = shape_.message_bytes[static_cast<size_t>(std::min(from, to))],
                    .buffers = shape_.buffers,
                    .sends = sends});
  Channel& channel = channels_[number];
  if (sends) {
    channel.out = std::make_unique<Outbox>(stream_, std::move(carrier));
  } else {
    channel.in = std::make_unique<Inbox>(stream_, std::move(carrier));
  }
}

std::unique_ptr<Carrier> PipelineRunner::make_carrier(const ChannelShape& shape) {
  switch (shape_.carrier) {
    case CarrierKind::host:
      return std::make_unique<HostCarrier>(*comm_, stream_.arena().host(), shape);
    case CarrierKind::mpi:
      return std::make_unique<MpiCarrier>(*comm_, stream_.arena(), shape);
    case CarrierKind::nccl:
      return std::make_unique<NcclCarrier>(*comm_, stream_, shape);
  }
  throw Bug("a known kind of carrier");
}

void PipelineRunner::connect(int stage) {
  Stage& mine = stages_[stage];
  for (const bool gradient : {false, true}) {
    const int from = stage + (gradient ? 1 : -1);
    const int boundary = std::min(stage, from);
    if (from < 0 || from >= grid_.stages()) {
      continue;
    }
    if (grid_.crosses(boundary)) {
      mine.in[gradient] = channels_.at(channel_of(stage, gradient)).in.get();
      mine.out[!gradient] = channels_.at(channel_of(from, !gradient)).out.get();
    } else {
      mine.local[gradient] = std::make_unique<LocalBox>(
          stream_.arena(), shape_.message_bytes[static_cast<size_t>(boundary)],
          shape_.local_buffers);
    }
  }
}

void PipelineRunner::run(const Schedule& schedule, PipelineWork& work) {
  require(schedule.ranks == grid_.ranks && schedule.chunks == grid_.chunks &&
              schedule.placement == grid_.placement,
          "a schedule of this pipeline", schedule.name, schedule.ranks, schedule.chunks);
  begin(work);
  for (const Action& action : schedule.programs[static_cast<size_t>(comm_->rank())]) {
    if (computes(action.kind)) {
      compute(action);
    } else if (sends(action.kind)) {
      send(action);
    } else if (receives(action.kind)) {
      receive(action);
    } else {
      reduce_or_step(action);
    }
  }
  end();
}

void PipelineRunner::run(const MessageDriven& policy, PipelineWork& work) {
  require(policy.ranks == grid_.ranks && grid_.chunks == 1, "a policy of this pipeline",
          policy.ranks, grid_.chunks);
  const int mine = comm_->rank();
  Stage& here = stage(mine);
  int forwards = 0;
  int backwards = 0;
  auto backward_ready = [&] {
    return backwards < forwards && (last(mine) || here.in[1]->arrived());
  };
  auto forward_ready = [&] {
    return forwards < policy.micro_batches &&
           (mine > 0 ? here.in[0]->arrived() : forwards - backwards < policy.in_flight);
  };
  begin(work);
  while (backwards < policy.micro_batches) {
    if (backward_ready()) {
      const Action action{ActionKind::backward, mine, backwards++};
      compute(action);
      if (mine > 0) {
        send({ActionKind::send_gradient, mine, action.micro_batch});
      }
    } else if (forward_ready()) {
      const Action action{ActionKind::forward, mine, forwards++};
      compute(action);
      if (!last(mine)) {
        send({ActionKind::send_activation, mine, action.micro_batch});
      }
    } else {
      const bool from_next = backwards < forwards;
      wait([&] { return backward_ready() || forward_ready(); }, from_next ? mine + 1 : mine - 1,
           fmt::format("waiting for the {} of micro-batch {}",
                       from_next ? "gradient" : "activation", from_next ? backwards : forwards));
    }
  }
  reduce_or_step({ActionKind::reduce, mine, policy.micro_batches - 1});
  reduce_or_step({ActionKind::step, mine, policy.micro_batches - 1});
  end();
}

void PipelineRunner::begin(PipelineWork& work) {
  work_ = &work;
  times_ = {};
  times_.begin = now_seconds();
  ++runs_;
}

/// Flushes pending sends: nothing progresses them later.
void PipelineRunner::end() {
  if (const std::optional<int> peer = unsent(); peer) {
    wait([this] { return !unsent(); }, *peer, "sending the last messages of a step");
  }
  times_.total = now_seconds() - times_.begin;
  work_ = nullptr;
}

void PipelineRunner::reduce_or_step(const Action& action) {
  const double begin = now_seconds();
  work_->run(action, {}, {});
  times_.reduced += now_seconds() - begin;
}

Envelope PipelineRunner::envelope(bool gradient, int stage, int micro_batch) const {
  return {.run = runs_,
          .micro_batch = static_cast<uint32_t>(micro_batch),
          .stage = static_cast<uint16_t>(stage),
          .gradient = static_cast<uint16_t>(gradient ? 1 : 0)};
}

void PipelineRunner::compute(const Action& action) {
  const std::span<std::byte> out = output_of(action);
  const std::span<const std::byte> in = input_of(action);
  const double begin = now_seconds();
  const Mark read = work_->run(action, in, out);
  computed_ = stream_.mark();
  const double end = now_seconds();
  times_.compute += end - begin;
  times_.actions.push_back({action, begin - times_.begin, end - times_.begin});
  release_input(action, read);
  progress();
}

std::optional<bool> PipelineRunner::passes_gradient(ActionKind kind) {
  if (kind == ActionKind::forward) {
    return false;
  }
  return makes_input_gradient(kind) ? std::optional(true) : std::nullopt;
}

/// The buffer for the result of a compute action; waits for a send that occupies it.
std::span<std::byte> PipelineRunner::output_of(const Action& action) {
  const std::optional<bool> gradient = passes_gradient(action.kind);
  const int to = action.stage + (gradient.value_or(false) ? -1 : 1);
  if (!gradient || to < 0 || to >= grid_.stages()) {
    return {};
  }
  Outbox* box = stage(action.stage).out[*gradient];
  if (box == nullptr) {
    return stage(to).local[*gradient]->push();
  }
  wait([box] { return box->free(); }, box->peer(),
       fmt::format("sending what was computed before the {}", describe(action)));
  return box->content();
}

std::span<const std::byte> PipelineRunner::input_of(const Action& action) {
  const std::optional<bool> gradient = passes_gradient(action.kind);
  if (!gradient || (*gradient ? last(action.stage) : action.stage == 0)) {
    return {};
  }
  Inbox* box = stage(action.stage).in[*gradient];
  return box != nullptr ? box->content(envelope(*gradient, action.stage, action.micro_batch))
                        : stage(action.stage).local[*gradient]->front();
}

void PipelineRunner::release_input(const Action& action, Mark read) {
  const std::optional<bool> gradient = passes_gradient(action.kind);
  if (!gradient) {
    return;
  }
  if (Inbox* box = stage(action.stage).in[*gradient]; box != nullptr) {
    box->release(read);
  } else if (const auto& local = stage(action.stage).local[*gradient]; local != nullptr) {
    local->pop();
  }
}

void PipelineRunner::receive(const Action& action) {
  Inbox* box = stage(action.stage).in[action.kind == ActionKind::receive_gradient];
  wait([box] { return box->arrived(); }, box->peer(), describe(action));
}

void PipelineRunner::send(const Action& action) {
  const bool gradient = action.kind == ActionKind::send_gradient;
  stage(action.stage)
      .out[gradient]
      ->send(envelope(gradient, action.stage + (gradient ? -1 : 1), action.micro_batch), computed_);
}

void PipelineRunner::wait(const std::function<bool()>& ready, int peer, const std::string& doing) {
  if (ready()) {
    return;
  }
  const double begin = now_seconds();
  const Mark enqueued = stream_.mark();
  double patient_since = begin;
  comm_->wait_until(
      [&] {
        progress();
        if (ready()) {
          return Progress::done;
        }
        // Peers may wait for kernels of this rank that still run. They count as progress, at most
        // twice per timeout: reported at every poll, they would keep the host from idling.
        constexpr double kMaxTimeouts = 4;  // no message for so long: the device hangs
        const double now = now_seconds();
        if (now - patient_since > comm_->timeout() / 2 && !stream_.passed(enqueued)) {
          if (now - begin > kMaxTimeouts * comm_->timeout()) {
            comm_->lose({comm_->rank()},
                        fmt::format("the device did not finish its kernels within {:g} s while "
                                    "this rank was {}: check the kernel's log (dmesg, Xid) and "
                                    "resume from the last checkpoint",
                                    kMaxTimeouts * comm_->timeout(), doing));
          }
          patient_since = now;
          return Progress::moved;
        }
        return Progress::stuck;
      },
      [peer] { return std::vector<int>{peer}; }, doing);
  const double end = now_seconds();
  times_.waited += end - begin;
  if (Trace* trace = Trace::current(); trace != nullptr) {
    trace->add(Track::pipeline, doing, begin, end);
  }
}

/// The receiver of an incomplete send; empty: all sends are complete.
std::optional<int> PipelineRunner::unsent() {
  for (auto& [number, channel] : channels_) {
    if (channel.out && !channel.out->flushed()) {
      return channel.out->peer();
    }
  }
  return std::nullopt;
}

void PipelineRunner::advance() {
  for (auto& [number, channel] : channels_) {
    if (channel.in) {
      channel.in->advance();
    } else {
      channel.out->advance();
    }
  }
}

/// With NCCL, checks all links: a lost peer can show up in any of them.
void PipelineRunner::progress() {
  comm_->progress();
  wait_hook_ ? WaitHook::run_all() : advance();
}

int needed_local_buffers(const Schedule& schedule) {
  int most = 1;
  for (const std::vector<Action>& program : schedule.programs) {
    std::map<int, int> waiting;  // by channel
    for (const Action& action : program) {
      const bool forward = action.kind == ActionKind::forward;
      if (!forward && !makes_input_gradient(action.kind)) {
        continue;
      }
      auto local = [&](int from) {
        return from >= 0 && from + 1 < schedule.stages() && !schedule.crosses(from);
      };
      // The output is claimed before the input is released.
      const int to = forward ? action.stage + 1 : action.stage - 1;
      if (local(std::min(action.stage, to))) {
        most = std::max(most, ++waiting[channel_of(to, !forward)]);
      }
      const int from = forward ? action.stage - 1 : action.stage + 1;
      if (local(std::min(action.stage, from))) {
        --waiting[channel_of(action.stage, !forward)];
      }
    }
  }
  return most;
}

}  // namespace espalier::parallel
