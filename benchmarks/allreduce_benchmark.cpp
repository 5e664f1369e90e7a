// Gradient all-reduce against MPI_Allreduce and MPI_Iallreduce, in the same run and on the same data:
//
//   scripts/mpirun.sh 2 build/release/benchmarks/allreduce_benchmark [MEGABYTES [REPEATS]]
//
// Each line: median and best time, algorithm bandwidth (bytes of the array / median), bus bandwidth
// (bytes each rank sends, 2 (p-1)/p n, / median), ratio to MPI_Allreduce, and % of the bound. The bound is
// the time in which the same bytes go through MPI_Sendrecv, plus that of the additions; measured here.
// Every result is compared with the exact sum; started alone, ranks are two threads.
#include <mpi.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>

#include "parallel/bucketer.h"
#include "parallel/collectives.h"
#include "parallel/mpi_communicator.h"
#include "parallel/sum.h"
#include "parallel/thread_communicator.h"
#include "src/core/trace.h"

namespace espalier::parallel {
namespace {

struct Setup {
  int64_t count = 43'000'000 / 4;
  int repeats = 15;
};

/// Small integers: their sums are exact, whatever the order.
float value(int rank, int64_t i) { return static_cast<float>((i + 7 * rank) % 61); }

struct Timing {
  double median = 0;
  double best = 0;
};

/// Times `run` after a barrier; a repeat takes as long as its slowest rank.
Timing timed(Communicator& comm, int repeats, const std::function<void()>& prepare,
             const std::function<void()>& run) {
  std::vector<double> seconds;
  for (int i = 0; i < repeats; ++i) {
    prepare();
    barrier(comm);
    const double begin = now_seconds();
    run();
    double taken = now_seconds() - begin;
    all_reduce_small(comm, {&taken, 1}, Combine::max);
    seconds.push_back(taken);
  }
  std::ranges::sort(seconds);
  return {.median = seconds[seconds.size() / 2], .best = seconds.front()};
}

class Bench {
 public:
  Bench(Communicator& comm, const Setup& setup)
      : comm_(comm), setup_(setup), data_(static_cast<size_t>(setup.count)) {}

  void run(bool mpi) {
    bound_ = measure_bound(mpi);
    print_head();
    if (mpi) {
      rival_ = sum("MPI_Allreduce", [this] {
        MPI_Allreduce(MPI_IN_PLACE, data_.data(), static_cast<int>(setup_.count), MPI_FLOAT,
                      MPI_SUM, MPI_COMM_WORLD);
      });
      sum("MPI_Iallreduce", [this] {
        MPI_Request request = MPI_REQUEST_NULL;
        MPI_Iallreduce(MPI_IN_PLACE, data_.data(), static_cast<int>(setup_.count), MPI_FLOAT,
                       MPI_SUM, MPI_COMM_WORLD, &request);
        MPI_Wait(&request, MPI_STATUS_IGNORE);
      });
    }
    for (const size_t kilobytes : {64, 128, 256, 512, 1024}) {
      Arena arena;
      AllReduce reduction(comm_, arena, {.piece_bytes = kilobytes << 10U});
      sum(fmt::format("AllReduce, pieces of {} KiB", kilobytes), [&] {
        reduction.start(data_, 0);
        reduction.wait();
      });
    }
    Arena arena;
    GradientBuckets buckets(comm_, arena);
    std::vector<int64_t> boundaries;
    for (int64_t end = 0; end < setup_.count; end += 100'000) {
      boundaries.push_back(end);
    }
    sum("GradientBuckets of 4 MiB", [&] {
      buckets.begin(data_, boundaries);
      buckets.finish();
    });
  }

 private:
  double bus_bytes() const {
    const double p = comm_.size();
    return 2 * (p - 1) / p * static_cast<double>(setup_.count) * sizeof(float);
  }
  void fill() {
    for (int64_t i = 0; i < setup_.count; ++i) {
      data_[i] = value(comm_.rank(), i);
    }
  }
  void verify(std::string_view name) const {
    for (int64_t i = 0; i < setup_.count; ++i) {
      float expected = 0;
      for (int r = 0; r < comm_.size(); ++r) {
        expected += value(r, i);
      }
      check(data_[i] == expected, "{}: element {} is {} instead of {}", name, i, data_[i],
            expected);
    }
  }
  double measure_bound(bool mpi);
  void print_head() const {
    if (comm_.rank() == 0) {
      fmt::print("{} ranks over {}, {:.1f} MB of float; bound {:.2f} ms\n", comm_.size(),
                 comm_.name(), static_cast<double>(setup_.count) * 4e-6, bound_ * 1e3);
      fmt::print("{:30} {:>9} {:>9} {:>9} {:>9} {:>8} {:>8}\n", "", "median ms", "best ms",
                 "alg GB/s", "bus GB/s", "x MPI", "% bound");
    }
  }
  double sum(const std::string& name, const std::function<void()>& run) {
    const Timing t = timed(
        comm_, setup_.repeats, [this] { fill(); }, run);
    verify(name);
    if (comm_.rank() == 0) {
      fmt::print("{:30} {:9.2f} {:9.2f} {:9.2f} {:9.2f} {:8.2f} {:8.0f}\n", name, t.median * 1e3,
                 t.best * 1e3, static_cast<double>(setup_.count) * 4e-9 / t.median,
                 bus_bytes() * 1e-9 / t.median, rival_ > 0 ? rival_ / t.median : 0,
                 100 * bound_ / t.median);
      std::fflush(stdout);
    }
    return t.median;
  }

  Communicator& comm_;
  Setup setup_;
  std::vector<float> data_;
  double bound_ = 0;
  double rival_ = 0;
};

double Bench::measure_bound(bool mpi) {
  const auto bytes = static_cast<size_t>(bus_bytes());
  std::vector<std::byte> out(bytes);
  std::vector<std::byte> in(bytes);
  const int next = (comm_.rank() + 1) % comm_.size();
  const int previous = (comm_.rank() + comm_.size() - 1) % comm_.size();
  const Timing transfer = timed(
      comm_, 9, [] {},
      [&] {
        if (mpi) {
          MPI_Sendrecv(out.data(), static_cast<int>(bytes), MPI_BYTE, next, 0, in.data(),
                       static_cast<int>(bytes), MPI_BYTE, previous, 0, MPI_COMM_WORLD,
                       MPI_STATUS_IGNORE);
        } else {
          Request receive = comm_.irecv(previous, {1}, in);
          Request send = comm_.isend(next, {1}, out);
          comm_.wait(receive);
          comm_.wait(send);
        }
      });
  const int64_t slice = setup_.count / comm_.size();
  const std::vector<float> zeros(static_cast<size_t>(slice));
  std::vector<const float*> inputs(static_cast<size_t>(comm_.size()), zeros.data());
  inputs[0] = data_.data();
  const Timing adding = timed(
      comm_, 9, [] {}, [&] { sum_in_order(inputs, data_.data(), slice); });
  return transfer.best + adding.best;
}

}  // namespace
}  // namespace espalier::parallel

int main(int argc, char** argv) {
  using namespace espalier::parallel;
  Setup setup;
  if (argc > 1) {
    setup.count = static_cast<int64_t>(std::atof(argv[1]) * 1e6 / 4);
  }
  if (argc > 2) {
    setup.repeats = std::atoi(argv[2]);
  }
  if (launched_by_mpi()) {
    MpiScope mpi;
    Bench(mpi.world(), setup).run(true);
    return 0;
  }
  run_ranks(2, [&](Communicator& comm) { Bench(comm, setup).run(false); });
  return 0;
}
