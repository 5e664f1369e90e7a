#include "src/train/stage/layer_times.h"

#include <algorithm>
#include <map>

#include "parallel/transport/collectives.h"
#include "pruning/plan.h"
#include "src/core/trace.h"
#include "src/train/stage/stage.h"

namespace espalier::train {
namespace {

/// Forward and backward of one part that is a single layer.
parallel::StageTimes time_layer(Part& part, int64_t samples, Stream& stream) {
  parallel::StageTimes best{.forward = 1e9, .backward_input = 1e9, .backward_weight = 1e9};
  const auto message = [&stream](size_t bytes) {
    return stream.arena().host().allocate(Memory::communication, "message", DType::uint8,
                                          Shape{static_cast<int64_t>(bytes)});
  };
  const auto bytes_of = [](const Buffer& buffer) {
    return std::as_writable_bytes(buffer.tensor().span<uint8_t>());
  };
  const Buffer in = message(part.bytes_in()), dx = message(part.bytes_in());
  const Buffer gradient = message(part.bytes_out()), out = message(part.bytes_out());
  constexpr int kRuns = 8;  // after one that is not timed; other work only adds to a time
  constexpr int kFewRuns = 2;
  constexpr double kLongRuns = 0.5;  // seconds, after which kFewRuns suffice
  const double start = now_seconds();
  for (int run = 0; run <= kFewRuns || (run <= kRuns && now_seconds() - start < kLongRuns); ++run) {
    part.open(0, samples);  // inputs stay zero: the first token, the first class
    const double begin = now_seconds();
    part.forward(0, {.samples = samples}, true, bytes_of(in), bytes_of(out));
    stream.synchronize();
    const double middle = now_seconds();
    part.backward(0, false, {}, bytes_of(gradient), bytes_of(dx));
    stream.synchronize();
    const double end = now_seconds();
    if (run > 0) {
      best.forward = std::min(best.forward, middle - begin);
      best.backward_input = std::min(best.backward_input, (end - middle) / 2);
    }
  }
  best.backward_weight = best.backward_input;
  return best;
}

}  // namespace

std::vector<size_t> first_of_kind(std::span<const std::unique_ptr<model::Layer>> layers,
                                  const std::vector<int64_t>& kept) {
  using Kind = std::vector<std::pair<std::vector<int64_t>, int64_t>>;  // shapes, kept elements
  std::map<std::tuple<size_t, int64_t, Kind>, size_t> known;
  std::vector<size_t> first;
  size_t parameter = 0;
  for (size_t i = 0; i < layers.size(); ++i) {
    Kind kind;
    for (const sparse::ParameterSpec& spec : layers[i]->parameters()) {
      const auto extents = spec.shape.extents();
      kind.push_back({{extents.begin(), extents.end()}, kept[parameter++]});
    }
    const size_t place = i == 0 ? 0 : i + 1 == layers.size() ? 2 : 1;
    first.push_back(
        known.try_emplace({place, layers[i]->variant(), std::move(kind)}, i).first->second);
  }
  return first;
}

LayerTimes estimated_times(const io::Config& config, const ProblemShape& problem,
                           const TeacherFile* teacher) {
  Stage::Options options{.micro_batch = 1, .teacher = teacher};
  const size_t layers = model::network_of(config.model).layer_count(config.model);
  for (size_t i = 0; i < layers; ++i) {
    options.parts.push_back({.first = i, .end = i + 1});
  }
  LayerTimes times;
  for (const PassCost& cost : measure_pass(config, problem, options)) {
    const double third = (cost.flops / 2e11 + cost.bytes / 2e10) / 3;
    times.layers.push_back({.forward = third, .backward_input = third, .backward_weight = third});
  }
  return times;
}

LayerTimes measured_times(const io::Config& config, const ProblemShape& problem,
                          std::span<const std::unique_ptr<model::Layer>> layers,
                          const std::vector<int64_t>& kept, int64_t samples,
                          kernels::Backend& backend, const TeacherFile* teacher) {
  const std::vector<sparse::ParameterSpec> network = model::parameters_of(layers);
  const std::vector<size_t> first = first_of_kind(layers, kept);
  LayerTimes times;
  for (size_t i = 0; i < layers.size(); ++i) {
    if (first[i] != i) {
      times.layers.push_back(times.layers[first[i]]);
      continue;
    }
    Arena arena = backend.arena().another();
    Stream stream(arena, backend.stream().threads(), backend.stream().queue());
    stream.set_deterministic(config.run.deterministic);
    const std::vector<PartShape> parts{{.first = i, .end = i + 1}};
    const std::vector<size_t> numbers = parameters_of(layers, parts);
    const auto masks = [&](size_t p) {
      return pruning::example_mask(config.pruning, network[numbers[p]], kept[numbers[p]]);
    };
    Stage stage(config, problem, stream, backend.kernels(),
                {.micro_batch = samples, .masks = masks, .parts = parts, .teacher = teacher});
    stage.store().initialise(1);
    times.layers.push_back(time_layer(*stage.parts().front(), samples, stream));
  }
  return times;
}

double measured_latency(parallel::Communicator& comm, size_t bytes, int other) {
  constexpr parallel::Tag kPing{parallel::kTagNumbers - 3, parallel::Traffic::other};
  std::vector<std::byte> message(bytes);
  double best = 1e9;
  for (int run = 0; run < 5; ++run) {
    const double begin = now_seconds();
    for (const int sender : {0, other}) {
      if (comm.rank() == sender) {
        parallel::Request request = comm.isend(other - sender, kPing, message);
        comm.wait(request);
      } else if (comm.rank() == other - sender) {
        parallel::Request request = comm.irecv(sender, kPing, message);
        comm.wait(request);
      }
    }
    best = std::min(best, (now_seconds() - begin) / 2);
  }
  parallel::broadcast(comm, 0, std::as_writable_bytes(std::span(&best, 1)));
  return best;
}

cost::Link measured_link(parallel::Communicator& comm) {
  constexpr size_t kShort = 64;
  constexpr size_t kLong = size_t{1} << 20U;
  cost::Link slowest;
  for (const int other : {1, comm.size() - 1}) {
    const double latency = measured_latency(comm, kShort, other);
    const double seconds = measured_latency(comm, kLong, other);
    slowest.latency_s = std::max(slowest.latency_s, latency);
    if (seconds > latency) {
      slowest.bytes_per_s =
          std::min(slowest.bytes_per_s, static_cast<double>(kLong) / (seconds - latency));
    }
  }
  return slowest;
}

}  // namespace espalier::train
