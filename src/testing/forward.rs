//! Devices around another one, for tests of what it is asked for.

/// What such a device leaves to the one in its field `device`, by the methods' names.
macro_rules! forward {
    (target) => {
        fn target(&self) -> &$crate::device::Target {
            self.device.target()
        }
    };
    (launch) => {
        fn launch(
            &mut self,
            op: &$crate::ops::Op,
            inputs: &[$crate::device::Tensor],
            outputs: &[$crate::device::Tensor],
            workspace: Option<$crate::device::Region>,
        ) -> Result<(), $crate::device::DeviceError> {
            self.device.launch(op, inputs, outputs, workspace)
        }
    };
    (lend) => {
        fn lend(
            &mut self,
            region: $crate::device::Region,
        ) -> Result<$crate::device::Lent, $crate::device::DeviceError> {
            self.device.lend(region)
        }
    };
    (free) => { forward! { free(buffer: $crate::device::Buffer) } };
    (copy) => {
        forward! {
            copy(queue: $crate::device::Queue, from: $crate::device::Region, to: $crate::device::Region)
        }
    };
    (record) => { forward! { record(queue: $crate::device::Queue, event: $crate::device::Event) } };
    (wait) => { forward! { wait(queue: $crate::device::Queue, event: $crate::device::Event) } };
    (synchronize) => { forward! { synchronize() } };
    (poison) => { forward! { poison(region: $crate::device::Region) } };
    (write) => { forward! { write(region: $crate::device::Region, bytes: &[u8]) } };
    (read) => { forward! { read(region: $crate::device::Region, bytes: &mut [u8]) } };
    ($method:ident($($argument:ident: $type:ty),*)) => {
        fn $method(&mut self, $($argument: $type),*) -> Result<(), $crate::device::DeviceError> {
            self.device.$method($($argument),*)
        }
    };
    ($($method:ident),+) => { $(forward! { $method })+ };
}
pub(crate) use forward;
