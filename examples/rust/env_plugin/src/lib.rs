//! Rust environment as a Python module: `import courier_env` adds the native environment "Courier-v0" to rlox.
//!
//! A courier on a square of cells fetches a parcel and brings it to a door, by steps to neighbouring cells. Each
//! episode draws new positions of courier, parcel and door. The reward of a step is -0.05, plus 1 if the courier
//! reaches the parcel or delivers it. Leaving the square costs 10 and ends the episode. The action mask allows the
//! steps that stay inside.

use pyo3::prelude::*;
use pyo3::types::PyCapsule;
use rlox_core::envs::MakeOptions;
use rlox_core::{Env, EnvSpec, Error, Pcg64, ResetOptions, Result, Space, Step, plugin::EnvPlugin};

type Cell = [i64; 2];

/// Steps to the north, south, west and east.
const STEPS: [Cell; 4] = [[0, -1], [0, 1], [-1, 0], [1, 0]];

#[derive(Clone)]
struct Courier {
    at: Cell,
    parcel: Cell,
    door: Cell,
    carries: bool,
    size: i64,
    spec: EnvSpec,
}

impl Courier {
    /// Creates the environment. The only argument, `size`, is the number of cells per side.
    fn new(options: &MakeOptions<'_>) -> Result<Self> {
        let size = options.argument(&["size"], "size", 5.0)?;
        if size.fract() != 0.0 || !(2.0..=100.0).contains(&size) {
            return Err(Error::config("size", "a whole number in [2, 100]", size.to_string(), "correct it"));
        }
        let spec = EnvSpec {
            id: "Courier-v0".into(),
            observation: Space::uniform_box(-1.0, 1.0, &[5]),
            action: Space::discrete(4),
            max_episode_steps: Some(60),
        };
        Ok(Self { at: [0; 2], parcel: [0; 2], door: [0; 2], carries: false, size: size as i64, spec })
    }

    fn goal(&self) -> Cell {
        if self.carries { self.door } else { self.parcel }
    }

    fn after(&self, action: usize) -> Cell {
        [self.at[0] + STEPS[action][0], self.at[1] + STEPS[action][1]]
    }

    fn is_inside(&self, cell: Cell) -> bool {
        cell.iter().all(|x| (0..self.size).contains(x))
    }

    /// Writes the courier's position, the east and south distances to the goal, and whether it has the parcel.
    fn observe(&self, obs: &mut [f32]) {
        let (goal, scale) = (self.goal(), (self.size - 1) as f32);
        for i in 0..2 {
            obs[i] = (self.at[i].clamp(0, self.size - 1)) as f32 / scale;
            obs[2 + i] = ((goal[i] - self.at[i]) as f32 / scale).clamp(-1.0, 1.0);
        }
        obs[4] = f32::from(u8::from(self.carries));
    }
}

impl Env for Courier {
    type Action = i64;

    fn spec(&self) -> &EnvSpec {
        &self.spec
    }

    fn reset(&mut self, rng: &mut Pcg64, _: &ResetOptions, obs: &mut [f32]) {
        let mut cell = || [rng.integers(0, self.size), rng.integers(0, self.size)];
        (self.at, self.parcel, self.door, self.carries) = (cell(), cell(), cell(), false);
        self.observe(obs);
    }

    fn step(&mut self, action: &i64, _: &mut Pcg64, obs: &mut [f32]) -> Step {
        self.at = self.after(*action as usize);
        let (lost, there) = (!self.is_inside(self.at), self.at == self.goal());
        let delivered = there && self.carries;
        self.carries |= there;
        self.observe(obs);
        let reward = f64::from(u8::from(there)) - 0.05 - if lost { 10.0 } else { 0.0 };
        Step { reward, terminated: lost || delivered, truncated: false }
    }

    fn has_action_mask(&self) -> bool {
        true
    }

    fn action_mask(&self, mask: &mut [bool]) {
        for (action, allowed) in mask.iter_mut().enumerate() {
            *allowed = self.is_inside(self.after(action));
        }
    }
}

/// Registers the environment when Python imports the module. A module may register several environments.
#[pymodule]
mod courier_env {
    use super::{Bound, Courier, EnvPlugin, PyAnyMethods, PyCapsule, PyModule, PyResult};

    #[pymodule_init]
    fn init(module: &Bound<'_, PyModule>) -> PyResult<()> {
        let plugin = EnvPlugin::new(|options| options.build_vec_env(Courier::new(options)?));
        let capsule = PyCapsule::new_with_value(module.py(), plugin, EnvPlugin::NAME)?;
        module.py().import("rlox")?.call_method1("register_env", (capsule,))?;
        Ok(())
    }
}
