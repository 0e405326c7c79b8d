// What torch asks of a GPU's driver outside its operations. There is one GPU, and all its work is done at once.

#include <ATen/detail/CUDAHooksInterface.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

namespace {

using c10::Device;
using c10::DeviceIndex;
using c10::DeviceType;
using c10::Stream;

const Device GPU(DeviceType::CUDA, 0);

struct Guard : c10::impl::DeviceGuardImplInterface {
    DeviceType type() const override { return DeviceType::CUDA; }
    DeviceIndex deviceCount() const noexcept override { return 1; }
    Device getDevice() const override { return GPU; }
    Device exchangeDevice(Device) const override { return GPU; }
    void setDevice(Device) const override {}
    void uncheckedSetDevice(Device) const noexcept override {}
    Stream getStream(Device) const noexcept override { return Stream(Stream::DEFAULT, GPU); }
    Stream getNewStream(Device, int) const override { return Stream(Stream::DEFAULT, GPU); }
    Stream exchangeStream(Stream) const noexcept override { return Stream(Stream::DEFAULT, GPU); }
    bool queryStream(const Stream&) const override { return true; }
    void synchronizeStream(const Stream&) const override {}
    void record(void**, const Stream&, const DeviceIndex, const c10::EventFlag) const override {}
    void block(void*, const Stream&) const override {}
    bool queryEvent(void*) const override { return true; }
    void destroyEvent(void*, const DeviceIndex) const noexcept override {}
};

Guard guard;

struct Registration {
    Registration() { c10::impl::device_guard_impl_registry[static_cast<size_t>(DeviceType::CUDA)].store(&guard); }
} registration;

}  // namespace

namespace at {

struct CUDAHooks : CUDAHooksInterface {
    explicit CUDAHooks(CUDAHooksArgs) {}
    void init() const override {}
    bool hasCUDA() const override { return true; }
    bool isBuilt() const override { return true; }
    bool isAvailable() const override { return true; }
    bool hasPrimaryContext(DeviceIndex) const override { return true; }
    DeviceIndex deviceCount() const override { return 1; }
    DeviceIndex current_device() const override { return 0; }
    DeviceIndex getCurrentDevice() const override { return 0; }
    DeviceIndex exchangeDevice(DeviceIndex) const override { return 0; }
    DeviceIndex maybeExchangeDevice(DeviceIndex) const override { return 0; }
    void setCurrentDevice(DeviceIndex) const override {}
    void deviceSynchronize(DeviceIndex) const override {}
};

REGISTER_CUDA_HOOKS(CUDAHooks)

}  // namespace at
