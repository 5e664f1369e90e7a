// Gradient all-reduce against MPI_Allreduce and MPI_Iallreduce, in the same run and on the same
// data:
//
//   scripts/mpirun.sh 2 build/release/benchmarks/allreduce_benchmark [MEGABYTES [REPEATS]]
//
// Each repeat runs all contenders in turn, so that noise of the machine meets all alike. Each line:
// median and best time, algorithm bandwidth (bytes of the array / median), bytes each rank sends by
// the formula, median over the repeats of MPI_Allreduce's time divided by this one, and % of the
// bound. The bound is the time in which the same bytes go through MPI_Sendrecv plus that of the
// additions, measured here. Every result is compared with the exact sum. Started alone, ranks are
// two threads.
#include <mpi.h>

#include <algorithm>
#include <array>
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

double median(std::vector<double> x) {
  std::ranges::sort(x);
  return x[x.size() / 2];
}

/// Seconds of the slowest rank, from a barrier on.
double timed(Communicator& comm, const std::function<void()>& run) {
  barrier(comm);
  const double begin = now_seconds();
  run();
  double taken = now_seconds() - begin;
  all_reduce_small(comm, {&taken, 1}, Combine::max);
  return taken;
}

double best_of(Communicator& comm, int repeats, const std::function<void()>& run) {
  double best = timed(comm, run);
  for (int i = 1; i < repeats; ++i) {
    best = std::min(best, timed(comm, run));
  }
  return best;
}

struct Contender {
  std::string name;
  std::function<void(std::span<float>)> run;
  std::vector<double> seconds = {};
};

class Bench {
 public:
  Bench(Communicator& comm, const Setup& setup)
      : comm_(comm), setup_(setup), data_(static_cast<size_t>(setup.count)) {}

  void run(bool mpi) {
    bound_ = measure_bound(mpi);
    if (mpi) {
      add_mpi();
    }
    for (const size_t kilobytes : {64, 128, 256, 512, 1024}) {
      auto reduction = std::make_shared<AllReduce>(
          comm_, arena_, AllReduceOptions{.piece_bytes = kilobytes << 10U});
      contenders_.push_back({fmt::format("AllReduce, pieces of {} KiB", kilobytes),
                             [reduction](std::span<float> data) {
                               reduction->start(data, 0);
                               reduction->wait();
                             }});
    }
    add_buckets();
    for (int i = 0; i < setup_.repeats; ++i) {
      for (Contender& contender : contenders_) {
        fill();
        contender.seconds.push_back(timed(comm_, [&] { contender.run(data_); }));
        verify(contender.name);
      }
    }
    if (comm_.rank() == 0) {
      print();
    }
    latency("barrier", [this] { barrier(comm_); });
    latency("all_reduce_small, 4 doubles", [this] {
      std::array<double, 4> x{1, 2, 3, 4};
      all_reduce_small(comm_, x, Combine::sum);
    });
    if (mpi) {
      latency("MPI_Barrier", [] { MPI_Barrier(MPI_COMM_WORLD); });
      latency("MPI_Allreduce, 4 doubles", [] {
        std::array<double, 4> x{1, 2, 3, 4};
        MPI_Allreduce(MPI_IN_PLACE, x.data(), 4, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
      });
    }
  }

 private:
  void add_mpi() {
    contenders_.push_back({"MPI_Allreduce", [](std::span<float> data) {
                             MPI_Allreduce(MPI_IN_PLACE, data.data(), static_cast<int>(data.size()),
                                           MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
                           }});
    contenders_.push_back({"MPI_Iallreduce", [](std::span<float> data) {
                             MPI_Request request = MPI_REQUEST_NULL;
                             MPI_Iallreduce(MPI_IN_PLACE, data.data(),
                                            static_cast<int>(data.size()), MPI_FLOAT, MPI_SUM,
                                            MPI_COMM_WORLD, &request);
                             MPI_Wait(&request, MPI_STATUS_IGNORE);
                           }});
  }
  void add_buckets() {
    auto buckets = std::make_shared<GradientBuckets>(comm_, arena_);
    std::vector<int64_t> boundaries;
    for (int64_t end = 0; end < setup_.count; end += 100'000) {
      boundaries.push_back(end);
    }
    contenders_.push_back({"GradientBuckets of 4 MiB", [=](std::span<float> data) {
                             buckets->begin(data, boundaries);
                             buckets->finish();
                           }});
  }
  /// Of a call that is mostly waiting: the median of batches of 100.
  void latency(std::string_view name, const std::function<void()>& call) {
    std::vector<double> seconds;
    for (int i = 0; i < setup_.repeats; ++i) {
      seconds.push_back(timed(comm_, [&] {
        for (int k = 0; k < 100; ++k) {
          call();
        }
      }));
    }
    if (comm_.rank() == 0) {
      fmt::print("{:28} {:9.2f} us\n", name, median(seconds) * 1e4);
    }
  }
  double sent_bytes() const {
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
  void print() const {
    fmt::print(
        "{} ranks over {}, {:.1f} MB of float, {} repeats; bound {:.2f} ms; a rank sends {:.1f} "
        "MB\n",
        comm_.size(), comm_.name(), static_cast<double>(setup_.count) * 4e-6, setup_.repeats,
        bound_ * 1e3, sent_bytes() * 1e-6);
    fmt::print("{:28} {:>9} {:>9} {:>9} {:>16} {:>8}\n", "", "median ms", "best ms", "GB/s",
               "x first line", "% bound");
    for (const Contender& c : contenders_) {
      std::vector<double> ratios;
      for (size_t i = 0; i < c.seconds.size(); ++i) {
        ratios.push_back(contenders_[0].seconds[i] / c.seconds[i]);
      }
      const double middle = median(c.seconds);
      fmt::print("{:28} {:9.2f} {:9.2f} {:9.2f} {:16.2f} {:8.0f}\n", c.name, middle * 1e3,
                 *std::ranges::min_element(c.seconds) * 1e3,
                 static_cast<double>(setup_.count) * 4e-9 / middle, median(ratios),
                 100 * bound_ / middle);
    }
  }

  Communicator& comm_;
  Setup setup_;
  Arena arena_;
  std::vector<float> data_;
  std::vector<Contender> contenders_;
  double bound_ = 0;
};

double Bench::measure_bound(bool mpi) {
  const auto bytes = static_cast<size_t>(sent_bytes());
  std::vector<std::byte> out(bytes);
  std::vector<std::byte> in(bytes);
  const int next = (comm_.rank() + 1) % comm_.size();
  const int previous = (comm_.rank() + comm_.size() - 1) % comm_.size();
  const double transfer = best_of(comm_, 9, [&] {
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
  const double adding = best_of(comm_, 9, [&] { sum_in_order(inputs, data_.data(), slice); });
  return transfer + adding;
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
