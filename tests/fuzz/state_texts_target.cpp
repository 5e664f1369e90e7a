// Texts of state in a checkpoint: [which][the text]. An accepted text is the state afterwards.

#include "io/data/tokens.h"
#include "parallel/transport/thread_communicator.h"
#include "parallel/wire/codec.h"
#include "src/config/parse.h"
#include "src/core/error.h"
#include "src/train/codec_choice/codec_choice.h"
#include "src/train/exchange/replica_route.h"
#include "src/train/run/loss_scale.h"
#include "tests/fuzz/fuzz.h"

namespace espalier::fuzz {
namespace {

io::Config config_with(const std::string& codec) {
  io::Config config = config::parse(
      "[model]\nwidth = 16\nlayers = 1\nheads = 2\ncontext = 8\n[parallel]\ncodec = \"" + codec +
          "\"\n",
      "fuzz.toml");
  config.parallel.codec_min_size = 1;
  return config;
}

/// The choice of a run that chooses codecs for a small network.
struct Choice {
  io::Config config;
  Arena arena;
  Stream stream{arena, 1};
  std::unique_ptr<parallel::Communicator> alone = parallel::self_communicator();
  train::Stage stage;
  train::ReplicaRoute route;
  train::CodecChoice choice;

  explicit Choice(const std::string& codec)
      : config(config_with(codec)),
        stage(config, {.features = 8, .rows = 8}, stream, kernels::by_name("cpu"), {}),
        route(config, *alone, stage, train::ReplicaRoute::Kind::host),
        choice(config, stage, *alone, route) {}
};

/// A restored choice is restored again from its own state, and its segments are valid.
void restore(Choice& run, const std::string& text) {
  run.choice.restore(text, true);
  const std::string state = run.choice.state();
  run.choice.restore(state, true);
  require(run.choice.state() == state, "a choice restores itself", state);
  run.choice.segments();
}

void restore_loss_scale(const std::string& text) {
  train::LossScale scale({.dtype = "fp16"});
  scale.restore(text);
  require(text.empty() || scale.state() == text, "a loss scale is its text", scale.state(), text);
}

void read(Input input) {
  static Choice adaptive("adaptive");
  static Choice adaprec("adaprec");
  Draws draws(input);
  const uint64_t which = draws.below(5, 1);
  const std::string text = text_of(draws.rest());
  if (which == 0) {
    restore(adaptive, text);
  } else if (which == 1) {
    restore(adaprec, text);
  } else if (which == 2) {
    restore_loss_scale(text);
  } else if (which == 3) {
    require(io::Vocabulary::from_text(text).text() == text, "a vocabulary is its text");
  } else {
    const parallel::CodecSpec codec = parallel::parse_codec(text);
    require(parallel::parse_codec(parallel::to_text(codec)) == codec, "a codec is its text", text);
  }
}

const Registration kTarget({"state_texts", read});

}  // namespace
}  // namespace espalier::fuzz
