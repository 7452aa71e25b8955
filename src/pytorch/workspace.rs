//! The workspaces of matrix products.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;

use crate::rules::Workspaces;
use crate::sequence::Purpose;
use crate::tensor::Storage;
use crate::torch::Torch;

/// cuBLASLt's workspace.
const CUBLASLT: u64 = 1 << 20;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Library {
    Cublas,
    CublasLt,
}

/// PyTorch's threads have handles of cuBLAS of their own.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
enum Thread {
    #[default]
    Main,
    Backward,
}

/// The running thread, and the workspaces that threads keep.
#[derive(Debug, Default)]
pub(crate) struct Threads {
    running: Cell<Thread>,
    kept: RefCell<BTreeMap<(Thread, Library), Rc<Storage>>>,
}

impl Torch {
    /// Runs a function in the thread of autograd's engine.
    pub(crate) fn in_backward_thread<T>(&self, run: impl FnOnce() -> T) -> T {
        let before = self.threads.running.replace(Thread::Backward);
        let value = run();
        self.threads.running.set(before);
        value
    }

    /// The workspace of a product by cuBLAS.
    pub(crate) fn cublas_workspace(&self) {
        match self.rules.workspaces {
            Workspaces::Requested => self.scratch(self.card.cublas_workspace()),
            Workspaces::Kept | Workspaces::CublasKept => {
                self.keep(Library::Cublas, self.card.cublas_workspace());
            }
        }
    }

    /// The workspace of a product by cuBLASLt. Its handle is that of cuBLAS, whose workspace exists with it.
    pub(crate) fn cublaslt_workspace(&self) {
        match self.rules.workspaces {
            Workspaces::Requested => self.scratch(CUBLASLT),
            Workspaces::Kept => {
                self.cublas_workspace();
                self.keep(Library::CublasLt, CUBLASLT);
            }
            Workspaces::CublasKept => {
                let own = self.with_purpose(Purpose::Workspace, || self.storage(CUBLASLT));
                self.cublas_workspace();
                drop(own);
            }
        }
    }

    /// Requests a workspace unless this thread has it.
    fn keep(&self, library: Library, bytes: u64) {
        let Threads { running, kept } = &self.threads;
        let key = (running.get(), library);
        let is_reached = !self.stopped.get();
        if is_reached && !kept.borrow().contains_key(&key) {
            let workspace = self.with_purpose(Purpose::Workspace, || self.storage(bytes));
            kept.borrow_mut().insert(key, workspace);
        }
    }
}
