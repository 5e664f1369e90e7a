#include "src/model/layers/attention.h"

#include <cmath>

#include "src/model/key_value_cache.h"

namespace espalier::model {
namespace {

/// With the numbers that zeros stand for.
Attention::Options completed(Attention::Options options) {
  options.kv_heads = options.kv_heads > 0 ? options.kv_heads : options.heads;
  options.head_width = options.head_width > 0 ? options.head_width : options.width / options.heads;
  require(options.heads % options.kv_heads == 0, "heads of keys divide heads of queries",
          options.heads, options.kv_heads);
  require(!options.fused || (options.kv_heads == options.heads && !options.head_norm),
          "a matrix of queries, keys and values has parts of one size, without norms");
  return options;
}

std::string table_name(std::string_view kind, const RotaryOptions& rotary) {
  return fmt::format("{} of rotary positions: {} {} {} {} {} {} {} {} {}", kind, rotary.width,
                     rotary.base, rotary.positions, rotary.scaling, rotary.factor, rotary.context,
                     rotary.low, rotary.high, rotary.gain);
}

}  // namespace

double Attention::Options::score_scale() const {
  const int64_t d = head_width > 0 ? head_width : width / heads;
  return scale > 0 ? scale : 1 / std::sqrt(static_cast<double>(d));
}

std::vector<Attention::Columns> Attention::columns_of(const std::string& name,
                                                      const Options& options) {
  const int64_t d = options.head_width;
  const auto map = [&](const char* kind, int64_t first_head, int64_t heads, int64_t parts = 1) {
    return Columns{
        .linear = Linear(
            fmt::format("{}.{}", name, kind), options.width, heads * d,
            {.bias = options.bias, .width = options.width, .rows = options.tokens, .parts = parts}),
        .first = first_head * d,
        .heads = heads};
  };
  std::vector<Columns> maps;
  if (options.fused) {
    maps.push_back(map("qkv", 0, 3 * options.heads, 3));
    return maps;
  }
  const int64_t heads = options.heads;
  const int64_t keys = options.kv_heads;
  maps.push_back(map("query", 0, heads));
  maps.push_back(map("key", heads, keys));
  maps.push_back(map("value", heads + keys, keys));
  if (options.head_norm) {
    maps[0].norm = name + ".query_norm.weight";
    maps[0].rstd = &Saved::query_rstd;
    maps[1].norm = name + ".key_norm.weight";
    maps[1].rstd = &Saved::key_rstd;
  }
  return maps;
}

Attention::Attention(const std::string& name, const Options& options)
    : options_(completed(options)),
      maps_(columns_of(name, options_)),
      projection_(name + ".projection", options_.heads * options_.head_width, options_.width,
                  into_residual({.width = options_.width,
                                 .tokens = options_.tokens,
                                 .blocks = options_.blocks,
                                 .bias = options_.output_bias})) {}

std::vector<sparse::ParameterSpec> Attention::parameters() const {
  std::vector<sparse::ParameterSpec> all;
  const auto add = [&all](const std::vector<sparse::ParameterSpec>& some) {
    all.insert(all.end(), some.begin(), some.end());
  };
  for (const Columns& map : maps_) {
    add(map.linear.parameters());
  }
  for (const Columns& map : maps_) {
    if (!map.norm.empty()) {
      all.push_back({.name = map.norm,
                     .shape = Shape{options_.head_width},
                     .initial = sparse::Initial::ones,
                     .width = options_.width});
    }
  }
  add(projection_.parameters());
  return all;
}

void Attention::bind(sparse::Store& store, const kernels::Kernels& kernels) {
  store_ = &store;
  for (Columns& map : maps_) {
    map.linear.bind(store, kernels);
    map.weight = map.norm.empty() ? nullptr : &store.find(map.norm);
  }
  projection_.bind(store, kernels);
  const RotaryOptions& rotary = options_.rotary;
  if (rotary.width > 0) {
    const Shape shape{rotary.positions, rotary.width / 2};
    cosines_ = store.constant(table_name("cosines", rotary), shape,
                              [&] { return rotary_tables(rotary).cosines; });
    sines_ = store.constant(table_name("sines", rotary), shape,
                            [&] { return rotary_tables(rotary).sines; });
  }
}

Attention::Saved Attention::prepare(Pass& pass, int64_t sequences, int64_t tokens) const {
  const auto heads = [&](std::string_view name, int64_t count) {
    return pass.tape.push(name, pass.dtype, Shape{sequences, tokens, count * options_.head_width});
  };
  Saved saved;
  for (const Columns& map : maps_) {
    if (map.rstd != nullptr) {
      saved.*map.rstd =
          pass.tape.push("norm statistics", DType::fp32, Shape{sequences * tokens * map.heads});
    }
  }
  if (options_.head_norm) {
    saved.heads = heads("attention heads before norm", options_.heads + options_.kv_heads);
  }
  saved.qkv = heads("attention qkv", options_.heads + 2 * options_.kv_heads);
  saved.out = heads("attention out", options_.heads);
  saved.lse =
      pass.tape.push("attention lse", DType::fp32, Shape{sequences, options_.heads, tokens});
  return saved;
}

void Attention::project(Pass& pass, const Tensor& x, const Saved& saved) {
  for (Columns& map : maps_) {
    const Tensor columns = saved.qkv.column_range(map.first, map.linear.out());
    if (map.rstd == nullptr) {
      map.linear.forward(pass, {.x = x, .y = columns});
      continue;
    }
    const Tensor before = saved.heads.column_range(map.first, map.linear.out());
    map.linear.forward(pass, {.x = x, .y = before});
    pass.kernels.head_norm(pass.stream, {.x = before,
                                         .weight = map.weight->dense,
                                         .y = columns,
                                         .rstd = saved.*map.rstd,
                                         .heads = map.heads,
                                         .epsilon = static_cast<float>(options_.norm_epsilon)});
  }
  rotate(pass, saved.qkv, false);
}

/// Queries and keys, which are adjacent columns.
void Attention::rotate(Pass& pass, const Tensor& qkv, bool inverse) const {
  if (!cosines_) {
    return;
  }
  const int64_t heads = options_.heads + options_.kv_heads;
  Tensor x = qkv.column_range(0, heads * options_.head_width);
  x.shape = Shape{qkv.shape[0], qkv.shape[1], heads * options_.head_width};
  pass.kernels.rotary(pass.stream, {.x = x,
                                    .cosines = cosines_,
                                    .sines = sines_,
                                    .positions = positions_of(pass.cached),
                                    .heads = heads,
                                    .width = options_.rotary.width,
                                    .inverse = inverse});
}

/// Adds keys and values to the cache; a single token of each sequence attends to it.
bool Attention::attend_cached(Pass& pass, const Saved& saved) const {
  const CachedPass& cached = *pass.cached;
  const KeyValueCache::Tensors cache = cached.cache.of(
      this, {.count = options_.kv_heads, .width = options_.head_width, .window = options_.window},
      cached.first_sequence, saved.qkv.shape[0]);
  pass.kernels.cache_tokens(pass.stream, {.qkv = saved.qkv,
                                          .keys = cache.keys,
                                          .values = cache.values,
                                          .first = cached.first,
                                          .counts = cached.counts});
  if (!cached.one_token) {
    return false;
  }
  pass.kernels.cached_attention(
      pass.stream, {.q = saved.qkv.column_range(0, options_.heads * options_.head_width),
                    .keys = cache.keys,
                    .values = cache.values,
                    .lengths = cached.lengths,
                    .out = saved.out,
                    .scale = static_cast<float>(options_.scale)});
  return true;
}

void Attention::attend(Pass& pass, const Saved& saved) const {
  if (pass.cached != nullptr && attend_cached(pass, saved)) {
    return;
  }
  pass.kernels.attention(pass.stream, {.qkv = saved.qkv,
                                       .out = saved.out,
                                       .lse = saved.lse,
                                       .heads = static_cast<int>(options_.heads),
                                       .kv_heads = static_cast<int>(options_.kv_heads),
                                       .causal = options_.causal,
                                       .window = options_.window,
                                       .scale = static_cast<float>(options_.scale)});
}

Tensor Attention::backward_attend(Pass& pass, const Saved& saved, const Tensor& dy) {
  const Tensor dout = pass.tape.push("attention gradient", pass.dtype, saved.out.shape);
  projection_.backward_input(pass, {.dy = dy, .dx = dout});
  projection_.backward_weight(pass, saved.out, dy, pass.accumulate);
  const Tensor dqkv = pass.tape.push("qkv gradient", pass.dtype, saved.qkv.shape);
  pass.kernels.attention_backward(pass.stream, {.qkv = saved.qkv,
                                                .out = saved.out,
                                                .lse = saved.lse,
                                                .dout = dout,
                                                .dqkv = dqkv,
                                                .heads = static_cast<int>(options_.heads),
                                                .kv_heads = static_cast<int>(options_.kv_heads),
                                                .causal = options_.causal,
                                                .window = options_.window,
                                                .scale = static_cast<float>(options_.scale)});
  rotate(pass, dqkv, true);
  return dqkv;
}

void Attention::backward_project(Pass& pass, const Saved& saved, const Tensor& x,
                                 const Tensor& dqkv, const Tensor& dx) {
  std::vector<WeightGradient> gradients;
  for (Columns& map : maps_) {
    gradients.push_back({.linear = &map.linear, .dy = dqkv, .first = map.first});
    if (map.rstd != nullptr) {
      const Tensor columns = gradients.back().columns();
      pass.kernels.head_norm_backward(pass.stream,
                                      {.dy = columns,
                                       .x = saved.heads.column_range(map.first, map.linear.out()),
                                       .weight = map.weight->dense,
                                       .rstd = saved.*map.rstd,
                                       .dx = columns,
                                       .dweight = store_->full_gradient(*map.weight),
                                       .heads = map.heads,
                                       .accumulate = pass.accumulate});
    }
  }
  backward_weights(pass, x, gradients, pass.accumulate);
  for (const WeightGradient& one : gradients) {
    one.linear->backward_input(
        pass,
        {.dy = one.columns(), .dx = dx, .accumulate = one.linear != gradients.front().linear});
  }
}

}  // namespace espalier::model
