//! Products of matrices on one core.

use candle_core::{CpuStorage, CustomOp2, Error, Layout, Result, Shape, Tensor};
use ndarray::{Array2, ArrayView2, ShapeBuilder, linalg::general_mat_mul};

/// `a b` of matrices, on the CPU without asking how many cores there are.
///
/// Candle's own product on the CPU reads `/proc/cpuinfo` each time to learn that, unless an environment variable says it,
/// which takes longer than the product of a layer of 64; and then it shares large ones out to threads of its own.
pub(crate) fn product(a: &Tensor, b: &Tensor) -> Result<Tensor> {
    if a.device().is_cpu() { a.apply_op2_no_bwd(b, &OneCore) } else { a.matmul(b) }
}

struct OneCore;

impl CustomOp2 for OneCore {
    fn name(&self) -> &'static str {
        "product"
    }

    fn cpu_fwd(&self, a: &CpuStorage, la: &Layout, b: &CpuStorage, lb: &Layout) -> Result<(CpuStorage, Shape)> {
        let (a, b) = (view(a, la)?, view(b, lb)?);
        if a.ncols() != b.nrows() {
            return Err(Error::Msg(format!("no product of {:?} and {:?}", a.dim(), b.dim())));
        }
        let mut out = Array2::zeros((a.nrows(), b.ncols()));
        general_mat_mul(1.0, &a, &b, 0.0, &mut out);
        let shape = Shape::from(out.dim());
        Ok((CpuStorage::F32(out.into_raw_vec_and_offset().0), shape))
    }
}

/// A matrix of Candle's as one of ndarray's.
fn view<'a>(storage: &'a CpuStorage, layout: &Layout) -> Result<ArrayView2<'a, f32>> {
    let (&[rows, columns], &[down, right]) = (layout.dims(), layout.stride()) else {
        return Err(Error::Msg(format!("no matrix: {:?}", layout.dims())));
    };
    let numbers = storage.as_slice::<f32>()?.get(layout.start_offset()..).unwrap_or_default();
    let shape = (rows, columns).strides((down, right));
    ArrayView2::from_shape(shape, numbers).map_err(|error| Error::Msg(error.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use candle_core::Device;

    #[test]
    fn equals_candles_own() -> Result<()> {
        for (m, k, n) in [(1, 1, 1), (1, 5, 3), (64, 4, 64), (7, 33, 20)] {
            let tensor = |r: usize, c: usize| {
                let numbers = (0..r * c).map(|i| ((i * 37 % 23) as f32 - 11.0) / 8.0).collect();
                Tensor::from_vec(numbers, (r, c), &Device::Cpu)
            };
            // Whole, transposed, and a part of something larger.
            for a in [tensor(m, k)?, tensor(k, m)?.t()?, tensor(m + 2, k)?.narrow(0, 1, m)?] {
                for b in [tensor(k, n)?, tensor(n, k)?.t()?] {
                    let (ours, theirs) = (product(&a, &b)?.to_vec2::<f32>()?, a.matmul(&b)?.to_vec2::<f32>()?);
                    for (x, y) in ours.concat().iter().zip(theirs.concat()) {
                        assert!((x - y).abs() < 1e-4, "{m}x{k}x{n}: {x} {y}");
                    }
                }
            }
        }
        assert!(
            product(
                &Tensor::zeros((2, 3), candle_core::DType::F32, &Device::Cpu)?,
                &Tensor::zeros((2, 3), candle_core::DType::F32, &Device::Cpu)?
            )
            .is_err()
        );
        Ok(())
    }
}
