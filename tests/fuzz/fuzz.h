#pragma once
// Fuzz targets: functions that accept any bytes. For each input they return or throw Failure, in
// less than a second and with memory of a small multiple of the input. Anything else is a finding:
// Bug, another exception, a crash, a leak.
//
// Each file NAME_target.cpp defines and registers the target NAME. It runs
//   under libFuzzer       as the program fuzz_NAME (preset fuzz, scripts/fuzz.sh)
//   in the default tests  over the files of corpus/NAME (corpus_test.cpp)
//
// All of these programs read files as if every checksum in them were right (checksums.cpp).
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace espalier::fuzz {

using Input = std::span<const uint8_t>;

struct Target {
  std::string_view name;
  void (*run)(Input);
};
/// The targets that are linked into the program, in no particular order.
std::vector<Target>& targets();

struct Registration {
  explicit Registration(const Target& target) { targets().push_back(target); }
};

/// Runs the target; a Failure is an expected end.
void run(const Target& target, Input input);

/// Takes numbers off the front of an input; zeros after its end.
class Draws {
 public:
  explicit Draws(Input input) : rest_(input) {}
  uint64_t take(size_t bytes);
  uint64_t below(uint64_t bound, size_t bytes) { return take(bytes) % bound; }
  Input rest() const { return rest_; }
  /// The next `bytes`, or fewer at the end.
  Input part(size_t bytes);

 private:
  Input rest_;
};

/// The parts of an input between bytes `mark`; exactly `count`, the last with all that is left.
std::vector<Input> split(Input input, uint8_t mark, size_t count);

std::string text_of(Input input);

/// An ordinary file in memory, with other content for each input.
class MemoryFile {
 public:
  MemoryFile();
  ~MemoryFile();
  MemoryFile(const MemoryFile&) = delete;
  MemoryFile& operator=(const MemoryFile&) = delete;
  void fill(Input content);
  std::filesystem::path path() const;

 private:
  int file_;
};

}  // namespace espalier::fuzz
