// Sums over ranks compared with MPI's, in the same run and on the same data, in fp32 and bf16.
// Measures the whole all-reduce and its two halves, which ZeRO-1 uses:
//
//   scripts/mpirun.sh 2 build/benchmarks/allreduce_benchmark [MEGABYTES [REPEATS]]
//
// Each repeat runs all contenders in turn, so that noise of the machine affects all equally.
// Columns of each line:
// - median and best time;
// - algorithm bandwidth: bytes of the array / median;
// - time of the table's first line / this line's: median over the repeats, and of the best times;
// - % of the bound: the measured time of MPI_Sendrecv of the same bytes plus that of the additions.
// Every result is compared with the exact sum. Without mpirun the ranks are two threads.
#include "benchmarks/links/allreduce_array.h"

#include <cstdio>
#include <cstdlib>
#include <memory>
#include <optional>

#include "parallel/reduction/sra.h"
#include "parallel/transport/collectives.h"
#include "parallel/transport/mpi_communicator.h"
#include "parallel/transport/thread_communicator.h"
#include "src/core/trace.h"

namespace espalier::parallel {
namespace {

struct Setup {
  double megabytes = 43;
  int repeats = 15;
  bool mpi = false;
};

double median(std::vector<double> x) {
  std::ranges::sort(x);
  return x[x.size() / 2];
}

/// Seconds of the slowest rank, measured from a barrier.
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
  std::function<void()> run;
  std::function<void()> after = [] {};  ///< not timed
  std::vector<double> seconds = {};
};

/// Contenders with the same effect on the array; ratios are relative to the first.
struct Table {
  std::string title;
  Phases phases = Phases::both;
  std::vector<Contender> contenders = {};
};

template <class T>
class Bench {
 public:
  Bench(Communicator& comm, const Setup& setup)
      : comm_(comm),
        setup_(setup),
        array_(comm, static_cast<int64_t>(setup.megabytes * 1e6 / sizeof(T))),
        buckets_(comm, arena_),
        gather_(comm, arena_, {}, kValueText) {
    std::vector<FlatParameter> parameters;
    for (int64_t at = 0; at < array_.count(); at += kParameter) {
      boundaries_.push_back(at);
      parameters.push_back({.offset = at, .kept = std::min(kParameter, array_.count() - at)});
    }
    partition_ = make_partition(parameters, array_.count(),
                                {.ranks = comm.size(), .element_bytes = sizeof(T)});
    if (setup.mpi) {
      rival_.emplace(array_);
    }
  }

  void run() {
    std::vector<Table> tables{all_reduce(), halves(), scatter(), gather()};
    for (int i = 0; i < setup_.repeats; ++i) {
      for (Table& table : tables) {
        for (Contender& contender : table.contenders) {
          array_.fill(table.phases);
          contender.seconds.push_back(timed(comm_, contender.run));
          contender.after();
          array_.verify(table.phases, contender.name);
        }
      }
    }
    for (const Table& table : tables) {
      const double bound = measure_bound(table.phases);
      if (comm_.rank() == 0) {
        print(table, bound);
      }
    }
  }

 private:
  static constexpr int64_t kParameter = 100'096;  // elements

  std::function<void()> all_reduce_of(Phases phases, size_t piece_bytes) {
    auto reduction =
        std::make_shared<SraReduction>(comm_, arena_, PieceOptions{.piece_bytes = piece_bytes});
    return [this, reduction, phases] {
      reduction->start({.data = array_.tensor(), .phases = phases});
      reduction->wait();
    };
  }
  Table all_reduce() {
    Table table{.title = "all-reduce"};
    if (rival_) {
      table.contenders.push_back({"MPI_Allreduce", [this] { rival_->all_reduce(); }});
      table.contenders.push_back({"MPI_Iallreduce", [this] { rival_->nonblocking(); }});
    }
    for (const size_t kilobytes : {64, 128, 256, 512, 1024}) {
      table.contenders.push_back({fmt::format("SraReduction, pieces of {} KiB", kilobytes),
                                  all_reduce_of(Phases::both, kilobytes << 10U)});
    }
    table.contenders.push_back({"HostBuckets of 4 MiB", [this] {
                                  buckets_.begin(all_reduce_step(array_.tensor(), boundaries_));
                                  buckets_.finish();
                                }});
    return table;
  }
  Table halves() {
    Table table{.title = "reduce-scatter, then all-gather"};
    if (rival_) {
      table.contenders.push_back(
          {"MPI_Reduce_scatter, Allgather", [this] { rival_->both_halves(); }});
    }
    table.contenders.push_back(
        {"HostBuckets, then gather", [this] {
           buckets_.begin(half_step(array_.tensor(), Phases::scatter, partition_));
           buckets_.finish();
           gather_.begin(half_step(array_.tensor(), Phases::gather, partition_));
           gather_.finish();
         }});
    return table;
  }
  Table scatter() {
    Table table{.title = "reduce-scatter", .phases = Phases::scatter};
    if (rival_) {
      table.contenders.push_back({"MPI_Reduce_scatter", [this] { rival_->reduce_scatter(); },
                                  [this] { rival_->place(); }});
    }
    table.contenders.push_back(
        {"SraReduction, scatter only", all_reduce_of(Phases::scatter, PieceOptions{}.piece_bytes)});
    return table;
  }
  Table gather() {
    Table table{.title = "all-gather", .phases = Phases::gather};
    if (rival_) {
      table.contenders.push_back({"MPI_Allgather", [this] { rival_->all_gather(); }});
    }
    table.contenders.push_back(
        {"SraReduction, gather only", all_reduce_of(Phases::gather, PieceOptions{}.piece_bytes)});
    return table;
  }

  double sent_bytes(Phases phases) const {
    const double p = comm_.size();
    return (phases == Phases::both ? 2 : 1) * (p - 1) / p * array_.bytes();
  }
  double measure_bound(Phases phases);
  void print(const Table& table, double bound) const {
    fmt::print("\n{} of {:.1f} MB of {}: bound {:.2f} ms; a rank sends {:.1f} MB\n", table.title,
               array_.bytes() * 1e-6, name_of(dtype_of<T>()), bound * 1e3,
               sent_bytes(table.phases) * 1e-6);
    fmt::print("{:30} {:>9} {:>9} {:>9} {:>12} {:>9} {:>8}\n", "", "median ms", "best ms", "GB/s",
               "x first line", "x of best", "% bound");
    const auto best = [](const Contender& c) { return *std::ranges::min_element(c.seconds); };
    const Contender& first = table.contenders[0];
    for (const Contender& c : table.contenders) {
      std::vector<double> ratios;
      for (size_t i = 0; i < c.seconds.size(); ++i) {
        ratios.push_back(first.seconds[i] / c.seconds[i]);
      }
      const double middle = median(c.seconds);
      fmt::print("{:30} {:9.2f} {:9.2f} {:9.2f} {:12.2f} {:9.2f} {:8.0f}\n", c.name, middle * 1e3,
                 best(c) * 1e3, array_.bytes() * 1e-9 / middle, median(ratios),
                 best(first) / best(c), 100 * bound / middle);
    }
  }

  Communicator& comm_;
  Setup setup_;
  Arena arena_;
  BenchArray<T> array_;
  HostBuckets buckets_, gather_;
  std::vector<int64_t> boundaries_;
  Partition partition_;
  std::optional<MpiRival<T>> rival_;
};

template <class T>
double Bench<T>::measure_bound(Phases phases) {
  const auto bytes = static_cast<size_t>(sent_bytes(phases));
  std::vector<std::byte> out(bytes);
  std::vector<std::byte> in(bytes);
  const int next = (comm_.rank() + 1) % comm_.size();
  const int previous = (comm_.rank() + comm_.size() - 1) % comm_.size();
  const double transfer = best_of(comm_, 9, [&] {
    if (setup_.mpi) {
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
  if (phases == Phases::gather) {
    return transfer;
  }
  const Tensor part(array_.part(), dtype_of<T>(), Shape{array_.slice()});
  std::vector<Tensor> inputs(static_cast<size_t>(comm_.size()), part);
  inputs[0].data = array_.mine();
  const double adding = best_of(comm_, 9, [&] { sum_in_order(inputs, inputs[0]); });
  return transfer + adding;
}

/// Latency-bound calls: the median of batches of 100.
void latencies(Communicator& comm, const Setup& setup) {
  const auto latency = [&](std::string_view name, const std::function<void()>& call) {
    std::vector<double> seconds;
    for (int i = 0; i < setup.repeats; ++i) {
      seconds.push_back(timed(comm, [&] {
        for (int k = 0; k < 100; ++k) {
          call();
        }
      }));
    }
    if (comm.rank() == 0) {
      fmt::print("{:30} {:9.2f} us\n", name, median(seconds) * 1e4);
    }
  };
  std::array<double, 4> x{1, 2, 3, 4};
  latency("barrier", [&] { barrier(comm); });
  latency("all_reduce_small, 4 doubles", [&] { all_reduce_small(comm, x, Combine::max); });
  if (setup.mpi) {
    latency("MPI_Barrier", [] { MPI_Barrier(MPI_COMM_WORLD); });
    latency("MPI_Allreduce, 4 doubles",
            [&] { MPI_Allreduce(MPI_IN_PLACE, x.data(), 4, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD); });
  }
}

void run(Communicator& comm, const Setup& setup) {
  if (comm.rank() == 0) {
    fmt::print("{} ranks over {}, {} repeats\n", comm.size(), comm.name(), setup.repeats);
  }
  latencies(comm, setup);
  Bench<float>(comm, setup).run();
  Bench<bf16>(comm, setup).run();
}

}  // namespace
}  // namespace espalier::parallel

int main(int argc, char** argv) {
  using namespace espalier::parallel;
  Setup setup{.mpi = launched_by_mpi()};
  if (argc > 1) {
    setup.megabytes = std::atof(argv[1]);
  }
  if (argc > 2) {
    setup.repeats = std::atoi(argv[2]);
  }
  if (setup.mpi) {
    MpiScope mpi;
    run(mpi.world(), setup);
    return 0;
  }
  run_ranks(2, [&](Communicator& comm) { run(comm, setup); });
  return 0;
}
