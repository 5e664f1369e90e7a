#include "src/planner/calibration.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>

#include "io/files/raw_file.h"
#include "parallel/transport/busy.h"
#include "parallel/transport/collectives.h"
#include "parallel/wire/codec.h"
#include "parallel/wire/wire.h"
#include "src/core/trace.h"
#include "src/kernels/backend.h"
#include "src/planner/links.h"
#include "src/planner/operations.h"
#include "src/train/exchange/state_check.h"
#include "src/train/exchange/timed_reduction.h"
#include "src/train/masks/initial_masks.h"
#include "src/train/memory/host_memory.h"
#include "src/train/stage/layer_times.h"
#include "src/train/stage/stage.h"

namespace espalier::planner {
namespace {

/// A short training of a GPT, or of 3 × 3 convolutions.
struct Probe {
  const char* dtype;
  int64_t width, context, samples;  ///< channels, and pixels of a side squared
  double sparsity;                  ///< 0: dense
  const char* storage = "sparse";
  bool convolves = false;

  int64_t work() const { return width * context * samples; }  ///< columns times tokens
  std::string text() const {
    return fmt::format("{}, {} {}, {} {}, {:.0f} % pruned, {}", dtype,
                       convolves ? "channels" : "width", width, context * samples,
                       convolves ? "pixels" : "tokens", 100 * sparsity,
                       sparsity > 0 ? storage : "dense");
  }
};

/// Blocks of a probe's network: several, so that weights come from memory, as in a run.
constexpr int64_t kBlocks = 3;
constexpr int64_t kMostWork = 512 * 1024;  ///< of a probe
constexpr int64_t kLongWork = 128 * 1024;  ///< from here on one step is long enough to time

/// The small ones first: the largest are left out where time ends.
std::vector<Probe> probes(bool quick) {
  if (quick) {
    return {{"fp32", 64, 64, 1, 0},
            {"fp32", 64, 64, 1, 0.9},
            {"fp32", 64, 64, 1, 0.9, "expanded"},
            {"fp32", 8, 6 * 6, 1, 0, "sparse", true},
            {"fp32", 8, 6 * 6, 1, 0.5, "sparse", true}};
  }
  std::vector<Probe> all;
  for (const char* dtype : {"fp32", "bf16"}) {
    for (const int64_t width : {128, 256, 448, 640, 1024}) {
      for (const auto& [context, samples] :
           {std::pair<int64_t, int64_t>{64, 1}, {64, 4}, {256, 1}, {128, 8}, {512, 1}, {512, 4}}) {
        for (const double sparsity : {0.0, 0.75, 0.9, 0.96}) {
          const Probe probe{dtype, width, context, samples, sparsity};
          if (probe.work() <= kMostWork) {
            all.push_back(probe);
          }
        }
      }
    }
    for (const auto& [channels, side, samples] : {std::tuple<int64_t, int64_t, int64_t>{16, 28, 4},
                                                  {32, 16, 32},
                                                  {64, 28, 8},
                                                  {64, 8, 16},
                                                  {128, 14, 16},
                                                  {256, 7, 16},
                                                  {256, 4, 64}}) {
      for (const double sparsity : {0.0, 0.75, 0.9, 0.96}) {
        all.push_back({dtype, channels, side * side, samples, sparsity, "sparse", true});
      }
    }
    for (const int64_t width : {256, 640, 1024}) {  // expanding does not depend on tokens
      for (const double sparsity : {0.75, 0.9, 0.96}) {
        all.push_back({dtype, width, 64, 1, sparsity, "expanded"});
      }
    }
  }
  std::ranges::stable_sort(all, {}, &Probe::work);
  return all;
}

io::Config config_of(const Probe& probe) {
  constexpr int64_t kHead = 64;
  io::Config config;
  if (probe.convolves) {
    const auto side = static_cast<int64_t>(std::llround(std::sqrt(probe.context)));
    config.model.kind = "vision";
    config.model.image = {side, side, probe.width};
    config.model.network = {fmt::format("{} x conv {} 3 norm", kBlocks, probe.width), "max 2",
                            "mean"};
  } else {
    config.model.layers = kBlocks;
    config.model.width = probe.width;
    config.model.heads = std::max<int64_t>(1, probe.width / kHead);
    config.model.context = probe.context;
  }
  config.train.dtype = probe.dtype;
  config.train.global_batch = probe.samples;
  if (probe.sparsity > 0) {
    config.pruning.method = "random";
    config.pruning.scope = "layer";
    config.pruning.at_step = 0;
    config.pruning.sparsity = probe.sparsity;
    config.sparse.storage.fallback = probe.storage;
  }
  return config;
}

double sum_of(const std::vector<kernels::OperationRow>& rows) {
  double sum = 0;
  for (const kernels::OperationRow& row : rows) {
    sum += row.seconds;
  }
  return sum;
}

int64_t pruned_kept(const sparse::Store& store) {
  int64_t kept = 0;
  for (const sparse::Parameter& parameter : store.parameters()) {
    kept += parameter.full() ? 0 : parameter.kept();
  }
  return kept;
}

/// The operations of a training, each with the seconds of one call, and what a block takes beside
/// them.
std::vector<kernels::OperationRow> train_probe(const Probe& probe, parallel::Communicator& comm,
                                               int threads) {
  const io::Config config = config_of(probe);
  const train::ProblemShape problem =
      probe.convolves ? train::ProblemShape{.classes = 10,
                                            .features = probe.context * probe.width,
                                            .rows = 1,
                                            .input_dtype = DType::fp32}
                      : train::ProblemShape{.classes = 256,
                                            .features = probe.context,
                                            .rows = probe.context,
                                            .input_dtype = DType::int32};
  kernels::OperationTimes times(kernels::by_name("cpu"));
  kernels::Backend backend(times.table(), threads);
  const model::Layers layers = model::make_layers(config.model, problem);
  const train::InitialMasks start =
      train::initial_masks(config, model::parameters_of(layers), {}, threads);
  train::Stage stage(config, problem, backend.stream(), backend.kernels(),
                     {.micro_batch = probe.samples, .masks = start.masks});
  stage.store().initialise(1);
  train::StateCheck check(stage.store(), 0);
  check.record(0);
  const int steps = probe.work() < kLongWork ? 3 : 1;
  double beside = 0;
  for (int step = 0; step <= steps; ++step) {
    if (step == 1) {  // the first one warms up
      times.clear();
      beside = 0;
    }
    stage.inputs(probe.samples);  // inputs stay zero: the first token, the first class
    stage.targets(probe.samples);
    parallel::barrier(comm);
    const double before = sum_of(times.rows());
    const double begin = now_seconds();
    stage.forward_backward({.samples = probe.samples, .step = step, .loss_scale = 1e-3});
    beside += now_seconds() - begin;
    beside -= sum_of(times.rows()) - before;
    check.begin_update();
    stage.result(stage.update(step, 1e-6, {.observer = [&](const sparse::Parameter& parameter) {
                                return check.observer_of(parameter);
                              }}));
    check.end_update(step + 1);
  }
  std::vector<kernels::OperationRow> rows = times.rows();
  if (probe.convolves) {
    return rows;
  }
  rows.push_back(other_of_block(pruned_kept(stage.store()) / kBlocks));
  rows.back().calls = steps * kBlocks;
  rows.back().seconds = std::max(beside, 1e-9);
  return rows;
}

/// The operations of a training, each with the mean time of a call over the ranks; in an order that
/// does not depend on times.
std::vector<kernels::OperationRow> measure(const Probe& probe, parallel::Communicator& comm,
                                           int threads) {
  std::vector<kernels::OperationRow> rows = train_probe(probe, comm, threads);
  std::ranges::sort(rows, [](const auto& a, const auto& b) {
    return std::tie(a.name, a.extents, a.cost.flops, a.cost.bytes) <
           std::tie(b.name, b.extents, b.cost.flops, b.cost.bytes);
  });
  std::vector<double> seconds;
  for (const kernels::OperationRow& row : rows) {
    seconds.push_back(row.seconds / static_cast<double>(row.calls) / comm.size());
  }
  parallel::all_reduce_small(comm, seconds, parallel::Combine::sum);
  for (size_t i = 0; i < rows.size(); ++i) {
    rows[i].seconds = seconds[i];
    rows[i].calls = 1;
  }
  return rows;
}

/// The operations of a probe, with their times in each round.
class Rounds {
 public:
  void add(const std::vector<kernels::OperationRow>& rows) {
    require(rows_.empty() || rows_.size() == rows.size(),
            "a training has the same operations again");
    rows_ = rows;
    seconds_.resize(rows.size());
    for (size_t i = 0; i < rows.size(); ++i) {
      seconds_[i].push_back(rows[i].seconds);
    }
  }

  std::vector<kernels::OperationRow> medians() const {
    std::vector<kernels::OperationRow> rows = rows_;
    for (size_t i = 0; i < rows.size(); ++i) {
      std::vector<double> all = seconds_[i];
      std::ranges::sort(all);
      rows[i].seconds = (all[(all.size() - 1) / 2] + all[all.size() / 2]) / 2;
    }
    return rows;
  }

 private:
  std::vector<kernels::OperationRow> rows_;
  std::vector<std::vector<double>> seconds_;  ///< [operations][rounds]
};

void add_operations(const Probe& probe, const std::vector<kernels::OperationRow>& rows,
                    Machine& machine) {
  const DType dtype = dtype_by_name(probe.dtype);
  for (const kernels::OperationRow& row : rows) {
    if (row.seconds > 0 && row.cost.flops + row.cost.bytes > 0) {
      machine.measured[measured_key(dtype, row.name)].push_back(row);
      if (row.name.starts_with("gemm")) {
        double& peak = machine.peak[probe.dtype];
        peak = std::max(peak, row.cost.flops / row.seconds);
      }
    }
  }
}

/// By probe. Round 1 skips the probes that do not fit into `options.seconds`. Later rounds repeat
/// the measured probes: `options.rounds` in all, then more until the time is over.
std::vector<Rounds> measure_all(const std::vector<Probe>& all, const CalibrationOptions& options,
                                parallel::Communicator& comm) {
  std::vector<Rounds> measured;
  const double begin = now_seconds();
  const auto is_over = [&] {
    std::array<double, 1> passed{now_seconds() - begin};
    parallel::all_reduce_small(comm, passed, parallel::Combine::max);
    return passed[0] > options.seconds;
  };
  for (int round = 0; round < options.rounds || (!options.quick && !is_over()); ++round) {
    const size_t count = round == 0 ? all.size() : measured.size();
    for (size_t i = 0; i < count; ++i) {
      const bool may_end = round == 0 || round >= options.rounds;
      if (may_end && is_over()) {
        break;
      }
      if (options.on_progress) {
        options.on_progress(
            fmt::format("round {}, {} of {}: {}", round + 1, i + 1, count, all[i].text()));
      }
      measured.resize(std::max(measured.size(), i + 1));
      measured[i].add(measure(all[i], comm, options.threads));
    }
  }
  return measured;
}

/// Bytes per second of copies, read and written, by all ranks at once.
double copy_rate(parallel::Communicator& comm, bool quick) {
  const size_t bytes = quick ? size_t{1} << 20U : size_t{128} << 20U;
  std::vector<std::byte> from(bytes);
  std::vector<std::byte> to(bytes);
  double best = 1e9;
  for (int run = 0; run < 4; ++run) {
    parallel::barrier(comm);
    const double begin = now_seconds();
    std::memcpy(to.data(), from.data(), bytes);
    best = std::min(best, now_seconds() - begin);
  }
  return 2 * static_cast<double>(bytes) / best;
}

/// Rates of a file of the directory, written as checkpoints are. The system's copy in memory is
/// dropped before it is read, as far as the system lets it.
void measure_disk(const CalibrationOptions& options, Machine& machine) {
  const size_t pieces = options.quick ? 1 : 64;
  std::vector<std::byte> piece(size_t{8} << 20U, std::byte{1});
  const std::filesystem::path path =
      options.directory / fmt::format(".espalier-disk-{}", ::getpid());
  io::RawFile file = io::RawFile::create(path);
  std::error_code ignored;
  std::filesystem::remove(path, ignored);  // the open file stays; a kill leaves nothing
  const auto rate_of = [&](const auto& work) {
    const double begin = now_seconds();
    work();
    check(file.error() == 0, "the disk of {} cannot be measured: {}; write -o to another folder",
          options.directory.string(), std::strerror(file.error()));
    return static_cast<double>(pieces * piece.size()) / (now_seconds() - begin);
  };
  machine.disk_write = rate_of([&] {
    for (size_t i = 0; i < pieces; ++i) {
      file.write(i * piece.size(), piece.size(), piece.data());
    }
    file.sync();
  });
  file.forget_cached();
  machine.disk_read = rate_of([&] {
    for (size_t i = 0; i < pieces; ++i) {
      file.read(i * piece.size(), piece.size(), piece.data());
    }
  });
}

/// The latency of a short message and the bandwidth of a long one. Lengths between are left out: a
/// link whose rate a token bucket limits, as clouds do, passes those that fit the bucket at once.
cost::Link measure_link(parallel::Communicator& comm, bool quick) {
  constexpr size_t kShort = 64;
  const size_t length = size_t{1} << (quick ? 18U : 24U);
  const double latency = train::measured_latency(comm, kShort);
  const double seconds = train::measured_latency(comm, length);
  const auto bytes = static_cast<double>(length);
  return seconds > 2 * latency
             ? cost::Link{.latency_s = latency, .bytes_per_s = bytes / (seconds - latency)}
             : cost::Link{.bytes_per_s = bytes / seconds};  // shorter than a wait
}

/// The texts of codecs that a config may name: of those with a number of bits 8, 4 and 2.
std::vector<std::string> codec_texts(bool quick) {
  if (quick) {
    return {"maxmin:4"};
  }
  std::vector<std::string> all;
  for (const kernels::WireCodec* codec : kernels::wire_codecs()) {
    if (codec->form == kernels::WireForm::plain) {
      continue;
    }
    if (codec->numbers != kernels::WireNumbers::bits) {
      all.emplace_back(codec->name);
      continue;
    }
    for (const int bits : {8, 4, 2}) {
      if (bits <= codec->most_bits) {
        all.push_back(fmt::format("{}:{}", codec->name, bits));
      }
    }
  }
  return all;
}

/// The least of a few times of `work` on all ranks at once, mean over the ranks.
template <class Work>
double seconds_on_all(parallel::Communicator& comm, const Work& work) {
  double best = 1e9;
  for (int run = 0; run < 4; ++run) {
    parallel::barrier(comm);
    const double begin = now_seconds();
    work();
    best = std::min(best, now_seconds() - begin);
  }
  std::array<double, 1> sum{best / comm.size()};
  parallel::all_reduce_small(comm, sum, parallel::Combine::sum);
  return sum[0];
}

/// Encodes a bucket of random values, and adds the decoded ones to fp32 sums, as reductions do.
void measure_codecs(parallel::Communicator& comm, int threads, bool quick, Machine& machine) {
  kernels::Backend backend(kernels::by_name("cpu"), threads);
  for (const DType dtype : {DType::fp32, DType::bf16}) {
    const int64_t values = quick ? int64_t{1} << 14U : (int64_t{4} << 20U) / size_of(dtype);
    std::vector<std::byte> numbers = train::random_values(dtype, values);
    std::vector<float> sums(static_cast<size_t>(values));
    const Tensor x(numbers.data(), dtype, Shape{values});
    const Tensor y(sums.data(), DType::fp32, Shape{values});
    for (const std::string& text : codec_texts(quick)) {
      const kernels::WireFormat format = parallel::format_of(parallel::parse_codec(text));
      parallel::Wire wire(backend.kernels(), backend.stream(), train::one_segment(format, values));
      std::vector<std::byte> code(wire.bytes(0, values));
      const auto add = [&](std::string_view verb, double seconds) {
        kernels::OperationRow row = codec_operation(verb, format, values, dtype);
        row.seconds = seconds;
        machine.measured[measured_key(dtype, row.name)] = {row};
      };
      add("encode", seconds_on_all(comm, [&] { wire.encode(x, 0, code); }));
      add("decode", seconds_on_all(comm, [&] { wire.add(code, 0, y); }));
    }
  }
}

}  // namespace

Machine calibrate(parallel::Communicator& comm, const CalibrationOptions& options) {
  Machine machine{.name = "this machine",
                  .source = options.quick
                                ? "measured by espalier plan --calibrate --quick: too few "
                                  "measurements for predictions"
                                : "measured by espalier plan --calibrate",
                  .memory = static_cast<double>(train::host_limit("/").bytes) / comm.size(),
                  .threads = options.threads};
  if (comm.rank() == 0) {  // first: a disk that cannot be written ends the command at once
    const parallel::Busy busy(comm);
    measure_disk(options, machine);
  }
  machine.bandwidth = copy_rate(comm, options.quick);
  machine.overlaps = false;
  const std::vector<Probe> all = probes(options.quick);
  const auto measured = measure_all(all, options, comm);
  for (size_t i = 0; i < measured.size(); ++i) {
    add_operations(all[i], measured[i].medians(), machine);
  }
  measure_codecs(comm, options.threads, options.quick, machine);
  constexpr double kMemoryBandwidth = 1;  // of one rank there is no link
  const cost::Link link = comm.size() > 1
                              ? measure_link(comm, options.quick)
                              : cost::Link{.bytes_per_s = machine.bandwidth * kMemoryBandwidth};
  machine.levels.push_back({.name = "machine", .ranks = comm.size(), .link = link});
  return machine;
}

}  // namespace espalier::planner
