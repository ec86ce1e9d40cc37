//! tmp
#![allow(missing_docs, missing_debug_implementations)]
use crate::Result;
pub trait Float: Copy + Send + Sync + 'static {
    fn from_f64(x: f64) -> Self;
    fn to_f64(self) -> f64;
}
impl Float for f32 {
    fn from_f64(x: f64) -> Self {
        x as f32
    }
    fn to_f64(self) -> f64 {
        f64::from(self)
    }
}
impl Float for f64 {
    fn from_f64(x: f64) -> Self {
        x
    }
    fn to_f64(self) -> f64 {
        self
    }
}
#[derive(Clone, Copy)]
pub struct Ends<'a, T> {
    pub terminated: &'a [bool],
    pub truncated: Option<&'a [bool]>,
    pub final_values: Option<&'a [T]>,
}
pub fn compute_gae<T: Float>(
    r: &[T],
    v: &[T],
    e: Ends<'_, T>,
    last: T,
    g: T,
    l: T,
    a: &mut [T],
    ret: &mut [T],
) -> Result<()> {
    compute_gae_time_major(r, v, e, &[last], g, l, a, ret)
}
pub fn compute_gae_time_major<T: Float>(
    r: &[T],
    v: &[T],
    e: Ends<'_, T>,
    last: &[T],
    g: T,
    l: T,
    a: &mut [T],
    ret: &mut [T],
) -> Result<()> {
    let n = last.len();
    let (g, l) = (g.to_f64(), l.to_f64());
    for j in 0..n {
        let mut next = last[j].to_f64();
        let mut acc = 0.0;
        for i in (0..r.len() / n).rev() {
            let k = i * n + j;
            let tr = e.truncated.is_some_and(|t| t[k]);
            let te = e.terminated[k];
            let nv = if te {
                0.0
            } else if tr {
                e.final_values.map_or(next, |f| f[k].to_f64())
            } else {
                next
            };
            let delta = r[k].to_f64() + g * nv - v[k].to_f64();
            acc = delta + if te || tr { 0.0 } else { g * l * acc };
            a[k] = T::from_f64(acc);
            ret[k] = T::from_f64(acc + v[k].to_f64());
            next = v[k].to_f64();
        }
    }
    Ok(())
}
pub fn compute_gae_batched<T: Float>(
    r: &[T],
    v: &[T],
    e: Ends<'_, T>,
    last: &[T],
    n: usize,
    g: T,
    l: T,
    a: &mut [T],
    ret: &mut [T],
) -> Result<()> {
    for (j, x) in last.iter().enumerate() {
        let s = j * n..(j + 1) * n;
        compute_gae(
            &r[s.clone()],
            &v[s.clone()],
            Ends { terminated: &e.terminated[s.clone()], truncated: None, final_values: None },
            *x,
            g,
            l,
            &mut a[s.clone()],
            &mut ret[s],
        )?;
    }
    Ok(())
}
