//! Work of the compute queue, captured once and replayed.

use super::calls::driver::{self as sys, CUstreamCaptureMode_enum as CaptureMode};
use super::driver::check;
use super::errors::Failed;
use crate::CapturedGraph;

/// What was captured in a context. Dropped before the modules whose kernels it calls, and before the context.
#[derive(Default)]
pub(super) struct Graphs {
    executables: Vec<sys::CUgraphExec>,
}

impl Graphs {
    pub(super) fn begin(&mut self, stream: sys::CUstream) -> Result<(), Failed> {
        // Only what this thread enqueues matters: no other uses the context.
        let mode = CaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
        // SAFETY: the stream lives.
        check("cuStreamBeginCapture", unsafe { sys::cuStreamBeginCapture_v2(stream, mode) })
    }

    pub(super) fn end(&mut self, stream: sys::CUstream) -> Result<CapturedGraph, Failed> {
        let mut graph = std::ptr::null_mut();
        // SAFETY: the stream lives, and is being captured.
        check("cuStreamEndCapture", unsafe { sys::cuStreamEndCapture(stream, &mut graph) })?;
        let mut executable = std::ptr::null_mut();
        // SAFETY: the graph was just made.
        let made = unsafe { sys::cuGraphInstantiateWithFlags(&mut executable, graph, 0) };
        // SAFETY: what is executed holds a copy of its own.
        let destroyed = unsafe { sys::cuGraphDestroy(graph) };
        check("cuGraphInstantiate", made)?;
        check("cuGraphDestroy", destroyed)?;
        self.executables.push(executable);
        Ok(CapturedGraph(self.executables.len() as u32 - 1))
    }

    /// Panics on a graph that this device did not make.
    pub(super) fn replay(&mut self, graph: CapturedGraph, stream: sys::CUstream) -> Result<(), Failed> {
        let executable = self.executables[graph.0 as usize];
        // SAFETY: both live.
        check("cuGraphLaunch", unsafe { sys::cuGraphLaunch(executable, stream) })
    }
}

impl Drop for Graphs {
    fn drop(&mut self) {
        for executable in &self.executables {
            // What a lost context no longer has cannot be destroyed, and need not be.
            // SAFETY: created once, destroyed once.
            let _ = unsafe { sys::cuGraphExecDestroy(*executable) };
        }
    }
}
