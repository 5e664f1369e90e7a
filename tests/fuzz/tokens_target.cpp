// A file of tokens: [kind][vocabulary: 1 byte][context][the file], read from its start to its end.
#include <fmt/format.h>
#include <unistd.h>

#include <array>
#include <filesystem>

#include "io/data/tokens.h"
#include "tests/fuzz/fuzz.h"

namespace espalier::fuzz {
namespace {

struct Kind {
  const char* kind;
  const char* token_type;
};
constexpr std::array kKinds{Kind{"bytes", "uint16"}, Kind{"chars", "uint16"},
                            Kind{"tokens", "uint16"}, Kind{"tokens", "uint32"}};

/// A name of token files for a file in memory.
class TokenFileName {
 public:
  explicit TokenFileName(const std::filesystem::path& file)
      : link_(std::filesystem::temp_directory_path() /
              fmt::format("espalier-fuzz-{}.bin", ::getpid())) {
    std::filesystem::remove(link_);
    std::filesystem::create_symlink(file, link_);
  }
  ~TokenFileName() {
    std::error_code ignored;
    std::filesystem::remove(link_, ignored);
  }
  TokenFileName(const TokenFileName&) = delete;
  TokenFileName& operator=(const TokenFileName&) = delete;
  std::string path() const { return link_.string(); }

 private:
  std::filesystem::path link_;
};

void read(Input input) {
  static MemoryFile file;
  static const TokenFileName name(file.path());
  Draws draws(input);
  const Kind& kind = kKinds[draws.below(kKinds.size(), 1)];
  const auto vocabulary = static_cast<int64_t>(draws.take(1));
  const auto context = static_cast<int64_t>(draws.take(1)) + 1;
  file.fill(draws.rest());
  const io::DataConfig data{.kind = kind.kind,
                            .train = {name.path()},
                            .validation = {},
                            .validation_fraction = 0.25,
                            .token_type = kind.token_type};
  for (const io::Split split : {io::Split::train, io::Split::validation}) {
    const auto tokens =
        io::TokenDataset::open(data, split, {.context = context, .vocabulary = vocabulary});
    std::vector<int32_t> window(static_cast<size_t>(context));
    for (int64_t at = 0; at + context <= tokens.size(); at += context) {
      tokens.read(at, window);
    }
    tokens.evaluation_windows(context);
  }
}

const Registration kTarget({"tokens", read});

}  // namespace
}  // namespace espalier::fuzz
