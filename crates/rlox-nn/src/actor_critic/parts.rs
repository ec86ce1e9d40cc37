//! The parts of an actor-critic by name.

use rlox_core::Result;

use super::PolicyNetworks;
use crate::{NamedTensor, NamedTensors, Network, Parameters};

/// What a head is called beside a trunk that it shares: a network of one layer.
const HEADS: [&str; 2] = ["actor.0.", "critic.0."];

impl<N: Network> PolicyNetworks<N> {
    /// What each part gives, by name: `actor.0.weight`, `critic.0.weight`, `log_std`. The last layer of a trunk that is
    /// shared goes by the names of two heads.
    pub(super) fn named(
        &self,
        of_network: impl Fn(&N) -> NamedTensors,
        of_parameters: impl Fn(&Parameters) -> NamedTensors,
    ) -> NamedTensors {
        let mut all = NamedTensors::default();
        // The parts' names differ, so that nothing is refused.
        if let Some(critic) = &self.critic {
            let _ = all.extend("actor", &of_network(&self.actor));
            let _ = all.extend("critic", &of_network(critic));
        } else {
            let _ = self.add_trunk(&of_network(&self.actor), &mut all);
        }
        if let Some(parameters) = self.distribution.parameters() {
            for tensor in &of_parameters(parameters) {
                let _ = all.push(tensor.name.clone(), &tensor.shape, tensor.data.clone());
            }
        }
        all
    }

    /// The name of the last layer of a shared trunk, "4.".
    fn last_layer(&self) -> String {
        let tensors = self.actor.tensors();
        let numbers = tensors.iter().filter_map(|tensor| tensor.name.split('.').next()?.parse::<usize>().ok());
        format!("{}.", numbers.max().unwrap_or(0))
    }

    /// A shared trunk's hidden layers, and the rows of its last one as two heads. What the last one has beside a row for
    /// each output stays with the trunk.
    fn add_trunk(&self, trunk: &NamedTensors, all: &mut NamedTensors) -> Result<()> {
        let (last, outputs) = (self.last_layer(), self.distribution.outputs());
        let mut values = Vec::new();
        for NamedTensor { name, shape, data } in trunk {
            let part = name.strip_prefix(&last).filter(|_| shape.first() == Some(&(outputs + 1)));
            let Some(part) = part else {
                all.push(format!("trunk.{name}"), shape, data.clone())?;
                continue;
            };
            let (policy, value) = data.split_at(data.len() / (outputs + 1) * outputs);
            let shaped = |rows: usize| [&[rows], &shape[1..]].concat();
            all.push(format!("{}{part}", HEADS[0]), &shaped(outputs), policy.to_vec())?;
            values.push((format!("{}{part}", HEADS[1]), shaped(1), value.to_vec()));
        }
        values.into_iter().try_for_each(|(name, shape, value)| all.push(name, &shape, value))
    }

    /// A shared trunk by its own names, of what [`PolicyNetworks::add_trunk`] gave.
    fn trunk_of(&self, tensors: &NamedTensors) -> Result<NamedTensors> {
        let (last, mut trunk) = (self.last_layer(), tensors.part("trunk"));
        for NamedTensor { name, shape, data } in tensors {
            let Some(part) = name.strip_prefix(HEADS[0]) else { continue };
            let value = tensors.find(&format!("{}{part}", HEADS[1])).map_or(&[][..], |value| &value.data);
            let rows = [&[shape[0] + 1], &shape[1..]].concat();
            trunk.push(format!("{last}{part}"), &rows, [data, value].concat())?;
        }
        Ok(trunk)
    }

    /// Hands each part what is its own. All has been checked.
    pub(super) fn hand_out(
        &mut self,
        tensors: &NamedTensors,
        to_network: impl Fn(&mut N, &NamedTensors) -> Result<()>,
        to_parameters: impl Fn(&mut Parameters, &NamedTensors) -> Result<()>,
    ) -> Result<()> {
        if let Some(critic) = &mut self.critic {
            to_network(&mut self.actor, &tensors.part("actor"))?;
            to_network(critic, &tensors.part("critic"))?;
        } else {
            let trunk = self.trunk_of(tensors)?;
            to_network(&mut self.actor, &trunk)?;
        }
        let Some(beside) = self.distribution.parameters_mut() else { return Ok(()) };
        let mut own = NamedTensors::default();
        for tensor in tensors.iter().filter(|tensor| tensor.name.split('.').next() == Some(beside.name())) {
            own.push(tensor.name.clone(), &tensor.shape, tensor.data.clone())?;
        }
        to_parameters(beside, &own)
    }
}
