// Every wire code on normally distributed numbers: bits per value on the wire, relative error in
// L2, and the rates of encoding and decoding in bytes of fp32 per second, beside memcpy of the same
// array in the same run.
//
//   codec_benchmark [--backend NAME] [MIB [THREADS [PART]]]
//     MIB      size of the fp32 array (4)
//     THREADS  number of threads (1)
//     PART     runs only codes whose line contains PART
//
// A rate is that of the fastest of many short repeats, since the machine may be shared. "Random" is
// encoding with random rounding. The default backend is the CPU's; ESPALIER_KERNELS selects among
// its tables. On a device memcpy is a copy within its memory.
#include <cmath>
#include <cstdio>

#include "benchmarks/kernels/backend.h"
#include "src/core/mirror.h"
#include "src/core/rng.h"
#include "src/kernels/rules/wire/codecs.h"

namespace espalier::kernels {
namespace {

struct Bench {
  Backend backend;
  const Kernels& kernels;
  Stream& stream;
  Buffer x, y, wire;

  Bench(int64_t n, int threads)
      : backend(bench::chosen(), threads),
        kernels(backend.kernels()),
        stream(backend.stream()),
        x(backend.arena().allocate(Memory::scratch, "x", DType::fp32, {n})),
        y(backend.arena().allocate(Memory::scratch, "y", DType::fp32, {n})) {
    const Mirror mirror(stream, x.tensor());
    float* const values = mirror.host().get<float>();
    for (int64_t i = 0; i < n; i += 2) {
      const Philox words = philox(7, 0, static_cast<uint64_t>(i));
      const auto pair = normal_pair(words[0], words[1]);
      values[i] = 1e-3F * pair[0];
      values[i + 1] = 1e-3F * pair[1];
    }
    mirror.write();
  }

  void room_for(const WireFormat& format) {
    wire.release();
    wire = backend.arena().allocate(Memory::scratch, "message", DType::uint8,
                                    {static_cast<int64_t>(wire_bytes(format, x.tensor().count()))});
  }
  std::span<std::byte> message() const {
    return {static_cast<std::byte*>(wire.tensor().data), wire.tensor().bytes()};
  }
  void encode(const WireFormat& format, uint64_t key) {
    kernels.encode(stream, {.x = x.tensor(), .wire = message(), .format = format, .key = key});
  }
  void decode(const WireFormat& format, bool accumulate) {
    kernels.decode(
        stream, {.wire = message(), .y = y.tensor(), .format = format, .accumulate = accumulate});
  }

  double relative_error() {
    double error = 0;
    double square = 0;
    const Mirror had(stream, x.tensor());
    const Mirror has(stream, y.tensor());
    const auto from = had.read().host().span<float>();
    const auto to = has.read().host().span<float>();
    for (size_t i = 0; i < from.size(); ++i) {
      const double difference = static_cast<double>(to[i]) - from[i];
      error += difference * difference;
      square += static_cast<double>(from[i]) * from[i];
    }
    return std::sqrt(error / square);
  }
};

/// GB of fp32 per second.
template <class Body>
double rate(Bench& bench, const Body& body) {
  double best = 1e9;
  const double begin = now_seconds();
  for (int i = 0; i < 20 || (i < 2000 && now_seconds() - begin < 0.3); ++i) {
    best = std::min(best, espalier::bench::seconds_of(bench.stream, body));
  }
  return 1e-9 * static_cast<double>(bench.x.tensor().bytes()) / best;
}

std::string line_of(const WireFormat& format) {
  std::string line = fmt::format("{}", name_of(format.code));
  if (codec_of(format.code).numbers == WireNumbers::bits) {
    line += fmt::format(" {} bits", format.bits);
  }
  if (format.bucket > 0) {
    line += fmt::format(" bucket {}", format.bucket);
  }
  if (format.code == WireCode::topk) {
    line += fmt::format(" kept {}", format.kept);
  }
  return line + (format.half_meta ? " fp16" : "");
}

std::vector<WireFormat> formats() {
  using enum WireCode;
  std::vector<WireFormat> all{{fp32, 32}, {bf16, 16}, {fp16, 16}};
  for (const WireCode code :
       {fp8_e5m2, fp8_e4m3, dynamic8, dynamic8_bnb, static8, mantissa8, linear8}) {
    for (const int64_t bucket : {0, 512}) {
      all.push_back({code, 8, bucket});
    }
  }
  for (const int bits : {1, 2, 4, 6, 8}) {
    all.push_back({maxmin, bits, 512});
  }
  all.push_back({maxmin, 4, 128});
  all.push_back({maxmin, 4, 1000});
  all.push_back({.code = maxmin, .bits = 4, .bucket = 512, .half_meta = true});
  for (const int bits : {1, 2, 4, 8}) {
    all.push_back({table, bits, 0});
  }
  all.push_back({table, 4, 4096});
  all.push_back({sign, 1, 0});
  all.push_back({sign, 1, 512});
  all.push_back({topk, 0, 65536, 656});
  all.push_back({topk, 0, 1024, 64});
  for (const int bits : {1, 2, 3, 4}) {
    all.push_back({eden, bits, 4096});
  }
  return all;
}

void print(Bench& bench, const WireFormat& format) {
  const int64_t n = bench.x.tensor().count();
  bench.room_for(format);
  const double encoded = rate(bench, [&] { bench.encode(format, 0); });
  const double decoded = rate(bench, [&] { bench.decode(format, false); });
  const double error = bench.relative_error();
  const double added = rate(bench, [&] { bench.decode(format, true); });
  const double random = rate(bench, [&] { bench.encode(format, 3); });
  std::printf("%-28s %7.3f %9.5f %8.1f %8.1f %8.1f %8.1f\n", line_of(format).c_str(),
              8.0 * static_cast<double>(bench.wire.bytes()) / static_cast<double>(n), error,
              encoded, random, decoded, added);
  std::fflush(stdout);
}

}  // namespace
}  // namespace espalier::kernels

int main(int argc, char** argv) {
  using namespace espalier;
  using namespace espalier::kernels;
  bench::take_backend(argc, argv);
  const double mib = argc > 1 ? std::stod(argv[1]) : 4;
  const int threads = argc > 2 ? std::stoi(argv[2]) : 1;
  Bench bench(static_cast<int64_t>(mib * (1 << 17)) * 2, threads);
  const double copy = rate(bench, [&] { bench.stream.copy(bench.x.tensor(), bench.y.tensor()); });
  std::printf("%s, %.1f MiB of fp32, %d thread%s; GB of fp32 a second\n",
              std::string(bench.kernels.name).c_str(), mib, threads, threads == 1 ? "" : "s");
  std::printf("%-28s %7s %9s %8s %8s %8s %8s\n", "code", "bits", "error", "encode", "random",
              "decode", "add");
  std::printf("%-28s %7s %9s %8.1f %8s %8.1f\n", "memcpy", "32", "0", copy, "", copy);
  for (const WireFormat& format : formats()) {
    if (argc <= 3 || line_of(format).find(argv[3]) != std::string::npos) {
      print(bench, format);
    }
  }
  return 0;
}
