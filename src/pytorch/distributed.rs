//! `DistributedDataParallel` on one of several ranks: copies of all gradients in buckets that the ranks sum, and what the
//! wrapper exchanges at its start.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use crate::coverage::NotCovered;
use crate::network::Network;
use crate::sequence::Purpose;
use crate::tensor::{DType, Hook, Tensor};
use crate::torch::Torch;

/// Bytes from which the first bucket is full (`dist._DEFAULT_FIRST_BUCKET_BYTES`), and each other one (`bucket_cap_mb`).
const BUCKET_LIMITS: [u64; 2] = [1 << 20, 25 << 20];

/// Bytes from which a broadcast is full (`broadcast_bucket_size`).
const BROADCAST_LIMIT: u64 = 250 << 20;

/// The wrapper of a model.
pub(crate) struct DistributedDataParallel {
    /// The trained parameters.
    parameters: Vec<Tensor>,
    /// In the order of `named_buffers`.
    buffers: Vec<Tensor>,
    /// Copies of all gradients, one or more in each.
    buckets: RefCell<Vec<Tensor>>,
    hooks: Rc<Hooks>,
    /// Whether the next forward pass broadcasts the buffers (`require_forward_param_sync`).
    broadcasts_buffers: Cell<bool>,
    /// Whether the ranks sum the gradients of the next backward pass; otherwise it is under `no_sync()`.
    sums: Cell<bool>,
}

/// The hooks of the trained parameters.
#[derive(Default)]
struct Hooks {
    /// Whether the ranks sum the gradients of the current backward pass.
    sums: Cell<bool>,
    /// Whether the buckets have the order of the gradients.
    has_rebuilt: Cell<bool>,
    /// Until then: parameters in the order of their gradients in the first backward pass that sums them.
    arrived: RefCell<Vec<usize>>,
}

impl DistributedDataParallel {
    /// Wraps a model that this number of ranks train.
    ///
    /// # Errors
    /// Trained parameters of several dtypes.
    pub(crate) fn new(
        torch: &Torch,
        network: &dyn Network,
        ranks: usize,
    ) -> Result<DistributedDataParallel, NotCovered> {
        let states = network.parameters();
        let parameters: Vec<Tensor> =
            states.iter().filter(|parameter| parameter.requires_grad()).cloned().collect();
        if parameters.iter().any(|parameter| parameter.dtype() != parameters[0].dtype()) {
            // The order of the last buckets of each dtype is that of a hash table.
            let reason = "trained parameters of several dtypes on several ranks (parallel.data)";
            return Err(NotCovered(reason.to_owned()));
        }
        let (buffers, hooks) = (network.buffers(), Rc::<Hooks>::default());
        for (index, parameter) in parameters.iter().enumerate() {
            let hooks = Rc::clone(&hooks);
            parameter.set_hook(Hook(Rc::new(move |_, _| hooks.receive(index))));
        }
        let buckets = torch.with_purpose(Purpose::Communication, || {
            verify(torch, &parameters, ranks);
            broadcast(torch, &[states, buffers.clone()].concat());
            // One bucket until the order of gradients is known.
            vec![bucket(torch, &parameters)]
        });
        Ok(DistributedDataParallel {
            parameters,
            buffers,
            buckets: RefCell::new(buckets),
            hooks,
            broadcasts_buffers: Cell::new(true),
            sums: Cell::new(true),
        })
    }

    /// Whether the ranks sum the gradients of the next backward pass.
    pub(crate) fn set_sums(&self, sums: bool) {
        self.sums.set(sums);
    }

    /// `forward` of the wrapper around that of the model, in training.
    pub(crate) fn forward<T>(&self, torch: &Torch, forward: impl FnOnce() -> T) -> T {
        torch.with_purpose(Purpose::Communication, || {
            self.rebuild(torch);
            if self.broadcasts_buffers.get() {
                broadcast(torch, &self.buffers);
            }
        });
        let output = forward();
        self.broadcasts_buffers.set(self.sums.get());
        self.hooks.sums.set(self.sums.get());
        output
    }

    /// Orders the buckets as gradients arrived in the first backward pass. The ranks take over the order of rank 0: the index
    /// of each parameter and the number of buckets, and then the number of parameters of each bucket, i32.
    fn rebuild(&self, torch: &Torch) {
        let arrived = self.hooks.arrived.take();
        if arrived.is_empty() {
            return;
        }
        let ordered: Vec<Tensor> = arrived.iter().map(|&index| self.parameters[index].clone()).collect();
        let buckets = assign(&ordered, &BUCKET_LIMITS);
        {
            let i32s = |count: usize| torch.bytes(4 * count);
            let _indices = i32s(ordered.len() + 1);
            let _sizes = i32s(buckets.len());
        }
        self.buckets.borrow_mut().clear();
        let made = buckets.iter().map(|members| bucket(torch, members)).collect();
        self.buckets.replace(made);
        self.hooks.has_rebuilt.set(true);
    }
}

impl Hooks {
    fn receive(&self, parameter: usize) {
        if self.sums.get() && !self.has_rebuilt.get() {
            self.arrived.borrow_mut().push(parameter);
        }
    }
}

/// A flat copy of gradients.
fn bucket(torch: &Torch, members: &[Tensor]) -> Tensor {
    let elements = members.iter().map(Tensor::elements).sum();
    torch.empty(&[elements], members[0].dtype())
}

/// Divides tensors into groups of one dtype. A group is full once it has as many bytes as its limit; the last limit is that
/// of all further groups. Returns full groups in the order in which they were filled, then the others.
fn assign(tensors: &[Tensor], limits: &[u64]) -> Vec<Vec<Tensor>> {
    struct Open {
        dtype: DType,
        members: Vec<Tensor>,
        bytes: u64,
        full: usize,
    }
    let (mut groups, mut open): (Vec<Vec<Tensor>>, Vec<Open>) = (Vec::new(), Vec::new());
    for tensor in tensors {
        let dtype = tensor.dtype();
        let index = open.iter().position(|group| group.dtype == dtype).unwrap_or_else(|| {
            open.push(Open { dtype, members: Vec::new(), bytes: 0, full: 0 });
            open.len() - 1
        });
        let group = &mut open[index];
        group.members.push(tensor.clone());
        group.bytes += bytes_of(tensor);
        if group.bytes >= limits[group.full.min(limits.len() - 1)] {
            groups.push(std::mem::take(&mut group.members));
            (group.bytes, group.full) = (0, group.full + 1);
        }
    }
    groups.extend(open.into_iter().map(|group| group.members).filter(|members| !members.is_empty()));
    groups
}

fn bytes_of(tensor: &Tensor) -> u64 {
    tensor.elements() as u64 * tensor.dtype().bytes()
}

/// Compares the parameters of all ranks: their number, i64 of each rank, and their sizes and strides.
fn verify(torch: &Torch, parameters: &[Tensor], ranks: usize) {
    let own = torch.empty(&[1], DType::I64);
    let all: Vec<Tensor> = (0..ranks).map(|_| torch.empty(&[1], DType::I64)).collect();
    let dimensions: usize = parameters.iter().map(|parameter| parameter.shape().dims().len()).sum();
    let sizes = torch.empty(&[2 * dimensions], DType::I64);
    drop((own, all, sizes));
}

/// `dist._broadcast_coalesced`: sends flat copies of tensors, of which at most two live at a time. A single tensor needs none.
fn broadcast(torch: &Torch, tensors: &[Tensor]) {
    let first = |group: &Vec<Tensor>| {
        let id = group[0].id();
        tensors.iter().position(|tensor| tensor.id() == id)
    };
    let mut groups = assign(tensors, &[BROADCAST_LIMIT]);
    groups.sort_by_key(first);
    let mut in_flight: [Option<Tensor>; 2] = [None, None];
    for group in &groups {
        let [oldest, newest] = in_flight;
        drop(oldest);
        let flat = (group.len() > 1).then(|| bucket(torch, group));
        in_flight = [newest, flat];
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::card::Card;
    use crate::rules;
    use spec::{TorchOptions, TorchVersion};

    #[test]
    fn groups_are_full_at_their_limit_and_have_one_dtype() {
        let card = Card::named("NVIDIA A100-SXM4-80GB").expect("a known card");
        let torch = Torch::new(card, rules::of(TorchVersion::default()), TorchOptions::default());
        let tensor = |elements: usize, dtype| torch.empty(&[elements], dtype);
        let tensors = [
            tensor(2, DType::F32),
            tensor(3, DType::BF16),
            tensor(2, DType::F32),
            tensor(1, DType::F32),
            tensor(6, DType::F32),
            tensor(7, DType::BF16),
            tensor(1, DType::F32),
        ];
        let sizes = |limits: &[u64]| -> Vec<Vec<usize>> {
            let elements = |group: Vec<Tensor>| group.iter().map(Tensor::elements).collect();
            assign(&tensors, limits).into_iter().map(elements).collect()
        };
        assert_eq!(sizes(&[16, 28]), [vec![2, 2], vec![1, 6], vec![3, 7], vec![1]]);
        assert_eq!(sizes(&[u64::MAX]), [vec![2, 2, 1, 6, 1], vec![3, 7]]);
    }
}
