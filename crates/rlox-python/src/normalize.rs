//! tmp
use crate::array::{REAL, fresh, input, out_slice};
use crate::shared::Shared;
use numpy::{IntoPyArray, PyArrayDyn, PyArrayMethods};
use pyo3::prelude::*;
use pyo3::types::PyDict;
use rlox_core::{Normalizer as Core, RunningMeanStd as Stats};
#[pyclass(frozen, module = "rlox._rlox")]
pub(crate) struct Normalizer {
    pub(crate) inner: Shared<Core>,
}
#[pymethods]
impl Normalizer {
    #[new]
    #[pyo3(signature = (num_envs, obs_shape, *, obs=true, reward=true, gamma=0.99, clip_obs=10.0, clip_reward=10.0, epsilon=1e-8))]
    fn new(
        num_envs: usize,
        obs_shape: Vec<usize>,
        obs: bool,
        reward: bool,
        gamma: f64,
        clip_obs: f64,
        clip_reward: f64,
        epsilon: f64,
    ) -> Self {
        Self {
            inner: Shared::new(
                "Normalizer",
                Core {
                    obs: obs.then(|| Stats::new(obs_shape.iter().product())),
                    ret: reward.then(|| (Stats::new(1), vec![0.0; num_envs], gamma)),
                    clip_obs,
                    clip_reward,
                    eps: epsilon,
                },
            ),
        }
    }
    fn update_obs(&self, py: Python<'_>, obs: &Bound<'_, PyAny>) -> PyResult<()> {
        let x = input::<f32>("obs", obs, &REAL)?;
        let x = x.slice();
        self.inner.with(py, false, |n| n.update_obs(x))
    }
    fn normalize_obs<'py>(&self, py: Python<'py>, obs: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyArrayDyn<f32>>> {
        let x = input::<f32>("obs", obs, &REAL)?;
        let (a, mut g) = fresh::<f32>(py, x.shape())?;
        let out = out_slice(&mut g);
        out.copy_from_slice(x.slice());
        self.inner.with(py, false, |n| n.normalize_obs(out))?;
        Ok(a)
    }
    fn state<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let d = PyDict::new(py);
        let (o, r) = self.inner.with(py, false, |n| Ok((n.obs.clone(), n.ret.clone())))?;
        if let Some(o) = o {
            d.set_item("obs_mean", o.mean.into_pyarray(py))?;
            d.set_item("obs_var", o.var.into_pyarray(py))?;
            d.set_item("obs_count", vec![o.count].into_pyarray(py))?;
        }
        if let Some((s, acc, _)) = r {
            d.set_item("return_mean", s.mean.into_pyarray(py))?;
            d.set_item("return_var", s.var.into_pyarray(py))?;
            d.set_item("return_count", vec![s.count].into_pyarray(py))?;
            d.set_item("returns", acc.into_pyarray(py))?;
        }
        Ok(d)
    }
    fn load_state(&self, py: Python<'_>, state: &Bound<'_, PyDict>) -> PyResult<()> {
        let get = |k: &str| -> PyResult<Vec<f64>> {
            Ok(match state.get_item(k)? {
                Some(x) => input::<f64>(k, &x, &REAL)?.slice().to_vec(),
                None => vec![],
            })
        };
        let (om, ov, oc, rm, rv, rc, acc) = (
            get("obs_mean")?,
            get("obs_var")?,
            get("obs_count")?,
            get("return_mean")?,
            get("return_var")?,
            get("return_count")?,
            get("returns")?,
        );
        self.inner.with(py, false, |n| {
            if let Some(o) = &mut n.obs {
                o.mean = om;
                o.var = ov;
                o.count = oc[0];
            }
            if let Some((s, a, _)) = &mut n.ret {
                s.mean = rm;
                s.var = rv;
                s.count = rc[0];
                *a = acc;
            }
            Ok(())
        })
    }
}
#[pyclass(frozen, module = "rlox._rlox")]
pub(crate) struct RunningMeanStd {
    inner: Shared<Stats>,
}
#[pymethods]
impl RunningMeanStd {
    #[new]
    fn new(d: usize) -> Self {
        Self { inner: Shared::new("RunningMeanStd", Stats::new(d)) }
    }
    fn count(&self, py: Python<'_>) -> PyResult<f64> {
        self.inner.with(py, false, |s| Ok(s.count))
    }
}
