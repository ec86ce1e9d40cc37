//! The architecture of a network, as checkpoints tell it.

use crate::{Activation, Network};

/// How a network of fully connected layers is made, as checkpoints tell it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NetworkArch {
    /// Widths of its hidden layers.
    pub hidden: Vec<usize>,
    /// What they apply; `None` if it is unknown.
    pub activation: Option<Activation>,
    /// Whether its outputs are made of advantages and the value of the state ([`crate::Dueling`]).
    pub dueling: bool,
}

impl NetworkArch {
    /// That of a network.
    ///
    /// ```
    /// use rlox_core::Pcg64;
    /// use rlox_nn::{Activation, Init, Mlp, NetworkArch};
    ///
    /// let network = Mlp::new(&[4, 32, 16, 2], Activation::Tanh, Init::Kaiming, &mut Pcg64::seed_from(0))?;
    /// let shape = NetworkArch::of(&network);
    /// assert_eq!((shape.hidden, shape.activation), (vec![32, 16], Some(Activation::Tanh)));
    /// # Ok::<(), rlox_core::Error>(())
    /// ```
    pub fn from_network(network: &impl Network) -> Self {
        Self { hidden: widths(network), activation: network.hidden_activation(), dueling: network.is_dueling() }
    }
}

/// The widths of a network's hidden layers.
pub(crate) fn widths(network: &impl Network) -> Vec<usize> {
    let tensors = network.tensors();
    let mut rows: Vec<_> = tensors.iter().filter(|tensor| tensor.shape.len() == 2).map(|it| it.shape[0]).collect();
    rows.pop();
    rows
}
