//! CUDA graphs: work of the compute queue, captured once and replayed.

use super::calls::driver::{self as sys, CUstreamCaptureMode_enum as CaptureMode};
use super::driver::check;
use super::errors::CallError;
use crate::CapturedGraph;

/// Captured graphs of a context. Dropped before the modules whose kernels they call, and before the context.
#[derive(Default)]
pub(super) struct Graphs {
    executables: Vec<sys::CUgraphExec>,
}

impl Graphs {
    pub(super) fn begin(&mut self, stream: sys::CUstream) -> Result<(), CallError> {
        // Only this thread uses the context.
        let mode = CaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
        // SAFETY: the stream is live.
        check("cuStreamBeginCapture", unsafe { sys::cuStreamBeginCapture_v2(stream, mode) })
    }

    pub(super) fn end(&mut self, stream: sys::CUstream) -> Result<CapturedGraph, CallError> {
        let mut graph = std::ptr::null_mut();
        // SAFETY: the stream is live and captured.
        check("cuStreamEndCapture", unsafe { sys::cuStreamEndCapture(stream, &mut graph) })?;
        let mut executable = std::ptr::null_mut();
        // SAFETY: the graph was just created.
        let made = unsafe { sys::cuGraphInstantiateWithFlags(&mut executable, graph, 0) };
        // SAFETY: the executable graph has its own copy.
        let destroyed = unsafe { sys::cuGraphDestroy(graph) };
        check("cuGraphInstantiate", made)?;
        check("cuGraphDestroy", destroyed)?;
        self.executables.push(executable);
        Ok(CapturedGraph(self.executables.len() as u32 - 1))
    }

    /// Panics on a graph of another device.
    pub(super) fn replay(&mut self, graph: CapturedGraph, stream: sys::CUstream) -> Result<(), CallError> {
        let executable = self.executables[graph.0 as usize];
        // SAFETY: both are live.
        check("cuGraphLaunch", unsafe { sys::cuGraphLaunch(executable, stream) })
    }
}

impl Drop for Graphs {
    fn drop(&mut self) {
        for executable in &self.executables {
            // A lost context has already destroyed it; errors are ignored.
            // SAFETY: created once, destroyed once.
            let _ = unsafe { sys::cuGraphExecDestroy(*executable) };
        }
    }
}
