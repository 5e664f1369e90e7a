// Sums of a gradient over all ranks with every codec, alternating with uncompressed ones; verified
// in every repeat. Under mpirun, over any link:
//
//   scripts/mpirun.sh 2 build/benchmarks/reduction_benchmark [ELEMENTS [REPEATS [REDUCTION
//   [CODEC…]]]]
//   scripts/two_hosts.sh --rate 100mbit mpirun build/benchmarks/reduction_benchmark 1000000 3
//
// Columns of each line, one per codec:
// - ms: median, best;
// - bytes sent by this rank, and its bandwidth;
// - time of fp32 / this time: median of the ratios within a repeat;
// - "of bound": time of plain messages with the same bytes in the same repeat / time of the sum.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "parallel/flat.h"
#include "parallel/reduction/registry.h"
#include "parallel/transport/collectives.h"
#include "parallel/transport/mpi_communicator.h"
#include "parallel/transport/thread_communicator.h"
#include "parallel/wire/codec.h"
#include "src/core/rng.h"
#include "src/core/trace.h"

namespace espalier::parallel {
namespace {

struct Options {
  int64_t elements = 1'000'000;
  int repeats = 5;
  std::string reduction = "sra";
  std::vector<std::string> codecs{"fp32",    "bf16",     "fp8-e5m2", "fp8-e4m3", "dynamic8",
                                  "linear8", "maxmin:8", "maxmin:4", "maxmin:2", "table:4",
                                  "sign",    "topk:0.1", "topk:0.01"};
};

/// One codec in the benchmark.
class Contender {
 public:
  Contender(Communicator& comm, Arena& arena, const Options& options, const std::string& codec)
      : comm_(comm),
        name_(codec),
        stream_(arena, 1),
        wire_(kernels::by_name("cpu"), stream_,
              {{.first = 0,
                .count = options.elements,
                .format = format_of(parallel::parse_codec(codec))}}),
        reduction_(make_reduction(options.reduction, comm, arena)),
        data_(static_cast<size_t>(options.elements)) {}

  const std::string& name() const { return name_; }
  int64_t bytes() const { return bytes_; }

  /// Seconds of one sum on the slowest rank.
  double run(int step) {
    for (size_t i = 0; i < data_.size(); ++i) {
      data_[i] = value(comm_.rank(), step, i);
    }
    const int64_t before = comm_.sent(Traffic::allreduce).bytes;
    barrier(comm_);
    const double begin = now_seconds();
    reduction_->start(
        {.data = Tensor(data_.data(), DType::fp32, Shape{static_cast<int64_t>(data_.size())}),
         .wire = &wire_});
    reduction_->wait(comm_);
    double seconds = now_seconds() - begin;
    bytes_ = comm_.sent(Traffic::allreduce).bytes - before;
    all_reduce_small(comm_, {&seconds, 1}, Combine::max);
    verify(step);
    return seconds;
  }

  /// The same bytes in messages to the next rank, a window of messages at a time.
  double plain_messages() {
    const int next = (comm_.rank() + 1) % comm_.size();
    const int previous = (comm_.rank() + comm_.size() - 1) % comm_.size();
    std::vector<std::byte> out(static_cast<size_t>(bytes_));
    std::vector<std::byte> in(out.size());
    constexpr size_t kPiece = size_t{256} << 10U;
    barrier(comm_);
    const double begin = now_seconds();
    std::vector<Request> open;
    for (size_t at = 0; at < out.size(); at += kPiece) {
      const size_t n = std::min(kPiece, out.size() - at);
      open.push_back(comm_.irecv(previous, {1, Traffic::other}, std::span(in).subspan(at, n)));
      open.push_back(comm_.isend(next, {1, Traffic::other}, std::span(out).subspan(at, n)));
    }
    for (Request& request : open) {
      comm_.wait(request);
    }
    double seconds = now_seconds() - begin;
    all_reduce_small(comm_, {&seconds, 1}, Combine::max);
    return seconds;
  }

 private:
  static float value(int rank, int step, size_t i) {
    const uint64_t bits = mix(mix(static_cast<uint64_t>(step), static_cast<uint64_t>(rank)), i);
    return static_cast<float>(static_cast<int32_t>(bits >> 32)) * 0x1p-31F;
  }

  /// Compares with the exact sum: errors are at most those of a one-bit code; plain sums must be
  /// exact.
  void verify(int step) const {
    const double allowed = name_ == "fp32" ? 1e-5 : 4.0 * comm_.size();
    for (size_t i = 0; i < data_.size(); i += 97) {
      double sum = 0;
      for (int rank = 0; rank < comm_.size(); ++rank) {
        sum += static_cast<double>(value(rank, step, i));
      }
      check(std::abs(sum - static_cast<double>(data_[i])) <= allowed, "{}: element {} is wrong",
            name_, i);
    }
  }

  Communicator& comm_;
  std::string name_;
  Stream stream_;
  Wire wire_;
  std::unique_ptr<Reduction> reduction_;
  std::vector<float> data_;
  int64_t bytes_ = 0;
};

double median(std::vector<double> x) {
  std::ranges::sort(x);
  return x[x.size() / 2];
}

void run(Communicator& comm, const Options& options) {
  Arena arena;
  std::vector<std::unique_ptr<Contender>> contenders;
  for (const std::string& codec : options.codecs) {
    contenders.push_back(std::make_unique<Contender>(comm, arena, options, codec));
  }
  std::vector<std::vector<double>> seconds(contenders.size());
  std::vector<std::vector<double>> bounds(contenders.size());
  for (int repeat = -1; repeat < options.repeats; ++repeat) {  // the first warms up
    for (size_t c = 0; c < contenders.size(); ++c) {
      const double taken = contenders[c]->run(repeat + 1);
      const double bound = contenders[c]->plain_messages();
      if (repeat >= 0) {
        seconds[c].push_back(taken);
        bounds[c].push_back(bound);
      }
    }
  }
  if (comm.rank() != 0) {
    return;
  }
  std::printf("%d ranks, %lld elements of fp32, %s, %d repeats\n", comm.size(),
              static_cast<long long>(options.elements), options.reduction.c_str(), options.repeats);
  std::printf("%-14s %10s %10s %12s %8s %9s %9s\n", "codec", "ms", "best", "bytes sent", "MB/s",
              "of bound", "x fp32");
  for (size_t c = 0; c < contenders.size(); ++c) {
    std::vector<double> ratios;
    std::vector<double> shares;
    for (size_t r = 0; r < seconds[c].size(); ++r) {
      ratios.push_back(seconds[0][r] / seconds[c][r]);
      shares.push_back(bounds[c][r] / seconds[c][r]);
    }
    const auto bytes = static_cast<double>(contenders[c]->bytes());
    std::printf("%-14s %10.2f %10.2f %12.0f %8.1f %9.2f %9.2f\n", contenders[c]->name().c_str(),
                1e3 * median(seconds[c]), 1e3 * *std::ranges::min_element(seconds[c]), bytes,
                bytes / median(seconds[c]) / 1e6, median(shares), median(ratios));
  }
}

Options options_of(int argc, char** argv) {
  Options options;
  if (argc > 1) {
    options.elements = std::atoll(argv[1]);
  }
  if (argc > 2) {
    options.repeats = std::atoi(argv[2]);
  }
  if (argc > 3) {
    options.reduction = argv[3];
  }
  if (argc > 4) {
    options.codecs.assign(argv + 4, argv + argc);
  }
  return options;
}

}  // namespace
}  // namespace espalier::parallel

int main(int argc, char** argv) {
  using namespace espalier::parallel;
  const Options options = options_of(argc, argv);
  if (launched_by_mpi()) {
    MpiScope mpi;
    run(mpi.world(), options);
  } else {
    run_ranks(2, [&](Communicator& comm) { run(comm, options); });
  }
  return 0;
}
