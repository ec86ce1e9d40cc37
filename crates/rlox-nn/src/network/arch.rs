//! Architecture of a network, for checkpoints.

use crate::{Activation, Network};

/// Architecture of a network of fully connected layers, for checkpoints.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NetworkArch {
    /// Widths of the hidden layers.
    pub hidden: Vec<usize>,
    /// Activation of the hidden layers; `None` if unknown.
    pub activation: Option<Activation>,
    /// True if the outputs combine advantages and a state value ([`crate::Dueling`]).
    pub dueling: bool,
}

impl NetworkArch {
    /// Returns the architecture of a network.
    ///
    /// ```
    /// use rlox_core::Pcg64;
    /// use rlox_nn::{Activation, Init, Mlp, NetworkArch};
    ///
    /// let network = Mlp::new(&[4, 32, 16, 2], Activation::Tanh, Init::Kaiming, &mut Pcg64::seed_from(0))?;
    /// let arch = NetworkArch::from_network(&network);
    /// assert_eq!((arch.hidden, arch.activation), (vec![32, 16], Some(Activation::Tanh)));
    /// # Ok::<(), rlox_core::Error>(())
    /// ```
    pub fn from_network(network: &impl Network) -> Self {
        Self { hidden: widths(network), activation: network.hidden_activation(), dueling: network.is_dueling() }
    }
}

/// Returns the widths of the hidden layers of a network.
pub(crate) fn widths(network: &impl Network) -> Vec<usize> {
    let tensors = network.tensors();
    let mut rows: Vec<_> = tensors.iter().filter(|tensor| tensor.shape.len() == 2).map(|it| it.shape[0]).collect();
    rows.pop();
    rows
}
