//! `torch.optim.Adafactor`: the temporaries of a step. R rows, C columns.

use crate::functions::{matmul_output, mean_of_rows, norm_of_all, norm_of_columns, norm_of_rows};
use crate::tensor::Tensor;
use crate::torch::Torch;

/// The variables of the loop over parameters hold a parameter's tensors until the next one's replace them.
pub(super) fn for_loop(torch: &Torch, parameters: &[Tensor]) {
    let [mut row_mean, mut column_mean, mut squared, mut update] = [const { None }; 4];
    for parameter in parameters {
        drop(norm_of_all(torch, parameter));
        let variances = match is_matrix(parameter) {
            true => {
                row_mean = Some(norm_of_rows(torch, parameter));
                column_mean = Some(norm_of_columns(torch, parameter));
                let variances = row_times_column(torch, parameter);
                drop(mean_of_rows(torch, parameter));
                variances
            }
            false => {
                squared = Some(torch.like(parameter));
                torch.like(parameter)
            }
        };
        // Also the variable of the variances, in place.
        let current = update.insert(variances);
        drop(norm_of_all(torch, current));
    }
    drop((row_mean, column_mean, squared, update));
}

/// Matrices and vectors are groups of their own, in the order of their first parameters. A group's updates live until the next
/// group's replace them.
pub(super) fn foreach(torch: &Torch, parameters: &[Tensor]) {
    let (matrices, vectors): (Vec<&Tensor>, Vec<&Tensor>) =
        parameters.iter().partition(|parameter| is_matrix(parameter));
    let first_is_matrix = parameters.first().is_some_and(is_matrix);
    let groups = if first_is_matrix { [matrices, vectors] } else { [vectors, matrices] };
    let mut updates = Vec::new();
    for group in groups.into_iter().filter(|group| !group.is_empty()) {
        let each = |made: fn(&Torch, &Tensor) -> Tensor| -> Vec<Tensor> {
            group.iter().map(|parameter| made(torch, parameter)).collect()
        };
        group.iter().for_each(|parameter| drop(norm_of_all(torch, parameter)));
        let variances = match is_matrix(group[0]) {
            true => {
                drop(each(norm_of_rows));
                drop(each(norm_of_columns));
                let variances = each(row_times_column);
                drop(each(mean_of_rows));
                variances
            }
            false => {
                // torch._foreach_mul(grads, grads)
                drop(each(Torch::like));
                each(Torch::like)
            }
        };
        updates = variances;
        updates.iter().for_each(|update| drop(norm_of_all(torch, update)));
    }
    drop(updates);
}

fn is_matrix(parameter: &Tensor) -> bool {
    parameter.shape().dims().len() > 1
}

/// `row_var @ col_var`, [R, C]
fn row_times_column(torch: &Torch, parameter: &Tensor) -> Tensor {
    matmul_output(torch, parameter.shape(), parameter.dtype())
}
