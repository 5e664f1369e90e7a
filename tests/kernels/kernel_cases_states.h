#pragma once
// The case table, third part: 8-bit codes, and the optimizers in all forms of their state.
#include <optional>

#include "src/kernels/rules/dynamic_map.h"
#include "src/kernels/rules/master.h"
#include "tests/kernels/kernel_cases_memory.h"

namespace espalier::kernels {

inline int64_t blocks_of(int64_t n) { return (n + kQuantizeBlock - 1) / kQuantizeBlock; }

namespace reference {

/// x = map[code] scale
inline Values dequantize(DynamicMap map, const Values& codes, const Values& scales) {
  Values x(codes.size());
  for (size_t i = 0; i < x.size(); ++i) {
    x[i] = static_cast<double>(dynamic_map(map)[static_cast<size_t>(codes[i])]) *
           scales[i / kQuantizeBlock];
  }
  return x;
}

/// The nearest code. In the unsigned map a nonzero x never gets the code of zero.
inline size_t nearest_code(DynamicMap map, double x) {
  const auto& values = dynamic_map(map);
  size_t best = map == DynamicMap::without_sign && x != 0 ? 1 : 0;
  for (size_t code = best; code < values.size(); ++code) {
    best = std::fabs(x - values[code]) < std::fabs(x - values[best]) ? code : best;
  }
  return best;
}

inline void quantize(DynamicMap map, const Values& x, Values& codes, Values& scales) {
  scales.assign(scales.size(), 0);
  for (size_t i = 0; i < x.size(); ++i) {
    double& scale = scales[i / kQuantizeBlock];
    scale = std::fabs(x[i]) > std::fabs(scale) ? x[i] : scale;
  }
  for (size_t i = 0; i < x.size(); ++i) {
    const double scale = scales[i / kQuantizeBlock];
    codes[i] = static_cast<double>(nearest_code(map, scale == 0 ? 0 : x[i] / scale));
  }
}

}  // namespace reference

inline std::string name_of(DynamicMap map) {
  return map == DynamicMap::with_sign ? "with_sign" : "without_sign";
}

/// A code next to the nearest one is accepted where x lies midway between two values.
inline constexpr Tolerance kOneCode{1, 0};

inline Case quantize_case(int64_t n, DynamicMap map) {
  Case made;
  made.name = fmt::format("quantize_{}_{}", n, name_of(map));
  made.operands = {input(kFp32, {n}, map == DynamicMap::with_sign ? -2 : 0, 3),
                   output(DType::uint8, {n}, kOneCode), output(kFp32, {blocks_of(n)}, {})};
  for (double& x : made.operands[0].values) {
    x = rounded(kFp32, x * x * x * x * x);  // spans several decades
  }
  made.run = [map](const Kernels& kernels, Stream& stream, const Tensors& t) {
    kernels.quantize(stream, {t[0], t[1], t[2], map});
  };
  made.reference = [map](std::vector<Values>& v) { reference::quantize(map, v[0], v[1], v[2]); };
  made.passes_nan = false;  // codes have none
  return made;
}

inline Case dequantize_case(int64_t n, DynamicMap map) {
  Case made;
  made.name = fmt::format("dequantize_{}_{}", n, name_of(map));
  made.operands = {input(DType::uint8, {n}, 0, 256), input(kFp32, {blocks_of(n)}, -2, 2),
                   output(kFp32, {n}, {0, 1e-6})};
  made.run = [map](const Kernels& kernels, Stream& stream, const Tensors& t) {
    kernels.dequantize(stream, {t[0], t[1], t[2], map});
  };
  made.reference = [map](std::vector<Values>& v) { v[2] = reference::dequantize(map, v[0], v[1]); };
  return made;
}

/// Type of the copy of the values that an optimizer writes; bf16: the type of halves.
enum class Copy : uint8_t { absent, fp32, bf16 };

struct StateForm {
  DType gradient = kFp32;
  bool split = false;  ///< the master copy is split: `half` and 16 more bits
  bool coded = false;  ///< moments in 8 bits
  Copy copy = Copy::absent;
  DType half = kBf16;
  std::optional<double> factor{};  ///< of gradients, passed as an operand
  bool at_random = false;          ///< the master copy is `half` alone, with random rounding
  bool in_halves() const { return split || at_random; }
};

inline constexpr RandomRounding kRounding{.key = 0x9d3c5a7b12345678, .first = 5};

/// Value of element k of a call after random rounding.
inline double at_random(DType half, double master, int64_t k) {
  const int64_t e = kRounding.first + k;
  const uint32_t word = philox(kRounding.key, 0, static_cast<uint64_t>(e / 4))[e % 4];
  const auto w = static_cast<float>(master);
  return half == kFp16 ? to_float(round_at_random<fp16>(w, word))
                       : to_float(round_at_random<bf16>(w, word));
}

/// The master copy from these halves as a number; then the upper half of one as a number.
inline double joined(DType half, double value, double low) {
  const auto rest = static_cast<uint16_t>(low);
  const auto high = static_cast<float>(value);
  return half == kFp16 ? join(to_fp16(high), rest) : join(to_bf16(high), rest);
}
inline double upper_half(DType half, double master) {
  const auto w = static_cast<float>(master);
  return half == kFp16 ? to_float(split<fp16>(w).high) : to_float(split<bf16>(w).high);
}

/// Indices of operands; 0: absent.
struct StatePlaces {
  size_t value = 1, low = 0, moment[2] = {0, 0}, scale[2] = {0, 0}, dense = 0, factor = 0;
  DType half = kBf16;
  bool at_random = false;
  bool copies_all = false;  ///< writes a copy of both halves
};

inline constexpr DynamicMap kMomentMaps[2] = {DynamicMap::with_sign, DynamicMap::without_sign};

/// Operands {gradient, value, [low], moments with [scales], [dense]}. Calls must not change values
/// of dense outside the kept ones.
inline StatePlaces add_state(Case& made, const Kept& kept, const StateForm& form, int moments) {
  const int64_t n = kept.count();
  const Tolerance tolerance{1e-6, 2e-6};
  // Near the middle between two 16-bit numbers `value` may be either. `low` then differs; tests of
  // states compare it bit by bit, and so do tests of random rounding with given random numbers.
  const Tolerance value{1e-6, form.in_halves() ? 0x1p-7 : 2e-6};
  StatePlaces places{.half = form.half, .at_random = form.at_random};
  const auto add = [&made](Operand operand) {
    made.operands.push_back(std::move(operand));
    return made.operands.size() - 1;
  };
  add(input(form.gradient, {n}));
  add(in_out(form.in_halves() ? form.half : kFp32, {n}, value));
  if (form.split) {
    for (double& x : made.operands[1].values) {
      x = x == 0 ? 0.5 : x;  // no number has the parts zero and a negative rest
    }
    places.low = add(in_out(DType::uint16, {n}, {65536, 0}, 0, 65536));
  }
  for (int i = 0; i < moments; ++i) {
    if (form.coded) {
      // From 40: two elements of almost the same size and opposite signs would tie for the scale.
      places.moment[i] = add(in_out(DType::uint8, {n}, kOneCode, 40, 256));
      places.scale[i] = add(in_out(kFp32, {blocks_of(n)}, tolerance, 0.5, 1));
    } else {
      places.moment[i] = add(in_out(kFp32, {n}, tolerance, 0, 1));
    }
  }
  if (form.copy != Copy::absent) {
    const DType type = form.copy == Copy::bf16 ? form.half : kFp32;
    places.copies_all = form.split && type == kFp32 && kept.form == Form::all;
    places.dense = add(in_out(type, {kept.size}, places.copies_all ? tolerance : value));
    made.operands.back().input = false;
  }
  if (form.factor) {
    places.factor = add(input(kFp32, {1}));
    made.operands.back().values = {*form.factor};
    for (int64_t k = 0; places.dense != 0 && k < n; ++k) {  // as an update leaves them
      Operand& dense = made.operands[places.dense];
      dense.values[kept.list[k]] = rounded(dense.dtype, made.operands[places.value].values[k]);
    }
  }
  made.passes_nan = n > 0 && !form.factor;  // a NaN makes the update change nothing
  return places;
}

inline Tensor tensor_at(const Tensors& t, size_t place) { return place == 0 ? Tensor{} : t[place]; }

/// One element of the state; `next(gradient, element)` reads and changes it.
struct StateElement {
  double master, moment[2];
};

/// Factor of the gradient: the `factor` operand if present, else `scale`.
inline double factor_of(const StatePlaces& at, const std::vector<Values>& v, double scale) {
  return at.factor == 0 ? scale : v[at.factor][0];
}

/// Runs `next` on every kept element, for any form of the state.
template <class Next>
void reference_update(const StatePlaces& at, const Kept& kept, std::vector<Values>& v,
                      const Next& next) {
  if (!std::isfinite(factor_of(at, v, 1))) {
    return;
  }
  const DType half = at.half;
  Values moments[2];
  for (size_t i = 0; i < 2; ++i) {
    const Values none(v[at.value].size(), 0);
    moments[i] = at.moment[i] == 0 ? none
                 : at.scale[i] == 0
                     ? v[at.moment[i]]
                     : reference::dequantize(kMomentMaps[i], v[at.moment[i]], v[at.scale[i]]);
  }
  for (size_t k = 0; k < v[at.value].size(); ++k) {
    double& value = v[at.value][k];
    const double w = at.low == 0 ? value : joined(half, value, v[at.low][k]);
    StateElement element{w, {moments[0][k], moments[1][k]}};
    next(v[0][k], element);
    value = at.at_random  ? at_random(half, element.master, static_cast<int64_t>(k))
            : at.low == 0 ? element.master
                          : upper_half(half, element.master);
    moments[0][k] = element.moment[0];
    moments[1][k] = element.moment[1];
    if (at.dense != 0) {
      v[at.dense][kept.list[k]] = at.copies_all ? element.master : value;
    }
  }
  for (size_t i = 0; i < 2; ++i) {
    if (at.scale[i] != 0) {
      reference::quantize(kMomentMaps[i], moments[i], v[at.moment[i]], v[at.scale[i]]);
    } else if (at.moment[i] != 0) {
      v[at.moment[i]] = moments[i];
    }
  }
}

inline std::string state_name(const std::string& name, const Kept& kept, const StateForm& form) {
  return fmt::format("{}_{}_{}{}_coded{:d}_copy{:d}{}", name, suffix(kept, form.gradient),
                     form.at_random ? "random" : fmt::format("split{:d}", form.split),
                     form.half == kFp16 ? "fp16" : "", form.coded, static_cast<int>(form.copy),
                     form.factor ? fmt::format("_factor{}", *form.factor) : "");
}

/// An update rule: the scalars of a call, and the update of one element in double.
struct RuleCase {
  const char* name;
  int moments;
  UpdateArgs flags;
  void (*next)(const UpdateArgs& flags, double g, StateElement& e);  ///< g = gradient * scale
  bool scaled = true;                                                ///< false: g = gradient
};

inline const std::vector<RuleCase>& rule_cases() {
  static const std::vector<RuleCase> all{
      {"adamw", 2,
       UpdateArgs{.rule = UpdateRule::adamw,
                  .scale = 0.5F,
                  .lr = 0.01F,
                  .weight_decay = 0.1F,
                  .bias_correction1 = 0.271F,
                  .bias_correction2 = 0.142625F},
       [](const UpdateArgs& a, double g, StateElement& e) {
         e.moment[0] = double{a.beta1} * e.moment[0] + (1 - double{a.beta1}) * g;
         e.moment[1] = double{a.beta2} * e.moment[1] + (1 - double{a.beta2}) * g * g;
         const double root = std::sqrt(e.moment[1] / a.bias_correction2) + a.epsilon;
         e.master -= a.lr * (e.moment[0] / a.bias_correction1 / root + a.weight_decay * e.master);
       }},
      {"sgd", 1,
       UpdateArgs{.rule = UpdateRule::sgd,
                  .scale = 0.5F,
                  .lr = 0.1F,
                  .beta1 = 0.9F,
                  .weight_decay = 0.01F},
       [](const UpdateArgs& a, double g, StateElement& e) {
         e.moment[0] = a.beta1 * e.moment[0] + g + a.weight_decay * e.master;
         e.master -= a.lr * e.moment[0];
       }},
      {"nesterov", 1,
       UpdateArgs{.rule = UpdateRule::nesterov,
                  .scale = 0.5F,
                  .lr = 0.1F,
                  .beta1 = 0.9F,
                  .weight_decay = 0.01F},
       [](const UpdateArgs& a, double g, StateElement& e) {
         const double d = g + a.weight_decay * e.master;
         e.moment[0] = a.beta1 * e.moment[0] + d;
         e.master -= a.lr * (d + a.beta1 * e.moment[0]);
       }},
      {"lion", 1,
       UpdateArgs{.rule = UpdateRule::lion,
                  .scale = 0.5F,
                  .lr = 0.01F,
                  .beta1 = 0.9F,
                  .beta2 = 0.99F,
                  .weight_decay = 0.1F},
       [](const UpdateArgs& a, double g, StateElement& e) {
         const double u = double{a.beta1} * e.moment[0] + (1 - double{a.beta1}) * g;
         const double sign = u > 0 ? 1 : u < 0 ? -1 : u;
         e.master -= a.lr * (sign + a.weight_decay * e.master);
         e.moment[0] = double{a.beta2} * e.moment[0] + (1 - double{a.beta2}) * g;
       }},
      {"average", 1, UpdateArgs{.rule = UpdateRule::average, .scale = 1, .lr = 0.1F},
       [](const UpdateArgs& a, double g, StateElement& e) { e.master -= a.lr * g; }, false},
  };
  return all;
}

/// An update of one array: a case without its call, and the arguments of the call.
struct Update {
  Case made;
  std::function<UpdateArgs(Stream&, const Tensors&)> args;
};

inline Update update_of(const RuleCase& rule, const KeptPointer& kept, const StateForm& form) {
  Case made;
  made.name = state_name(rule.name, *kept, form);
  const StatePlaces at = add_state(made, *kept, form, rule.moments);
  made.reference = [=](std::vector<Values>& v) {
    const double scale = rule.scaled ? factor_of(at, v, rule.flags.scale) : 1;
    reference_update(at, *kept, v, [&](double gradient, StateElement& e) {
      rule.next(rule.flags, gradient * scale, e);
    });
  };
  made.passes_nan = made.passes_nan && rule.scaled;  // without moments their scales reach nothing
  return {.made = std::move(made), .args = [=](Stream& stream, const Tensors& t) {
            UpdateArgs args = rule.flags;
            args.gradient = t[0];
            args.value = t[at.value];
            args.low = tensor_at(t, at.low);
            args.moment1 = t[at.moment[0]];
            args.scale1 = tensor_at(t, at.scale[0]);
            if (rule.moments == 2) {
              args.moment2 = t[at.moment[1]];
              args.scale2 = tensor_at(t, at.scale[1]);
            }
            args.dense = tensor_at(t, at.dense);
            args.factor = tensor_at(t, at.factor);
            args.positions = kept->positions(stream);
            args.rounding = kRounding;
            return args;
          }};
}

inline Case update_case(const RuleCase& rule, const KeptPointer& kept, const StateForm& form) {
  Update update = update_of(rule, kept, form);
  update.made.run = [args = std::move(update.args)](const Kernels& kernels, Stream& stream,
                                                    const Tensors& t) {
    kernels.update(stream, args(stream, t));
  };
  return std::move(update.made);
}

/// All updates in one call.
inline Case together(const std::string& name, std::vector<Update> updates) {
  Case made;
  made.name = fmt::format("{}_of_{}", name, updates.size());
  made.passes_nan = false;  // NaN changes one array through its gradient, not all
  for (const Update& update : updates) {
    made.operands.insert(made.operands.end(), update.made.operands.begin(),
                         update.made.operands.end());
  }
  /// fn(update, its part of the operands)
  const auto for_each = [updates = std::move(updates)](auto& operands, const auto& fn) {
    auto from = operands.begin();
    for (const Update& update : updates) {
      const auto to = from + static_cast<std::ptrdiff_t>(update.made.operands.size());
      std::remove_cvref_t<decltype(operands)> mine(from, to);
      fn(update, mine);
      if constexpr (!std::is_const_v<std::remove_reference_t<decltype(operands)>>) {
        std::ranges::move(mine, from);
      }
      from = to;
    }
  };
  made.run = [for_each](const Kernels& kernels, Stream& stream, const Tensors& t) {
    std::vector<UpdateArgs> all;
    for_each(t, [&](const Update& update, const Tensors& mine) {
      all.push_back(update.args(stream, mine));
    });
    kernels.update(stream, all);
  };
  made.reference = [for_each](std::vector<Values>& v) {
    for_each(v,
             [](const Update& update, std::vector<Values>& mine) { update.made.reference(mine); });
  };
  return made;
}

struct PredictForm {
  bool split = false, coded = false;
  int moments = 2;
  int terms = 1;
  DType half = kBf16;
  bool alone = false;  ///< values of type `half` without low halves
};

/// Operands {value, [low], moments with [scales], out, exact}. The call must not change the state.
inline Case predict_case(int64_t n, const PredictForm& form) {
  Case made;
  made.name = fmt::format("predict_{}_{}{}_coded{:d}_moments{}_terms{}", n,
                          form.alone ? "alone" : fmt::format("split{:d}", form.split),
                          form.half == kFp16 ? "fp16" : "", form.coded, form.moments, form.terms);
  const DType type = form.split || form.alone ? form.half : kFp32;
  StatePlaces at{.value = 0};
  const auto add = [&made](Operand operand) {
    made.operands.push_back(std::move(operand));
    return made.operands.size() - 1;
  };
  add(input(type, {n}, 0.5, 2));
  at.low = form.split ? add(input(DType::uint16, {n}, 0, 65536)) : 0;
  for (int i = 0; i < form.moments; ++i) {
    at.moment[i] = add(form.coded ? input(DType::uint8, {n}, 40, 256) : input(kFp32, {n}, 0, 1));
    at.scale[i] = form.coded ? add(input(kFp32, {blocks_of(n)}, 0.5, 1)) : 0;
  }
  const size_t out = add(output(type, {n}, {1e-6, 2e-6}));
  const size_t exact = add(output(kFp32, {n}, {1e-6, 2e-6}));
  std::vector<PredictArgs::Term> terms;
  for (int i = 0; i < form.terms; ++i) {
    const auto number = static_cast<float>(i);
    terms.push_back({.keep = 1 - 0.01F * number, .step = 0.1F / (1 + number), .root = 2 + number});
  }
  made.run = [=](const Kernels& kernels, Stream& stream, const Tensors& t) {
    kernels.predict(stream, {.value = t[0],
                             .low = tensor_at(t, at.low),
                             .moment1 = t[at.moment[0]],
                             .moment2 = tensor_at(t, at.moment[1]),
                             .scale1 = tensor_at(t, at.scale[0]),
                             .scale2 = tensor_at(t, at.scale[1]),
                             .out = t[out],
                             .exact = t[exact],
                             .terms = terms.data(),
                             .term_count = static_cast<int64_t>(terms.size()),
                             .epsilon = 0.25F});
  };
  made.reference = [=](std::vector<Values>& v) {
    Values moments[2];
    for (size_t i = 0; i < static_cast<size_t>(form.moments); ++i) {
      moments[i] = form.coded
                       ? reference::dequantize(kMomentMaps[i], v[at.moment[i]], v[at.scale[i]])
                       : v[at.moment[i]];
    }
    for (size_t k = 0; k < v[0].size(); ++k) {
      double w = form.split ? joined(form.half, v[0][k], v[at.low][k]) : v[0][k];
      for (const PredictArgs::Term& term : terms) {
        const double root = form.moments == 1 ? 1 : std::sqrt(moments[1][k]) * term.root + 0.25;
        w = w * term.keep - term.step * moments[0][k] / root;
      }
      v[out][k] = w;
      v[exact][k] = w;
    }
  };
  made.passes_nan = n > 0;
  return made;
}

}  // namespace espalier::kernels
