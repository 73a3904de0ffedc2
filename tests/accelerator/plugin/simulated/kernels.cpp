// Every kernel is the CPU's, on the same memory; what differs on accelerators is written out.
#include "device.h"

#include <ATen/ATen.h>
#include <ATen/EmptyTensor.h>
#include <ATen/autocast_mode.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/resize_native.h>
#include <ATen/ops/set_native.h>
#include <ATen/ops/view_native.h>
#include <torch/library.h>
#include <torch/version.h>

#include <cstdlib>

namespace simulated {

at::Generator& of_the_cpu(const at::Generator& g);
at::Generator& default_of_the_cpu(c10::DeviceIndex d);

namespace {
using at::Tensor;

Tensor empty(c10::IntArrayRef size, std::optional<at::ScalarType> dtype, std::optional<at::Layout>, std::optional<at::Device> device,
             std::optional<bool>, std::optional<at::MemoryFormat> format) {
  c10::DeviceGuard guard(c10::device_or_default(device));
  return at::detail::empty_generic(size, c10::GetAllocator(SIM), c10::DispatchKeySet(c10::DispatchKey::PrivateUse1),
                                   c10::dtype_or_default(dtype), format);
}
Tensor empty_strided(c10::IntArrayRef size, c10::IntArrayRef stride, std::optional<at::ScalarType> dtype, std::optional<at::Layout>,
                     std::optional<at::Device> device, std::optional<bool>) {
  c10::DeviceGuard guard(c10::device_or_default(device));
  return at::detail::empty_strided_generic(size, stride, c10::GetAllocator(SIM), c10::DispatchKeySet(c10::DispatchKey::PrivateUse1),
                                           c10::dtype_or_default(dtype));
}
Tensor on_device(const Tensor& x, c10::DeviceIndex d) {  // a copy of a result of the CPU's
  if (!x.defined() || x.layout() != at::kStrided) return x;
  auto made = at::empty_strided(x.sizes(), x.strides(), x.options().device(c10::Device(SIM, d)));
  host(made).copy_(x);
  return made;
}
Tensor copy_from(const Tensor& from, const Tensor& to, bool) {
  for (const auto& x : {from, to})
    if (x.device().type() == SIM) begin_kernel(x.device().index());
  if (to.is_cpu()) ++counts().to_host;
  if (from.is_cpu()) ++counts().to_device;
  auto target = host(to);
  target.copy_(host(from));
  return to;
}
Tensor copy_from_and_resize(const Tensor& from, const Tensor& to) {
  const_cast<Tensor&>(to).resize_(from.sizes());
  return copy_from(from, to, false);
}
at::Scalar local_scalar_dense(const Tensor& x) {
  begin_kernel(x.device().index());
  ++counts().reads;
  return host(x).item();
}
void record_stream(Tensor& x, c10::Stream s) {
  recorded_streams().emplace_back(reinterpret_cast<uintptr_t>(x.storage().data()), s.id());
}

// ---- what is one kernel here

std::tuple<Tensor, Tensor> native_dropout(const Tensor& x, double p, std::optional<bool> train) {
  auto d = x.device().index();
  begin_kernel(d);
  ++counts().kernels;
  if (p == 0 || !train.value_or(true)) return {x.clone(), at::ones_like(x, x.options().dtype(at::kBool))};
  auto mask = at::empty(x.sizes(), x.options().device(at::kCPU).dtype(at::kBool)).bernoulli_(1 - p, default_of_the_cpu(d));
  return {on_device(host(x) * mask / (1 - p), d), on_device(mask, d)};
}
Tensor conv(const Tensor& x, const Tensor& w, const std::optional<Tensor>& b, c10::IntArrayRef s, c10::IntArrayRef p, c10::IntArrayRef d,
            bool t, c10::IntArrayRef o, int64_t g) {
  begin_kernel(x.device().index());
  auto bias = b && b->defined() ? std::optional<Tensor>(host(*b)) : std::nullopt;
  return on_device(at::convolution(host(x), host(w), bias, s, p, d, t, o, g), x.device().index());
}
std::tuple<Tensor, Tensor, Tensor> conv_backward(const Tensor& gy, const Tensor& x, const Tensor& w, c10::IntArrayRef s, c10::IntArrayRef p,
                                                 c10::IntArrayRef d, bool t, c10::IntArrayRef o, int64_t g, std::array<bool, 3> mask) {
  auto at_ = x.device().index();
  begin_kernel(at_);
  std::vector<int64_t> bias{gy.size(1)};
  auto [a, b, c] = at::convolution_backward(host(gy), host(x), host(w), at::OptionalIntArrayRef(bias), s, p, d, t, o, g, mask);
  return {on_device(a, at_), on_device(b, at_), on_device(c, at_)};
}
// differentiable by what they are made of, where CUDA has one kernel
std::tuple<Tensor, Tensor, Tensor> lstm_cell(const Tensor& i, const Tensor& h, const Tensor& c, const std::optional<Tensor>& bi,
                                             const std::optional<Tensor>& bh) {
  auto gates = i + h;
  for (const auto& b : {bi, bh})
    if (b && b->defined()) gates = gates + *b;
  auto parts = gates.chunk(4, 1);
  auto next = parts[1].sigmoid() * c + parts[0].sigmoid() * parts[2].tanh();
  return {parts[3].sigmoid() * next.tanh(), next, gates};
}
std::tuple<Tensor, Tensor> gru_cell(const Tensor& i, const Tensor& h, const Tensor& x, const std::optional<Tensor>& bi,
                                    const std::optional<Tensor>& bh) {
  auto a = (bi && bi->defined() ? i + *bi : i).chunk(3, 1), b = (bh && bh->defined() ? h + *bh : h).chunk(3, 1);
  auto reset = (a[0] + b[0]).sigmoid(), keep = (a[1] + b[1]).sigmoid();
  auto fresh = (a[2] + reset * b[2]).tanh();
  return {(x - fresh) * keep + fresh, fresh};
}

// ---- SIMULATED_ALGORITHMS: another order of sums for few rows, as cuBLAS has

Tensor product(const Tensor& a, const Tensor& b) {
  auto x = host(a), y = host(b);
  static const bool differs = std::getenv("SIMULATED_ALGORITHMS") != nullptr;
  const int64_t inner = x.size(-1), parts = 4;
  if (!differs || x.size(-2) >= 200 || inner < parts) return at::matmul(x, y);
  auto wide = x.scalar_type() == at::kHalf || x.scalar_type() == at::kBFloat16 ? at::kFloat : x.scalar_type();
  Tensor sum;
  for (int64_t k = 0; k < parts; ++k) {
    const int64_t from = inner * k / parts, size = inner * (k + 1) / parts - from;
    auto part = at::matmul(x.narrow(-1, from, size).to(wide), y.narrow(-2, from, size).to(wide));
    sum = sum.defined() ? sum + part : part;
  }
  return sum.to(x.scalar_type());
}
Tensor mm(const Tensor& a, const Tensor& b) {
  begin_kernel(a.device().index());
  ++counts().kernels;
  return on_device(product(a, b), a.device().index());
}
Tensor addmm(const Tensor& c, const Tensor& a, const Tensor& b, const at::Scalar& beta, const at::Scalar& alpha) {
  begin_kernel(a.device().index());
  ++counts().kernels;
  return on_device(at::add(host(c) * beta, product(a, b), alpha), a.device().index());
}

// ---- the rest

bool takes_cpu_tensors(const std::string& name) {  // as on CUDA: indices may lie on the CPU
  return name.find("index") != std::string::npos || name.find("_pin_memory") != std::string::npos;
}

void to_host(c10::IValue& value, std::vector<Tensor>& given) {
  auto turn = [&](const Tensor& x) {
    if (x.defined() && x.device().type() == SIM) given.push_back(x);
    return host(x);
  };
  if (value.isTensor()) {
    value = turn(value.toTensor());
  } else if (value.isTensorList()) {
    std::vector<Tensor> made;
    for (const auto& x : value.toTensorVector()) made.push_back(turn(x));
    value = c10::IValue(c10::List<Tensor>(made));
  } else if (value.isOptionalTensorList()) {
    c10::List<std::optional<Tensor>> made;
    for (const auto& x : value.toOptionalTensorList().vec()) made.push_back(x ? std::optional<Tensor>(turn(*x)) : std::nullopt);
    value = c10::IValue(made);
  } else if (value.isDevice() && value.toDevice().type() == SIM) {
    value = c10::Device(c10::kCPU);
  }
}

bool of_cpu_and_not_a_number(const c10::IValue& value) {
  auto bad = [](const Tensor& x) { return x.defined() && x.is_cpu() && x.dim() > 0; };
  if (value.isTensor()) return bad(value.toTensor());
  if (value.isTensorList()) {
    auto all = value.toTensorVector();
    return std::any_of(all.begin(), all.end(), bad);
  }
  return false;
}

// a view of what was given: the same storage, seen as the CPU's kernel sees it
Tensor as_view(const Tensor& out, const Tensor& base) {
  auto made = at::detail::make_tensor<c10::TensorImpl>(c10::TensorImpl::VIEW, c10::Storage(base.storage()),
                                                       c10::DispatchKeySet(c10::DispatchKey::PrivateUse1), out.dtype());
  auto bytes = static_cast<const char*>(out.data_ptr()) - static_cast<const char*>(base.storage().data());
  made.unsafeGetTensorImpl()->set_storage_offset(bytes / static_cast<int64_t>(out.element_size()));
  made.unsafeGetTensorImpl()->set_sizes_and_strides(out.sizes(), out.strides());
  return made;
}

Tensor returned(const Tensor& out, const c10::AliasInfo* alias, const std::vector<Tensor>& given, c10::DeviceIndex d) {
  if (!out.defined() || out.device().type() == SIM) return out;
  if (alias)
    for (const auto& x : given) {
      auto* from = static_cast<const char*>(x.storage().data());
      auto* p = static_cast<const char*>(out.data_ptr());
      if (alias->isWrite() && p == x.data_ptr() && out.sizes() == x.sizes()) return x;
      if (!alias->isWrite() && p >= from && p <= from + x.storage().nbytes()) return as_view(out, x);
    }
  return on_device(out, d);
}

void draw_on(const c10::OperatorHandle& op, torch::jit::Stack* stack, size_t begin, c10::DeviceIndex d) {
  const auto& arguments = op.schema().arguments();
  for (size_t k = 0; k < arguments.size(); ++k) {
    if (arguments[k].type()->str().find("Generator") == std::string::npos) continue;
    auto& value = (*stack)[begin + k];
    if (value.isNone()) {
      value = c10::IValue(default_of_the_cpu(d));
    } else {
      auto g = value.toGenerator();
      TORCH_CHECK(g.device().type() == SIM, "Expected a 'simulated' device type for generator but found '", g.device().type(), "'");
      value = c10::IValue(of_the_cpu(g));
    }
  }
}

void out_variant(const c10::OperatorHandle& op, torch::jit::Stack* stack, size_t begin, const std::vector<c10::IValue>& before) {
  // CPU kernels size what they write into; the sizes are known once they have
  const auto& arguments = op.schema().arguments();
  std::vector<Tensor> outs, results;
  for (size_t k = 0; k < arguments.size(); ++k) {
    if (!arguments[k].is_out()) continue;
    outs.push_back(before[k].toTensor());
    results.push_back((*stack)[begin + k].toTensor());  // what the kernel returns is undefined in torch 2.6
  }
  op.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), stack);
  torch::jit::pop(*stack, outs.size());
  for (size_t k = 0; k < outs.size(); ++k) {
    auto target = outs[k];
    if (target.sizes() != results[k].sizes()) target.resize_(results[k].sizes());
    host(target).copy_(results[k]);
    torch::jit::push(*stack, target);
  }
}

// as on CUDA: a result on the host, or one whose shape depends on values, makes the host wait
bool reads_values(const c10::OperatorHandle& op, const std::vector<c10::IValue>& given) {
  if (op.hasTag(at::Tag::data_dependent_output)) return true;
  if (!op.hasTag(at::Tag::dynamic_output_shape)) return false;
  if (op.schema().name().find("index") == std::string::npos) return true;
  for (const auto& value : given)  // of indices only masks
    if (value.isOptionalTensorList())
      for (const auto& x : value.toOptionalTensorVector())
        if (x && (x->scalar_type() == at::kBool || x->scalar_type() == at::kByte)) return true;
  return false;
}

void fallback(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const auto& schema = op.schema();
  const auto& arguments = schema.arguments();
  const size_t begin = stack->size() - arguments.size();
  std::vector<c10::IValue> before(stack->begin() + begin, stack->end());
  std::vector<Tensor> given;
  c10::DeviceIndex d = -1;
  bool has_out = false, strange = false;
  for (size_t k = 0; k < arguments.size(); ++k) {
    auto& value = (*stack)[begin + k];
    strange |= of_cpu_and_not_a_number(value);
    if (value.isDevice() && value.toDevice().type() == SIM && value.toDevice().has_index()) d = value.toDevice().index();
    has_out |= arguments[k].is_out();
    if (arguments[k].is_out() && value.isTensor()) {
      given.push_back(value.toTensor());
      value = at::empty({0}, value.toTensor().options().device(at::kCPU));
    } else {
      to_host(value, given);
    }
  }
  if (d < 0) d = given.empty() ? current_stream(0).device_index() : given[0].device().index();
  TORCH_CHECK(!strange || given.empty() || takes_cpu_tensors(schema.name()),
              "Expected all tensors to be on the same device, but found at least two devices, simulated:", int(d), " and cpu! (", schema.name(), ")");
  for (const auto& x : given)
    TORCH_CHECK(x.device().index() == d || x.dim() == 0 || takes_cpu_tensors(schema.name()),
                "Expected all tensors to be on the same device, but found at least two devices, simulated:", int(d), " and ", x.device(), "! (", schema.name(), ")");
  begin_kernel(d);
  ++counts().kernels;
  if (reads_values(op, before)) ++counts().reads;
  draw_on(op, stack, begin, d);
  if (has_out) return out_variant(op, stack, begin, before);
  op.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), stack);
  const auto& returns = schema.returns();
  auto results = torch::jit::pop(*stack, returns.size());
  for (size_t k = 0; k < returns.size(); ++k) {
    if (results[k].isTensor()) {
      torch::jit::push(*stack, returned(results[k].toTensor(), returns[k].alias_info(), given, d));
    } else if (results[k].isTensorList()) {
      std::vector<Tensor> made;
      for (const auto& x : results[k].toTensorVector()) made.push_back(returned(x, returns[k].alias_info(), given, d));
      torch::jit::push(*stack, made);
    } else {
      torch::jit::push(*stack, results[k]);
    }
  }
}

TORCH_LIBRARY_IMPL(_, PrivateUse1, m) { m.fallback(torch::CppFunction::makeFromBoxedFunction<&fallback>()); }
TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("empty.memory_format", empty);
  m.impl("empty_strided", empty_strided);
  m.impl("view", [](const Tensor& x, c10::IntArrayRef s) { return at::native::view(x, s); });
  m.impl("as_strided", [](const Tensor& x, c10::IntArrayRef s, c10::IntArrayRef t, std::optional<int64_t> o) {
    return at::native::as_strided_tensorimpl(x, s, t, o);
  });
  m.impl("_reshape_alias", [](const Tensor& x, c10::IntArrayRef s, c10::IntArrayRef t) { return at::native::_reshape_alias(x, s, t); });
  m.impl("resize_", [](const Tensor& x, c10::IntArrayRef s, std::optional<at::MemoryFormat> f) -> const Tensor& {
    return at::native::resize_(x, s, f);
  });
  m.impl("set_.source_Tensor", [](Tensor& x, const Tensor& y) -> Tensor& { return at::native::set_tensor_(x, y); });
  m.impl("set_.source_Storage", [](Tensor& x, at::Storage s) -> Tensor& { return at::native::set_(x, s); });
  m.impl("set_.source_Storage_storage_offset", [](Tensor& x, at::Storage s, int64_t o, c10::IntArrayRef z, c10::IntArrayRef t) -> Tensor& {
    return at::native::set_storage_cpu_(x, s, o, z, t);
  });
  m.impl("_copy_from", copy_from);
  m.impl("_copy_from_and_resize", copy_from_and_resize);
  m.impl("_local_scalar_dense", local_scalar_dense);
  m.impl("record_stream", record_stream);
  m.impl("convolution_overrideable", conv);
  m.impl("convolution_backward_overrideable", conv_backward);
  m.impl("native_dropout", native_dropout);
  m.impl("mm", mm);
  m.impl("addmm", addmm);
}
TORCH_LIBRARY_IMPL(aten, AutogradPrivateUse1, m) {
  m.impl("_thnn_fused_lstm_cell", lstm_cell);
  m.impl("_thnn_fused_gru_cell", gru_cell);
}
#if TORCH_VERSION_MAJOR == 2 && TORCH_VERSION_MINOR < 7
// later torch has it: where an operator has no derivative, as c10d's have none, autograd lets it pass
TORCH_LIBRARY_IMPL(_, AutogradPrivateUse1, m) { m.fallback(torch::CppFunction::makeFallthrough()); }
#endif
TORCH_LIBRARY_IMPL(_, AutocastPrivateUse1, m) { m.fallback(torch::CppFunction::makeFallthrough()); }
TORCH_LIBRARY_IMPL(aten, AutocastPrivateUse1, m) {
  KERNEL_PRIVATEUSEONE(mm, lower_precision_fp)
  KERNEL_PRIVATEUSEONE(addmm, lower_precision_fp)
  KERNEL_PRIVATEUSEONE(bmm, lower_precision_fp)
  KERNEL_PRIVATEUSEONE(linear, lower_precision_fp)
  KERNEL_PRIVATEUSEONE(matmul, lower_precision_fp)
  KERNEL_PRIVATEUSEONE(conv2d, lower_precision_fp)
  KERNEL_PRIVATEUSEONE(cross_entropy_loss, fp32)
  KERNEL_PRIVATEUSEONE(nll_loss, fp32)
  KERNEL_PRIVATEUSEONE(layer_norm, fp32)
}
}  // namespace
}  // namespace simulated
