//! Wrappers around a device, for tests that observe its calls.

/// Implements the named methods by delegation to the field `device`.
#[macro_export]
macro_rules! forward {
    (target) => {
        fn target(&self) -> &::device::Target {
            self.device.target()
        }
    };
    (launch) => {
        fn launch(
            &mut self,
            op: &::ops::Op,
            inputs: &[::device::Tensor],
            outputs: &[::device::Tensor],
            workspace: Option<::device::Region>,
        ) -> Result<(), ::device::DeviceError> {
            self.device.launch(op, inputs, outputs, workspace)
        }
    };
    (lend) => {
        fn lend(
            &mut self,
            region: ::device::Region,
        ) -> Result<::device::HostSlice, ::device::DeviceError> {
            self.device.lend(region)
        }
    };
    (free) => { forward! { free(buffer: ::device::Buffer) } };
    (copy) => {
        forward! {
            copy(queue: ::device::Queue, from: ::device::Region, to: ::device::Region)
        }
    };
    (record) => { forward! { record(queue: ::device::Queue, event: ::device::Event) } };
    (wait) => { forward! { wait(queue: ::device::Queue, event: ::device::Event) } };
    (synchronize) => { forward! { synchronize() } };
    (poison) => { forward! { poison(region: ::device::Region) } };
    (write) => { forward! { write(region: ::device::Region, bytes: &[u8]) } };
    (read) => { forward! { read(region: ::device::Region, bytes: &mut [u8]) } };
    ($method:ident($($argument:ident: $type:ty),*)) => {
        fn $method(&mut self, $($argument: $type),*) -> Result<(), ::device::DeviceError> {
            self.device.$method($($argument),*)
        }
    };
    ($($method:ident),+) => { $(forward! { $method })+ };
}
