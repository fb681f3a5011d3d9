#include "model/graph/op.h"

#include "model/base/error.h"

namespace kvcast {
namespace {

struct FunctionTraits {
  Function function;
  std::string_view name;
  std::uint64_t flops_per_element;
  std::uint64_t gradient_flops = 0;  ///< an element; 0: it has no ElementwiseGradient
  bool saves_result = false;
};

constexpr FunctionTraits functions[] = {
    {Function::Copy, "copy", 0},
    {Function::Add, "add", 1},
    {Function::Multiply, "multiply", 1},
    {Function::Scale, "scale", 1},
    {Function::ClampBelow, "clamp_below", 1, 1},
    {Function::Square, "square", 1, 2},
    {Function::Center, "center", 1},
    {Function::InverseRoot, "inverse_root", 3, 4, true},
    {Function::SoftCap, "soft_cap", 3, 4, true},
    {Function::Relu, "relu", 1, 1, true},
    {Function::Silu, "silu", 4, 9},
    {Function::Gelu, "gelu", 5, 11},
    {Function::GeluTanh, "gelu_tanh", 9, 18},
    {Function::OnePlus, "one_plus", 1},
    {Function::QuickGelu, "quick_gelu", 5, 10},
    {Function::SquaredRelu, "squared_relu", 2, 3},
    {Function::Sigmoid, "sigmoid", 4, 3, true},
    {Function::Clamp, "clamp", 2, 2},
    {Function::Xielu, "xielu", 11, 9},
};

const FunctionTraits& traits_of(Function function) {
  for (const FunctionTraits& f : functions) {
    if (f.function == function) return f;
  }
  KVCAST_ASSERT(false);
  return functions[0];
}

}  // namespace

std::string_view name(Function function) { return traits_of(function).name; }

std::uint64_t flops_per_element(Function function) { return traits_of(function).flops_per_element; }

bool saves_result(Function function) { return traits_of(function).saves_result; }

std::uint64_t gradient_flops_per_element(Function function) {
  KVCAST_ASSERT(traits_of(function).gradient_flops > 0);
  return traits_of(function).gradient_flops;
}

std::string_view name(const Op& op) {
  if (const auto* elementwise = std::get_if<Elementwise>(&op)) return name(elementwise->function);
  if (const auto* collective = std::get_if<Collective>(&op)) return name(collective->kind);
  return std::visit([](const auto& o) { return o.traits.name; }, op);
}

const RankGroup* group_of(const Op& op) {
  if (const auto* o = std::get_if<Collective>(&op)) return &o->group;
  const RankGroup* group = nullptr;
  if (const auto* o = std::get_if<DispatchTokens>(&op)) group = &o->group;
  if (const auto* o = std::get_if<ReturnTokens>(&op)) group = &o->group;
  return group != nullptr && group->size > 1 ? group : nullptr;
}

const ExpertLinear* experts_of(const Op& op) {
  if (const auto* o = std::get_if<ExpertInputGradient>(&op)) return &o->forward;
  if (const auto* o = std::get_if<ExpertWeightGradient>(&op)) return &o->forward;
  return std::get_if<ExpertLinear>(&op);
}

RateClass rate_class(const Op& op) {
  return std::visit([](const auto& o) { return o.traits.rate_class; }, op);
}

}  // namespace kvcast
