// Encoding and decoding of text by a tokenizer.json, on one thread. Both files are the user's:
//
//   TOKENIZER=tokenizer.json TEXT=text.txt build/benchmarks/tokenizer_benchmark
//
// bytes_per_second: of text.
#include <benchmark/benchmark.h>

#include <cstdlib>
#include <filesystem>

#include "io/files/raw_file.h"
#include "io/tokenizer/tokenizer.h"

namespace espalier::io {
namespace {

/// The text that an environment variable names, at least 32 MB of it.
const std::string& benchmark_text() {
  static const std::string text = [] {
    const char* path = std::getenv("TEXT");
    const std::string once = path == nullptr ? std::string() : read_text(path, "text");
    std::string all;
    while (!once.empty() && all.size() < 32'000'000) {
      all += once;
    }
    return all;
  }();
  return text;
}

const Tokenizer* benchmark_tokenizer(benchmark::State& state) {
  const char* path = std::getenv("TOKENIZER");
  if (path == nullptr || benchmark_text().empty()) {
    state.SkipWithError("set TOKENIZER and TEXT to files");
    return nullptr;
  }
  static const Tokenizer tokenizer = Tokenizer::from_file(path);
  return &tokenizer;
}

void count_bytes(benchmark::State& state) {
  state.SetBytesProcessed(state.iterations() * static_cast<int64_t>(benchmark_text().size()));
}

void load(benchmark::State& state) {
  const char* path = std::getenv("TOKENIZER");
  if (path == nullptr) {
    state.SkipWithError("set TOKENIZER to a file");
    return;
  }
  for (auto _ : state) {
    benchmark::DoNotOptimize(Tokenizer::from_file(path).vocabulary());
  }
}
BENCHMARK(load)->Unit(benchmark::kMillisecond);

void encode(benchmark::State& state) {
  const Tokenizer* tokenizer = benchmark_tokenizer(state);
  size_t tokens = 0;
  for (auto _ : state) {
    tokens = tokenizer->encode(benchmark_text()).size();
  }
  count_bytes(state);
  state.counters["bytes_per_token"] =
      static_cast<double>(benchmark_text().size()) / static_cast<double>(tokens);
}
BENCHMARK(encode)->Unit(benchmark::kMillisecond);

void stream(benchmark::State& state) {
  const Tokenizer* tokenizer = benchmark_tokenizer(state);
  std::vector<int32_t> tokens;
  for (auto _ : state) {
    TokenizerStream encoder(*tokenizer);
    std::string_view text = benchmark_text();
    while (!text.empty()) {
      tokens.clear();
      encoder.add(text.substr(0, 1 << 20), tokens);
      text.remove_prefix(std::min<size_t>(text.size(), 1 << 20));
    }
    encoder.finish(tokens);
  }
  count_bytes(state);
}
BENCHMARK(stream)->Unit(benchmark::kMillisecond);

void decode(benchmark::State& state) {
  const Tokenizer* tokenizer = benchmark_tokenizer(state);
  const std::vector<int32_t> tokens =
      tokenizer == nullptr ? std::vector<int32_t>() : tokenizer->encode(benchmark_text());
  for (auto _ : state) {
    benchmark::DoNotOptimize(tokenizer->decode(tokens).size());
  }
  count_bytes(state);
}
BENCHMARK(decode)->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace espalier::io
