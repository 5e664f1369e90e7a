// Rates of the safetensors writer and reader beside plain writes and reads of as many bytes, on the
// disk of FOLDER:
//
//   build/benchmarks/safetensors_benchmark FOLDER [MEGABYTES [REPEATS]]      default: 1000 3
//
// The ways alternate. Each writes or reads the same number of bytes of a file:
//   raw       pieces of 16 MiB, as dd bs=16M: writes end with fsync; reads into one buffer
//   F32       fp32 values, whose bytes are the file's
//   BF16, F16 fp32 values, converted
// Tensors have 16 MiB of fp32 values, so that values, not the disk, fit the caches. "disk": the
// file's pages are dropped from memory before they are read; "memory": they are there.
// Columns: GB of the file a second, median and best; median of the ratios to raw of the same
// repeat; least CPU seconds a GB, which other programs on the machine change less.
#include <sys/resource.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "io/files/raw_file.h"
#include "io/safetensors/reader.h"
#include "io/safetensors/writer.h"
#include "src/core/error.h"

namespace espalier::io {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kTensor = int64_t{4} << 20;  ///< elements
constexpr size_t kPiece = size_t{16} << 20;

struct Cost {
  double seconds = 0;
  double cpu_seconds = 0;
};

double cpu_seconds() {
  rusage used{};
  ::getrusage(RUSAGE_SELF, &used);
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec) * 1e-6;
  };
  return seconds(used.ru_utime) + seconds(used.ru_stime);
}

Cost cost_of(const std::function<void()>& work) {
  const auto start = std::chrono::steady_clock::now();
  const double cpu = cpu_seconds();
  work();
  return {std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count(),
          cpu_seconds() - cpu};
}

/// Writes and reads `bytes` bytes, in one type or without a format.
struct Contender {
  std::string name;
  std::optional<SafetensorsType> type;
};

class Benchmark {
 public:
  Benchmark(fs::path folder, uint64_t bytes) : folder_(std::move(folder)), bytes_(bytes) {
    for (size_t i = 0; i < values_.size(); ++i) {
      values_[i] = static_cast<float>(i % 10007) * 1e-4F - 0.5F;
    }
  }
  ~Benchmark() {
    for (const Contender& contender : contenders()) {
      fs::remove(path_of(contender));
    }
  }
  Benchmark(const Benchmark&) = delete;
  Benchmark& operator=(const Benchmark&) = delete;

  static std::vector<Contender> contenders() {
    return {{"raw", {}},
            {"F32", SafetensorsType::f32},
            {"BF16", SafetensorsType::bf16},
            {"F16", SafetensorsType::f16}};
  }

  void write(const Contender& contender) {
    const fs::path path = path_of(contender);
    fs::remove(path);
    if (!contender.type) {
      RawFile file = RawFile::create(path);
      for (uint64_t done = 0; done < bytes_; done += kPiece) {
        file.write(done, std::min<uint64_t>(kPiece, bytes_ - done), values_.data());
      }
      file.finish();
      check(file.error() == 0, "{} cannot be written", path.string());
      return;
    }
    std::vector<SafetensorsEntry> tensors;
    const uint64_t each = kTensor * bits_of(*contender.type) / 8;
    for (uint64_t i = 0; i < bytes_ / each; ++i) {
      tensors.push_back(
          {.name = fmt::format("t{:05}", i), .type = *contender.type, .shape = {kTensor}});
    }
    SafetensorsWriter writer(path, tensors, {.max_shard_bytes = ~uint64_t{0}});
    for (const SafetensorsEntry& tensor : tensors) {
      writer.write(tensor.name, values_);
    }
    writer.commit();
  }

  void read(const Contender& contender) {
    const fs::path path = path_of(contender);
    if (!contender.type) {
      RawFile file = RawFile::open(path);
      for (uint64_t done = 0; done < bytes_; done += kPiece) {
        file.read(done, std::min<uint64_t>(kPiece, bytes_ - done), values_.data());
      }
      check(file.error() == 0, "{} cannot be read", path.string());
      return;
    }
    const SafetensorsReader file(path);
    for (const SafetensorsTensor& tensor : file.tensors()) {
      file.read(tensor.name, values_);
    }
  }

  void drop_pages(const Contender& contender) const {
    RawFile::open(path_of(contender)).forget_cached();
  }

 private:
  fs::path path_of(const Contender& contender) const {
    return folder_ / ("espalier-benchmark-" + contender.name + ".safetensors");
  }

  fs::path folder_;
  uint64_t bytes_;
  std::vector<float> values_ = std::vector<float>(kTensor);
};

double median(std::vector<double> values) {
  std::ranges::sort(values);
  return values[values.size() / 2];
}

void run(const fs::path& folder, uint64_t bytes, int repeats) {
  Benchmark benchmark(folder, bytes);
  const std::vector<Contender> contenders = Benchmark::contenders();
  const std::vector<std::string> ways{"write", "read, disk", "read, memory"};
  std::map<std::pair<std::string, std::string>, std::vector<double>> rates;
  std::map<std::pair<std::string, std::string>, std::vector<double>> cpu;
  const double gigabytes = static_cast<double>(bytes) * 1e-9;
  const auto note = [&](const std::string& way, const Contender& contender, const Cost& cost) {
    rates[{way, contender.name}].push_back(gigabytes / cost.seconds);
    cpu[{way, contender.name}].push_back(cost.cpu_seconds / gigabytes);
  };
  for (int repeat = 0; repeat < repeats; ++repeat) {
    for (const Contender& contender : contenders) {
      note(ways[0], contender, cost_of([&] { benchmark.write(contender); }));
    }
    for (const Contender& contender : contenders) {
      benchmark.drop_pages(contender);
      note(ways[1], contender, cost_of([&] { benchmark.read(contender); }));
      benchmark.read(contender);  // pages that did not fit
      note(ways[2], contender, cost_of([&] { benchmark.read(contender); }));
    }
  }
  std::printf("%.1f MB, %d repeats\n%-14s %-5s %8s %8s %8s %8s\n",
              static_cast<double>(bytes) * 1e-6, repeats, "", "", "median", "best", "of raw",
              "CPU s/GB");
  for (const std::string& way : ways) {
    const std::vector<double>& raw = rates[{way, "raw"}];
    for (const Contender& contender : contenders) {
      const std::vector<double>& own = rates[{way, contender.name}];
      std::vector<double> ratios;
      for (size_t i = 0; i < own.size(); ++i) {
        ratios.push_back(own[i] / raw[i]);
      }
      std::printf("%-14s %-5s %8.3f %8.3f %8.2f %8.2f\n", way.c_str(), contender.name.c_str(),
                  median(own), *std::ranges::max_element(own), median(ratios),
                  *std::ranges::min_element(cpu[{way, contender.name}]));
    }
  }
}

}  // namespace
}  // namespace espalier::io

int main(int count, char** arguments) {
  using namespace espalier;
  if (count < 2) {
    std::fprintf(stderr, "usage: safetensors_benchmark FOLDER [MEGABYTES [REPEATS]]\n");
    return 2;
  }
  try {
    // Whole tensors of each type, so that all ways have as many bytes.
    const auto tensors = std::max<uint64_t>(
        1,
        count > 2 ? std::strtoull(arguments[2], nullptr, 10) * 1'000'000 / (io::kTensor * 4) : 60);
    io::run(arguments[1], tensors * io::kTensor * 4, count > 3 ? std::atoi(arguments[3]) : 3);
  } catch (const Error& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
  return 0;
}
