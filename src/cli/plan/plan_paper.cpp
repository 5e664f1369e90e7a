#include "src/cli/plan/plan_parts.h"

#include <fmt/format.h>

#include "src/cli/shared/console.h"
#include "src/communication_cost/alexnet.h"

namespace espalier::cli {
namespace {

using namespace cost;
using Json = nlohmann::ordered_json;

constexpr ConvKernels kKernels[] = {ConvKernels::nervana, ConvKernels::convnet2};
constexpr int kBits[] = {32, 8};

std::string pair_text(const Printed& printed, double computed) {
  return fmt::format("{:.{}f} / {:.2f}", printed.value, printed.decimals, computed);
}

Json row(ConvKernels kernels, int bits, const Printed& printed, const Prediction& found) {
  return {{"kernels", name_of(kernels)},    {"bits", bits},
          {"published", printed.value},     {"computed", found.speedup},
          {"exposed_ms", found.exposed_ms}, {"step_ms", found.step_ms}};
}

Json paper_json() {
  Json json{{"single_node", Json::array()}, {"cluster", Json::array()}};
  for (const ConvKernels kernels : kKernels) {
    for (const int bits : kBits) {
      json["single_node"].push_back(
          row(kernels, bits, printed_speedup(kernels, bits), predict(alexnet_node(kernels, bits))));
    }
  }
  for (const int64_t size : alexnet_sub_batches()) {
    for (const ConvKernels kernels : kKernels) {
      for (const int bits : kBits) {
        Json cell = row(kernels, bits, printed_speedup(kernels, bits, size),
                        predict(alexnet_cluster(kernels, bits, size)));
        cell["sub_batch"] = size;
        cell["published_exposed_ms"] = printed_exposed(bits, size).value;
        json["cluster"].push_back(std::move(cell));
      }
    }
  }
  return json;
}

std::string node_table() {
  Rows rows{
      {"kernels", "one GPU, ms", "exposed 32-bit, ms", "exposed 8-bit, ms", "32-bit", "8-bit"}};
  for (const ConvKernels kernels : kKernels) {
    const Prediction wide = predict(alexnet_node(kernels, 32));
    const Prediction narrow = predict(alexnet_node(kernels, 8));
    rows.push_back({name_of(kernels), fmt::format("{}", alexnet_node(kernels, 32).total_ms),
                    fmt::format("{:.2f}", wide.exposed_ms),
                    fmt::format("{:.2f}", narrow.exposed_ms),
                    pair_text(printed_speedup(kernels, 32), wide.speedup),
                    pair_text(printed_speedup(kernels, 8), narrow.speedup)});
  }
  return table(rows);
}

std::string cluster_table() {
  Rows rows{{"sub-batch", "sync, ms", "exposed 32-bit, ms", "exposed 8-bit, ms",
             "NervanaGPU 32-bit", "8-bit", "convnet2 32-bit", "8-bit"}};
  for (const int64_t size : alexnet_sub_batches()) {
    const ClusterTimes wide = alexnet_cluster(ConvKernels::nervana, 32, size);
    const ClusterTimes narrow = alexnet_cluster(ConvKernels::nervana, 8, size);
    std::vector<std::string> cells{fmt::format("{}", size),
                                   fmt::format("{} / {}", wide.sync_ms, narrow.sync_ms),
                                   pair_text(printed_exposed(32, size), predict(wide).exposed_ms),
                                   pair_text(printed_exposed(8, size), predict(narrow).exposed_ms)};
    for (const ConvKernels kernels : kKernels) {
      for (const int bits : kBits) {
        cells.push_back(pair_text(printed_speedup(kernels, bits, size),
                                  predict(alexnet_cluster(kernels, bits, size)).speedup));
      }
    }
    rows.push_back(std::move(cells));
  }
  return table(rows);
}

}  // namespace

void print_paper(bool json) {
  if (json) {
    print_json(paper_json());
    return;
  }
  print(
      "AlexNet by Dettmers' model (8-Bit Approximations for Parallelism in Deep Learning, 2016):\n"
      "published / computed here from the paper's measured times\n\n"
      "4 GPUs of one machine, speedup over one\n" +
      node_table() +
      "The paper writes 6.81 ms for the exposed 32-bit transfers of its fully connected layers; "
      "its own\n"
      "terms add up to 7.01 ms (and 0.05 of convolutions), which gives the same speedups.\n\n"
      "96 GPUs of 32 machines, speedup over one\n" +
      cluster_table() +
      "Sync: a sub-batch's activations to all machines, 32-bit / 8-bit.\n\n"
      "Times of your own: espalier plan-communication node, cluster, ranks or link (--help).\n");
}

}  // namespace espalier::cli
