//! What was sampled.

use super::gather::Column;
use super::n_step::{NStep, Spans};
use super::storage::ReplayStorage;
use crate::{Field, FieldData, Result, memory};

/// A batch of B transitions, in memory that the next one can use again.
///
/// Its fields are `obs`, `next_obs`, `actions`, `rewards`, `terminated`, `truncated`, or as the [`super::Layout`] calls
/// them, each `[B, ...]`.
#[derive(Clone, Debug, Default)]
pub struct SampledBatch {
    pub(crate) indices: Vec<usize>,
    pub(crate) weights: Vec<f32>,
    columns: Vec<Column>,
    fields: Vec<Field>,
    rows: Vec<usize>,
    spans: Spans,
}

impl SampledBatch {
    /// Forgets the transitions and keeps the memory.
    pub fn clear(&mut self) {
        self.indices.clear();
        self.weights.clear();
        self.rows.clear();
        self.spans = Spans { ends: Vec::new(), ..std::mem::take(&mut self.spans) };
        self.fields.iter_mut().for_each(Field::clear);
    }

    /// How many transitions there are.
    pub fn len(&self) -> usize {
        self.indices.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.indices.is_empty()
    }

    /// The transitions' numbers.
    pub fn indices(&self) -> &[usize] {
        &self.indices
    }

    /// Importance weights, `[B]`; all 1 where every transition was as likely as another.
    pub fn weights(&self) -> &[f32] {
        &self.weights
    }

    /// What the value of the next observation counts, `[B]`: gamma for each step that was made; empty without
    /// [`NStep`].
    pub fn discounts(&self) -> &[f32] {
        &self.spans.discounts
    }

    /// A field by its name.
    pub fn field(&self, name: &str) -> Option<&Field> {
        self.fields.iter().find(|field| field.name() == name)
    }

    /// The numbers of an f32 field; none if there is no such field.
    pub fn f32s(&self, name: &str) -> &[f32] {
        match self.field(name).map(Field::data) {
            Some(FieldData::F32(numbers)) => numbers,
            _ => &[],
        }
    }

    /// The integers of an i64 field; none if there is no such field.
    pub fn i64s(&self, name: &str) -> &[i64] {
        match self.field(name).map(Field::data) {
            Some(FieldData::I64(numbers)) => numbers,
            _ => &[],
        }
    }

    /// Room for so many transitions of a storage.
    pub(crate) fn prepare(&mut self, storage: &ReplayStorage, count: usize) -> Result<()> {
        let fits = |(field, (name, shape, dtype, _)): (&Field, &(String, Vec<usize>, _, _))| {
            field.name() == name && field.shape() == shape && field.dtype() == *dtype
        };
        let columns = storage.columns();
        if self.fields.len() != columns.len() || !self.fields.iter().zip(&columns).all(fits) {
            let made = columns.iter().map(|(name, shape, dtype, _)| Field::new(name.clone(), 0, shape, *dtype));
            self.fields = made.collect::<Result<_>>()?;
            self.columns = columns.into_iter().map(|(.., column)| column).collect();
        }
        let missing = count.saturating_sub(self.indices.len());
        memory::grow("batch_size", &mut self.indices, missing)?;
        let missing = count.saturating_sub(self.weights.len());
        memory::grow("batch_size", &mut self.weights, missing)?;
        for field in &mut self.fields {
            field.set_rows(count).map_err(|error| error.renamed("rows", "batch_size"))?;
        }
        self.indices.resize(count, 0);
        self.weights.resize(count, 1.0);
        Ok(())
    }

    /// Fills the fields with the transitions whose numbers are there.
    pub(crate) fn fill(&mut self, storage: &ReplayStorage, n_step: Option<NStep>) -> Result<()> {
        storage.locate(&self.indices, &mut self.rows)?;
        if let Some(steps) = n_step {
            self.spans.find(storage, steps, &self.rows)?;
        }
        for (column, field) in self.columns.iter().zip(&mut self.fields) {
            match (column, n_step) {
                (Column::NextObs(_) | Column::Terminated | Column::Truncated, Some(_)) => {
                    storage.read(*column, &self.spans.ends, field.data_mut())?;
                }
                (Column::Reward, Some(_)) => {
                    if let crate::FieldMut::F32(rewards) = field.data_mut() {
                        rewards.copy_from_slice(&self.spans.returns);
                    }
                }
                _ => storage.read(*column, &self.rows, field.data_mut())?,
            }
        }
        Ok(())
    }
}
