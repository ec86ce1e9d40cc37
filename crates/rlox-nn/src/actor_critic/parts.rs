//! The parts of an actor-critic by name.

use rlox_core::Result;

use super::PolicyNetworks;
use crate::{NamedTensors, Network, Parameters};

impl<N: Network> PolicyNetworks<N> {
    /// The names of the networks: `trunk` stands for one that is both.
    fn networks(&self) -> [Option<(&'static str, &N)>; 2] {
        match &self.critic {
            Some(critic) => [Some(("actor", &self.actor)), Some(("critic", critic))],
            None => [Some(("trunk", &self.actor)), None],
        }
    }

    /// What each part gives, by name.
    pub(super) fn named(
        &self,
        of_network: impl Fn(&N) -> NamedTensors,
        of_parameters: impl Fn(&Parameters) -> NamedTensors,
    ) -> NamedTensors {
        let mut all = NamedTensors::default();
        // The parts' names differ, so that nothing is refused.
        for (name, network) in self.networks().into_iter().flatten() {
            let _ = all.extend(name, &of_network(network));
        }
        if let Some(parameters) = self.distribution.parameters() {
            for tensor in &of_parameters(parameters) {
                let _ = all.push(tensor.name.clone(), &tensor.shape, tensor.data.clone());
            }
        }
        all
    }

    /// Hands each part what is its own. All has been checked.
    pub(super) fn hand_out(
        &mut self,
        tensors: &NamedTensors,
        to_network: impl Fn(&mut N, &NamedTensors) -> Result<()>,
        to_parameters: impl Fn(&mut Parameters, &NamedTensors) -> Result<()>,
    ) -> Result<()> {
        let name = if self.critic.is_some() { "actor" } else { "trunk" };
        to_network(&mut self.actor, &tensors.part(name))?;
        if let Some(critic) = &mut self.critic {
            to_network(critic, &tensors.part("critic"))?;
        }
        let Some(beside) = self.distribution.parameters_mut() else { return Ok(()) };
        let mut own = NamedTensors::default();
        for tensor in tensors.iter().filter(|tensor| tensor.name.split('.').next() == Some(beside.name())) {
            own.push(tensor.name.clone(), &tensor.shape, tensor.data.clone())?;
        }
        to_parameters(beside, &own)
    }
}
