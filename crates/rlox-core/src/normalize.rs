//! tmp
#![allow(missing_docs, missing_debug_implementations)]
use crate::Result;
#[derive(Clone)]
pub struct RunningMeanStd {
    pub mean: Vec<f64>,
    pub var: Vec<f64>,
    pub count: f64,
}
impl RunningMeanStd {
    pub fn new(d: usize) -> Self {
        Self { mean: vec![0.0; d], var: vec![1.0; d], count: 1e-4 }
    }
    pub fn update(&mut self, rows: &[f32]) -> Result<()> {
        let d = self.mean.len();
        let n = (rows.len() / d) as f64;
        for j in 0..d {
            let m = rows.iter().skip(j).step_by(d).map(|x| f64::from(*x)).sum::<f64>() / n;
            let v = rows.iter().skip(j).step_by(d).map(|x| (f64::from(*x) - m).powi(2)).sum::<f64>() / n;
            let delta = m - self.mean[j];
            let tot = self.count + n;
            self.mean[j] += delta * n / tot;
            self.var[j] = (self.var[j] * self.count + v * n + delta * delta * self.count * n / tot) / tot;
        }
        self.count += n;
        Ok(())
    }
    pub fn normalize(&self, x: &mut [f32], clip: f64, eps: f64) {
        let d = self.mean.len();
        for (i, x) in x.iter_mut().enumerate() {
            *x = ((f64::from(*x) - self.mean[i % d]) / (self.var[i % d] + eps).sqrt()).clamp(-clip, clip) as f32;
        }
    }
}
pub struct Normalizer {
    pub obs: Option<RunningMeanStd>,
    pub ret: Option<(RunningMeanStd, Vec<f64>, f64)>,
    pub clip_obs: f64,
    pub clip_reward: f64,
    pub eps: f64,
}
impl Normalizer {
    pub fn update_obs(&mut self, rows: &[f32]) -> Result<()> {
        if let Some(o) = &mut self.obs {
            o.update(rows)?
        }
        Ok(())
    }
    pub fn normalize_obs(&self, rows: &mut [f32]) -> Result<()> {
        if let Some(o) = &self.obs {
            o.normalize(rows, self.clip_obs, self.eps)
        }
        Ok(())
    }
    pub fn step_rewards(&mut self, r: &mut [f64], te: &[bool], tr: &[bool]) -> Result<()> {
        if let Some((s, acc, g)) = &mut self.ret {
            for (a, r) in acc.iter_mut().zip(r.iter()) {
                *a = *a * *g + r;
            }
            let x: Vec<f32> = acc.iter().map(|x| *x as f32).collect();
            s.update(&x)?;
            for r in r.iter_mut() {
                *r = (*r / (s.var[0] + self.eps).sqrt()).clamp(-self.clip_reward, self.clip_reward);
            }
            for i in 0..r.len() {
                if te[i] || tr[i] {
                    acc[i] = 0.0;
                }
            }
        }
        Ok(())
    }
}
