//! Creation and destruction of a device, on a card or on the emulated stack.

use std::ffi::{c_int, c_uint};

use libloading::os::unix::Library;

use super::{CudaDevice, equip};
use crate::{Device, Pool, Tensor};
use base::units::Bytes;
use ops::{Add, Op, TensorType};

fn device() -> CudaDevice {
    let target = equip(0).expect("a card, or the emulated stack: run tests/cuda.sh").target(Bytes(0));
    CudaDevice::new(target, 0).expect("a usable device")
}

/// Creating a context takes up to a second, and tests open the device hundreds of times.
#[test]
#[ignore = "needs a card or the emulated stack: tests/cuda.sh"]
fn the_context_outlives_the_device() {
    type GetState = unsafe extern "C" fn(c_int, *mut c_uint, *mut c_int) -> c_uint;
    let ordinal = device().context.device;
    let (mut flags, mut active) = (0, 0);
    // SAFETY: the driver is loaded and initialised, and declares the function with this type; the device is valid.
    let status = unsafe {
        let driver = Library::new("libcuda.so.1").expect("the driver is loaded");
        let get_state =
            driver.get::<GetState>(b"cuDevicePrimaryCtxGetState").expect("the driver has the function");
        get_state(ordinal, &mut flags, &mut active)
    };
    assert_eq!((status, active), (0, 1));
}

/// The emulated driver aborts a process that unloads a module while a graph still calls its kernels.
#[test]
#[ignore = "needs a card or the emulated stack: tests/cuda.sh"]
fn graphs_are_destroyed_before_their_modules() {
    let mut device = device();
    let ty = TensorType::f32(&[64]);
    let [a, b, sum] = [0, 1, 2].map(|_| {
        let buffer = device.allocate(Pool::Device, ty.bytes()).expect("memory");
        Tensor { buffer, offset: 0, ty }
    });
    device.begin_capture().expect("a capture");
    device.launch(&Op::Add(Add::PLAIN), &[a, b], &[sum], None).expect("a launch");
    let graph = device.end_capture().expect("a graph");
    device.replay(graph).expect("a replay");
}
