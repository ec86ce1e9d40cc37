//! Custom operations for Candle on the CPU, which use one core. Some work in place to save memory.
//!
//! Candle's own operations use several threads for more than a few thousand numbers. These threads
//! wait for each other in a busy loop. If other threads need the cores, for example to compute
//! actor and critic at once, the waiting takes until the scheduler switches threads. Candle's
//! matrix product also reads the number of cores from `/proc/cpuinfo` in each call, unless an
//! environment variable sets the number. Reading the file takes longer than the matrix product of a
//! layer with 64 units.

use std::ops::Range;

use candle_core::{CpuStorage, CustomOp2, CustomOp3, Error, InplaceOp1, InplaceOp2, InplaceOp3, Layout, Result, Shape};
use ndarray::linalg::{general_mat_mul, general_mat_vec_mul};
use ndarray::{Array2, ArrayView2, ArrayViewMut2, ShapeBuilder};
use rlox_nn::Activation;

type Source<'a> = (&'a CpuStorage, &'a Layout);

/// Converts a matrix of Candle to a view of ndarray.
fn view((storage, layout): Source<'_>) -> Result<ArrayView2<'_, f32>> {
    let (&[rows, columns], &[down, right]) = (layout.dims(), layout.stride()) else {
        return Err(Error::Msg(format!("not a matrix: {:?}", layout.dims())));
    };
    let numbers = storage.as_slice::<f32>()?.get(layout.start_offset()..).unwrap_or_default();
    let shape = (rows, columns).strides((down, right));
    ArrayView2::from_shape(shape, numbers).map_err(|error| Error::Msg(error.to_string()))
}

/// Returns the numbers of a contiguous tensor as a slice.
fn flat_slice((storage, layout): Source<'_>) -> Result<&[f32]> {
    let numbers = layout.contiguous_offsets().and_then(|(from, to)| storage.as_slice::<f32>().ok()?.get(from..to));
    numbers.ok_or_else(|| Error::Msg("expected contiguous f32 numbers".into()))
}

/// Returns the numbers of a contiguous tensor as a mutable slice.
fn flat_slice_mut<'a>(storage: &'a mut CpuStorage, layout: &Layout) -> Result<&'a mut [f32]> {
    match (storage, layout.contiguous_offsets()) {
        (CpuStorage::F32(numbers), Some((from, to))) if to <= numbers.len() => Ok(&mut numbers[from..to]),
        _ => Err(Error::Msg("expected contiguous f32 numbers".into())),
    }
}

/// Returns the matrix `out` plus the matrix product `a b`.
fn add_product(a: &ArrayView2<'_, f32>, b: &ArrayView2<'_, f32>, out: Vec<f32>) -> Result<(CpuStorage, Shape)> {
    if a.ncols() != b.nrows() {
        return Err(Error::Msg(format!("shapes {:?} and {:?} have no product", a.dim(), b.dim())));
    }
    let out = Array2::from_shape_vec((a.nrows(), b.ncols()), out);
    let mut out = out.map_err(|error| Error::Msg(error.to_string()))?;
    general_mat_mul(1.0, a, b, 1.0, &mut out);
    let shape = Shape::from(out.dim());
    Ok((CpuStorage::F32(out.into_raw_vec_and_offset().0), shape))
}

/// Matrix product `a b`.
pub(crate) struct Product;

impl CustomOp2 for Product {
    fn name(&self) -> &'static str {
        "product"
    }

    fn cpu_fwd(&self, a: &CpuStorage, la: &Layout, b: &CpuStorage, lb: &Layout) -> Result<(CpuStorage, Shape)> {
        let (a, b) = (view((a, la))?, view((b, lb))?);
        add_product(&a, &b, vec![0.0; a.nrows() * b.ncols()])
    }
}

/// Maximum number of input rows for which [`Linear`] multiplies each row by the weight matrix
/// separately.
///
/// A matrix product first copies both operands, which takes longer than the separate products for
/// few rows.
const MAX_MATVEC_ROWS: usize = 4;

/// Pre-activations `x w^T + b` for input rows `x`, weights `w` of shape `[outputs, inputs]`, and
/// biases `b`.
pub(crate) struct Linear;

impl CustomOp3 for Linear {
    fn name(&self) -> &'static str {
        "linear"
    }

    fn cpu_fwd(
        &self,
        x: &CpuStorage,
        lx: &Layout,
        w: &CpuStorage,
        lw: &Layout,
        b: &CpuStorage,
        lb: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        let (x, w) = (view((x, lx))?, view((w, lw))?);
        let biases = flat_slice((b, lb))?;
        if x.nrows() > MAX_MATVEC_ROWS || (w.ncols(), w.nrows()) != (x.ncols(), biases.len()) {
            return add_product(&x, &w.t(), biases.repeat(x.nrows()));
        }
        let mut out = Array2::from_shape_fn((x.nrows(), biases.len()), |(_, output)| biases[output]);
        for (x, mut out) in x.rows().into_iter().zip(out.rows_mut()) {
            general_mat_vec_mul(1.0, &w, &x, 1.0, &mut out);
        }
        let shape = Shape::from(out.dim());
        Ok((CpuStorage::F32(out.into_raw_vec_and_offset().0), shape))
    }
}

/// Activation function, applied in place.
pub(crate) struct Apply(pub(crate) Activation);

impl InplaceOp1 for Apply {
    fn name(&self) -> &'static str {
        "activation"
    }

    fn cpu_fwd(&self, x: &mut CpuStorage, layout: &Layout) -> Result<()> {
        self.0.apply(flat_slice_mut(x, layout)?);
        Ok(())
    }
}

/// Multiplication of gradients by the derivative of an activation, in place.
pub(crate) struct Derivative(pub(crate) Activation);

impl InplaceOp2 for Derivative {
    fn name(&self) -> &'static str {
        "derivative"
    }

    fn cpu_fwd(&self, gradients: &mut CpuStorage, layout: &Layout, input: &CpuStorage, lo: &Layout) -> Result<()> {
        self.0.multiply_by_derivative(flat_slice((input, lo))?, flat_slice_mut(gradients, layout)?);
        Ok(())
    }
}

/// Function that replaces each number of a tensor. The arguments are the number and the
/// corresponding number of another tensor.
pub(crate) struct Each<F>(pub(crate) F);

impl<F: Fn(f32, f32) -> f32> InplaceOp2 for Each<F> {
    fn name(&self) -> &'static str {
        "each"
    }

    fn cpu_fwd(&self, to: &mut CpuStorage, layout: &Layout, from: &CpuStorage, lf: &Layout) -> Result<()> {
        for (to, from) in flat_slice_mut(to, layout)?.iter_mut().zip(flat_slice((from, lf))?) {
            *to = self.0(*to, *from);
        }
        Ok(())
    }
}

/// Function that replaces each number of a tensor. The arguments are the number and the
/// corresponding numbers of two other tensors.
pub(crate) struct EachPair<F>(pub(crate) F);

impl<F: Fn(f32, f32, f32) -> f32> InplaceOp3 for EachPair<F> {
    fn name(&self) -> &'static str {
        "each of two"
    }

    fn cpu_fwd(
        &self,
        to: &mut CpuStorage,
        layout: &Layout,
        a: &CpuStorage,
        la: &Layout,
        b: &CpuStorage,
        lb: &Layout,
    ) -> Result<()> {
        for ((to, a), b) in flat_slice_mut(to, layout)?.iter_mut().zip(flat_slice((a, la))?).zip(flat_slice((b, lb))?) {
            *to = self.0(*to, *a, *b);
        }
        Ok(())
    }
}

/// Gradients of a layer's parameters, computed from the gradient of its pre-activations,
/// `[rows, outputs]`, and its input, `[rows, inputs]`.
pub(crate) struct Gradients {
    pub(crate) weight: Range<usize>,
    pub(crate) bias: Range<usize>,
    /// True to add to the gradients in the tensor, false to overwrite them.
    pub(crate) add: bool,
}

impl InplaceOp3 for Gradients {
    fn name(&self) -> &'static str {
        "gradients"
    }

    fn cpu_fwd(
        &self,
        all: &mut CpuStorage,
        layout: &Layout,
        delta: &CpuStorage,
        ld: &Layout,
        x: &CpuStorage,
        lx: &Layout,
    ) -> Result<()> {
        let (delta, x) = ((delta, ld), (x, lx));
        let (all, shape) = (flat_slice_mut(all, layout)?, (delta.1.dims()[1], x.1.dims()[1]));
        let weight = ArrayViewMut2::from_shape(shape, &mut all[self.weight.clone()]);
        let mut weight = weight.map_err(|error| Error::Msg(error.to_string()))?;
        general_mat_mul(1.0, &view(delta)?.t(), &view(x)?, f32::from(u8::from(self.add)), &mut weight);
        let bias = &mut all[self.bias.clone()];
        if !self.add {
            bias.fill(0.0);
        }
        for row in flat_slice(delta)?.chunks_exact(bias.len()) {
            bias.iter_mut().zip(row).for_each(|(sum, x)| *sum += x);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use candle_core::{Device, Tensor};

    fn tensor(rows: usize, columns: usize) -> Result<Tensor> {
        let numbers = (0..rows * columns).map(|i| ((i * 37 % 23) as f32 - 11.0) / 8.0).collect();
        Tensor::from_vec(numbers, (rows, columns), &Device::Cpu)
    }

    fn assert_near(ours: &Tensor, theirs: &Tensor) -> Result<()> {
        assert_eq!(ours.dims(), theirs.dims());
        let (ours, theirs) = (ours.flatten_all()?.to_vec1::<f32>()?, theirs.flatten_all()?.to_vec1::<f32>()?);
        for (x, y) in ours.iter().zip(&theirs) {
            assert!((x - y).abs() < 1e-4, "{x} {y}");
        }
        Ok(())
    }

    #[test]
    fn products_equal_candle() -> Result<()> {
        for (m, k, n) in [(1, 1, 1), (1, 5, 3), (64, 4, 64), (7, 33, 20)] {
            // Operands are contiguous, transposed, or a part of a larger matrix.
            for a in [tensor(m, k)?, tensor(k, m)?.t()?, tensor(m + 2, k)?.narrow(0, 1, m)?] {
                for b in [tensor(k, n)?, tensor(n, k)?.t()?] {
                    assert_near(&a.apply_op2_no_bwd(&b, &Product)?, &a.matmul(&b)?)?;
                }
                let (weight, bias) = (tensor(n, k)?, tensor(1, n + 1)?.flatten_all()?.narrow(0, 1, n)?);
                let expected = a.matmul(&weight.t()?)?.broadcast_add(&bias)?;
                assert_near(&a.apply_op3_no_bwd(&weight, &bias, &Linear)?, &expected)?;
            }
        }
        Ok(())
    }

    #[test]
    fn wrong_shapes_are_rejected() -> Result<()> {
        let (a, line) = (tensor(2, 3)?, tensor(2, 3)?.flatten_all()?);
        assert!(a.apply_op2_no_bwd(&a, &Product).is_err());
        assert!(a.apply_op2_no_bwd(&line, &Product).is_err());
        assert!(a.apply_op3_no_bwd(&a, &line, &Linear).is_err());
        assert!(a.t()?.inplace_op1(&Apply(Activation::Tanh)).is_err());
        Ok(())
    }
}
