// A device that holds its values in host memory and refuses to mix them with tensors of the CPU, as CUDA does.
// Operators run as their CPU kernels on the same memory; views share storage; a generator draws what a CPU one would.
#include <ATen/EmptyTensor.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/convolution.h>
#include <ATen/ops/convolution_backward.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/resize_native.h>
#include <ATen/ops/set_native.h>
#include <ATen/ops/unfold_native.h>
#include <ATen/ops/view_native.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torch/library.h>

namespace {

using at::Tensor;
using c10::Device;
using c10::DeviceIndex;
using c10::DeviceType;
using c10::DispatchKey;
using c10::DispatchKeySet;

constexpr auto kType = DeviceType::PrivateUse1;
const Device kDevice(kType, 0);

struct Allocator final : c10::Allocator {
  c10::DataPtr allocate(size_t bytes) override {
    auto memory = c10::GetCPUAllocator()->allocate(bytes);
    auto* data = memory.get();
    auto* context = memory.release_context();
    return {data, context, c10::GetCPUAllocator()->raw_deleter(), kDevice};
  }
  c10::DeleterFnPtr raw_deleter() const override {
    return c10::GetCPUAllocator()->raw_deleter();
  }
  void copy_data(void* to, const void* from, size_t bytes) const override {
    default_copy_data(to, from, bytes);
  }
};
Allocator allocator;
REGISTER_ALLOCATOR(kType, &allocator);

// one device, one stream, no events to wait for
struct Guard final : c10::impl::DeviceGuardImplInterface {
  DeviceType type() const override { return kType; }
  Device exchangeDevice(Device) const override { return kDevice; }
  Device getDevice() const override { return kDevice; }
  void setDevice(Device) const override {}
  void uncheckedSetDevice(Device) const noexcept override {}
  c10::Stream stream() const { return c10::Stream(c10::Stream::DEFAULT, kDevice); }
  c10::Stream getStream(Device) const override { return stream(); }
  c10::Stream getDefaultStream(Device) const override { return stream(); }
  c10::Stream exchangeStream(c10::Stream) const override { return stream(); }
  DeviceIndex deviceCount() const noexcept override { return 1; }
  void record(void**, const c10::Stream&, const DeviceIndex, const c10::EventFlag) const override {}
  void block(void*, const c10::Stream&) const override {}
  bool queryEvent(void*) const override { return true; }
};
C10_REGISTER_GUARD_IMPL(PrivateUse1, Guard);

struct Generator final : c10::GeneratorImpl {
  at::Generator host;
  explicit Generator(at::Generator source)
      : c10::GeneratorImpl(kDevice, DispatchKeySet(DispatchKey::PrivateUse1)), host(std::move(source)) {}
  void set_current_seed(uint64_t seed) override { host.set_current_seed(seed); }
  void set_offset(uint64_t offset) override { host.set_offset(offset); }
  uint64_t get_offset() const override { return host.get_offset(); }
  uint64_t current_seed() const override { return host.current_seed(); }
  uint64_t seed() override { return host.seed(); }
  void set_state(const c10::TensorImpl& state) override { host.unsafeGetGeneratorImpl()->set_state(state); }
  c10::intrusive_ptr<c10::TensorImpl> get_state() const override {
    return host.unsafeGetGeneratorImpl()->get_state();
  }
  Generator* clone_impl() const override { return new Generator(host.clone()); }
};

struct Hooks final : at::PrivateUse1HooksInterface {
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(DeviceIndex) const override { return true; }
  DeviceIndex deviceCount() const override { return 1; }
  DeviceIndex getCurrentDevice() const override { return 0; }
  void setCurrentDevice(DeviceIndex) const override {}
  DeviceIndex exchangeDevice(DeviceIndex) const override { return 0; }
  DeviceIndex maybeExchangeDevice(DeviceIndex) const override { return 0; }
  Device getDeviceFromPtr(void*) const override { return kDevice; }
  const at::Generator& getDefaultGenerator(DeviceIndex) const override {
    static at::Generator own = at::make_generator<Generator>(at::detail::createCPUGenerator());
    return own;
  }
  at::Generator getNewGenerator(DeviceIndex) const override {
    return at::make_generator<Generator>(at::detail::createCPUGenerator());
  }
};

// a tensor over the same memory, on another device; what it is made of lives as long as it does
Tensor over(const Tensor& x, Device device, DispatchKey key) {
  const auto& storage = x.storage();
  auto* owner = new c10::Storage(storage);
  auto drop = [](void* held) { delete static_cast<c10::Storage*>(held); };
  c10::DataPtr memory(storage.mutable_data(), owner, drop, device);
  c10::Storage other(c10::Storage::use_byte_size_t(), storage.nbytes(), std::move(memory), nullptr, false);
  auto result = at::detail::make_tensor<c10::TensorImpl>(std::move(other), DispatchKeySet(key), x.dtype());
  auto* impl = result.unsafeGetTensorImpl();
  impl->set_sizes_and_strides(x.sizes(), x.strides());
  impl->set_storage_offset(x.storage_offset());
  impl->_set_conj(x.is_conj());
  impl->_set_neg(x.is_neg());
  return result;
}

Tensor to_host(const Tensor& x) { return over(x, c10::kCPU, DispatchKey::CPU); }

// the same values as a tensor of the device, and a view of the argument whose memory it lies in
Tensor to_device(const Tensor& x, const std::vector<Tensor>& arguments) {
  auto result = over(x, kDevice, DispatchKey::PrivateUse1);
  const auto* data = static_cast<const char*>(x.storage().data());
  for (const auto& argument : arguments) {
    if (data != nullptr && data == static_cast<const char*>(argument.storage().data())) {
      result.unsafeGetTensorImpl()->set_storage_keep_dtype(argument.storage());
      break;
    }
  }
  return result;
}

struct Call {
  const std::string& name;
  bool has_device_tensor = false;
  const Tensor* foreign = nullptr; // a tensor of the CPU that is no number
  std::vector<Tensor> originals, hosts;

  Tensor argument(const Tensor& x, bool in_list) {
    if (!x.defined()) return x;
    if (x.device().type() == kType) {
      has_device_tensor = true;
      for (size_t i = 0; i < originals.size(); ++i)
        if (originals[i].is_same(x)) return hosts[i];
      // an empty one may be there to be made larger
      hosts.push_back(x.numel() == 0 ? at::empty(x.sizes(), x.options().device(c10::kCPU)) : to_host(x));
      originals.push_back(x);
      return hosts.back();
    }
    if (x.dim() > 0 || in_list) foreign = &x;
    return x;
  }

  Tensor result(const Tensor& x) {
    if (!x.defined()) return x;
    for (size_t i = 0; i < hosts.size(); ++i)
      if (hosts[i].is_same(x)) return originals[i];
    return to_device(x, originals);
  }
};

void run_on_host(const c10::OperatorHandle& op, DispatchKeySet, torch::jit::Stack* stack) {
  const auto& schema = op.schema();
  const auto first = stack->size() - schema.arguments().size();
  Call call{schema.name()};
  bool to_other = false;
  for (auto i = first; i < stack->size(); ++i) {
    auto& value = (*stack)[i];
    if (value.isTensor()) {
      value = call.argument(value.toTensor(), false);
    } else if (value.isTensorList()) {
      auto list = value.toTensorVector();
      for (auto& x : list) x = call.argument(x, true);
      value = c10::List<Tensor>(list);
    } else if (value.isOptionalTensorList()) {
      c10::List<std::optional<Tensor>> list;
      // indices may be on the CPU, as on CUDA
      for (const std::optional<Tensor>& x : value.toOptionalTensorVector())
        list.push_back(x.has_value() && !x->is_cpu() ? std::optional<Tensor>(call.argument(*x, true)) : x);
      value = std::move(list);
    } else if (value.isDevice() && value.toDevice().type() == kType) {
      value = Device(c10::kCPU);
    } else if (value.isGenerator()) {
      auto* own = dynamic_cast<Generator*>(value.toGenerator().unsafeGetGeneratorImpl());
      TORCH_CHECK(own, schema.name(), ": expected a generator on ", kDevice, ", got one on the CPU");
      value = own->host;
    }
  }
  TORCH_CHECK(
      !(call.has_device_tensor && call.foreign),
      schema.name(), ": expected all tensors to be on the same device, but found at least two devices, ", kDevice,
      " and cpu");
  op.redispatchBoxed(DispatchKeySet(DispatchKey::CPU), stack);
  for (size_t i = 0; i < call.hosts.size(); ++i) {
    if (call.originals[i].sizes() != call.hosts[i].sizes()) { // an output that was made larger
      auto grown = to_device(call.hosts[i], {});
      auto* impl = call.originals[i].unsafeGetTensorImpl();
      impl->set_storage_keep_dtype(grown.storage());
      impl->set_sizes_and_strides(grown.sizes(), grown.strides());
      impl->set_storage_offset(grown.storage_offset());
    }
  }
  for (auto i = stack->size() - schema.returns().size(); i < stack->size(); ++i) {
    auto& value = (*stack)[i];
    if (value.isTensor()) {
      value = call.result(value.toTensor());
    } else if (value.isTensorList()) {
      auto list = value.toTensorVector();
      for (auto& x : list) x = call.result(x);
      value = c10::List<Tensor>(list);
    }
  }
}

Tensor empty(
    c10::IntArrayRef size, std::optional<c10::ScalarType> dtype, std::optional<c10::Layout>, std::optional<Device>,
    std::optional<bool>, std::optional<c10::MemoryFormat> format) {
  return at::detail::empty_generic(
      size, &allocator, DispatchKeySet(DispatchKey::PrivateUse1), c10::dtype_or_default(dtype), format);
}

Tensor empty_strided(
    c10::IntArrayRef size, c10::IntArrayRef stride, std::optional<c10::ScalarType> dtype, std::optional<c10::Layout>,
    std::optional<Device>, std::optional<bool>) {
  return at::detail::empty_strided_generic(
      size, stride, &allocator, DispatchKeySet(DispatchKey::PrivateUse1), c10::dtype_or_default(dtype));
}

// zeros that need no memory, of which forward mode makes use
struct NoMemory final : c10::Allocator {
  c10::DataPtr allocate(size_t) override { return {nullptr, nullptr, [](void*) {}, kDevice}; }
  void copy_data(void*, const void*, size_t) const override { TORCH_INTERNAL_ASSERT(false); }
};

Tensor efficient_zeros(
    c10::IntArrayRef size, std::optional<c10::ScalarType> dtype, std::optional<c10::Layout>, std::optional<Device>,
    std::optional<bool>) {
  static NoMemory none;
  const auto keys = DispatchKeySet(DispatchKey::PrivateUse1) | DispatchKeySet(DispatchKey::ZeroTensor);
  return at::detail::empty_generic(size, &none, keys, c10::dtype_or_default(dtype), std::nullopt);
}

Tensor on_host(const Tensor& x) { return x.device().type() == kType ? to_host(x) : x; }

Tensor copy_from(const Tensor& self, const Tensor& target, bool) {
  on_host(target).copy_(on_host(self));
  return target;
}

Tensor copy_from_and_resize(const Tensor& self, const Tensor& target) {
  if (target.sizes() != self.sizes()) at::native::resize_(target, self.sizes(), std::nullopt);
  return copy_from(self, target, false);
}

Tensor convolution(
    const Tensor& input, const Tensor& weight, const std::optional<Tensor>& bias, c10::SymIntArrayRef stride,
    c10::SymIntArrayRef padding, c10::SymIntArrayRef dilation, bool transposed, c10::SymIntArrayRef output_padding,
    c10::SymInt groups) {
  std::optional<Tensor> own = bias.has_value() && bias->defined() ? std::optional<Tensor>(to_host(*bias)) : std::nullopt;
  return to_device(
      at::convolution_symint(
          to_host(input), to_host(weight), own, stride, padding, dilation, transposed, output_padding, groups),
      {});
}

std::tuple<Tensor, Tensor, Tensor> convolution_backward(
    const Tensor& gradient, const Tensor& input, const Tensor& weight, c10::SymIntArrayRef stride,
    c10::SymIntArrayRef padding, c10::SymIntArrayRef dilation, bool transposed, c10::SymIntArrayRef output_padding,
    c10::SymInt groups, std::array<bool, 3> mask) {
  const c10::SymInt features = gradient.sym_size(1);
  auto [x, w, b] = at::convolution_backward_symint(
      to_host(gradient), to_host(input), to_host(weight), c10::SymIntArrayRef(&features, 1), stride, padding, dilation,
      transposed, output_padding, groups, mask);
  auto out = [](const Tensor& t) { return t.defined() ? to_device(t, {}) : t; };
  return {out(x), out(w), out(b)};
}

TORCH_LIBRARY_IMPL(_, PrivateUse1, m) {
  m.fallback(torch::CppFunction::makeFromBoxedFunction<&run_on_host>());
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("empty.memory_format", TORCH_FN(empty));
  m.impl("empty_strided", TORCH_FN(empty_strided));
  m.impl("_efficientzerotensor", TORCH_FN(efficient_zeros));
  m.impl("_copy_from", TORCH_FN(copy_from));
  m.impl("_copy_from_and_resize", TORCH_FN(copy_from_and_resize));
  m.impl("as_strided", TORCH_FN(at::native::as_strided_tensorimpl));
  m.impl("view", TORCH_FN(at::native::view));
  m.impl("_reshape_alias", TORCH_FN(at::native::_reshape_alias));
  m.impl("unfold", TORCH_FN(at::native::unfold));
  m.impl("resize_", TORCH_FN(at::native::resize_));
  m.impl("set_.source_Storage_storage_offset", TORCH_FN(at::native::set_storage_cpu_));
  m.impl("set_.source_Tensor", TORCH_FN(at::native::set_tensor_));
  m.impl("set_.source_Storage", TORCH_FN(at::native::set_));
  m.impl("convolution_overrideable", TORCH_FN(convolution));
  m.impl("convolution_backward_overrideable", TORCH_FN(convolution_backward));
}

// networks are in full precision under autocast
TORCH_LIBRARY_IMPL(_, AutocastPrivateUse1, m) {
  m.fallback(torch::CppFunction::makeFallthrough());
}

// a copy takes conjugates and negatives as they are, for they are resolved by a copy
TORCH_LIBRARY_IMPL(aten, Conjugate, m) {
  m.impl("_copy_from", torch::CppFunction::makeFallthrough());
}

TORCH_LIBRARY_IMPL(aten, Negative, m) {
  m.impl("_copy_from", torch::CppFunction::makeFallthrough());
}

struct Registration {
  Registration() { at::RegisterPrivateUse1HooksInterface(new Hooks()); }
} registration;

} // namespace
