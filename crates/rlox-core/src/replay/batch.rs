//! What was sampled.

use super::gather::Column;
use super::layout::Layout;
use super::n_step::{NStep, Spans};
use super::storage::ReplayStorage;
use crate::{Error, Field, FieldData, FieldMut, Result, memory};

/// Which parts of observations are the goal that was reached, and the one to reach, by their numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Relabel {
    /// The goal that was reached.
    pub achieved: usize,
    /// The goal to reach, in whose place others are put.
    pub desired: usize,
}

/// Which transitions were chosen.
#[derive(Clone, Debug, Default)]
pub struct Chosen {
    pub(crate) indices: Vec<usize>,
    pub(crate) weights: Vec<f32>,
    rows: Vec<usize>,
    spans: Spans,
    n_step: Option<NStep>,
    /// The transitions whose next observations hold the goals of the first ones, and their rows.
    pub(crate) goals: Vec<usize>,
    goal_rows: Vec<usize>,
    pub(crate) relabel: Option<Relabel>,
    /// The transitions themselves, where they had to be read from a file.
    pub(crate) records: Vec<u8>,
    /// How many rows the storage has, and how many transitions it had taken; none before all of them are found.
    of: Option<(usize, usize)>,
}

impl Chosen {
    /// The transitions' numbers, `[B]`.
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
        if self.n_step.is_some() { &self.spans.discounts } else { &[] }
    }

    /// How many of them, the first ones, have another goal than the one that was meant.
    pub fn relabelled(&self) -> usize {
        self.goals.len()
    }

    /// Bytes of memory, which the next choice uses again.
    pub fn memory(&self) -> usize {
        let numbers = [&self.indices, &self.rows, &self.goals, &self.goal_rows].map(memory::of);
        let own = numbers.iter().sum::<usize>() + memory::of(&self.weights) + memory::of(&self.records);
        own + self.spans.memory()
    }

    /// Room for so many.
    pub(crate) fn prepare(&mut self, count: usize) -> Result<()> {
        self.of = None;
        self.records.clear();
        self.spans.clear();
        self.goals.clear();
        self.relabel = None;
        let missing = count.saturating_sub(self.indices.len());
        memory::grow("batch_size", &mut self.indices, missing)?;
        let missing = count.saturating_sub(self.weights.len());
        memory::grow("batch_size", &mut self.weights, missing)?;
        self.indices.resize(count, 0);
        self.weights.resize(count, 1.0);
        Ok(())
    }

    /// Finds where those are whose numbers are there.
    pub(crate) fn locate(&mut self, storage: &ReplayStorage, n_step: Option<NStep>) -> Result<()> {
        storage.locate(&self.indices, &mut self.rows)?;
        storage.locate(&self.goals, &mut self.goal_rows)?;
        self.n_step = n_step;
        n_step.map_or(Ok(()), |steps| self.spans.find(storage, steps, &self.rows))?;
        self.of = Some(storage.laps());
        Ok(())
    }

    /// Reads the transitions whose numbers are there into records, each with what `read` appends to them.
    pub(crate) fn fetch(&mut self, read: impl FnOnce(&[usize], &mut Vec<u8>) -> Result<()>) -> Result<()> {
        self.records.clear();
        read(&self.indices, &mut self.records)?;
        self.of = Some((0, 0));
        Ok(())
    }

    /// Drops the transitions whose flag in `keep`, `[B]`, is false; the others stay in their order.
    ///
    /// # Errors
    /// [`Error::Shape`] for another number of flags.
    pub fn retain(&mut self, keep: &[bool]) -> Result<()> {
        crate::check_len("keep", keep.len(), self.indices.len())?;
        let (bytes, mut at) = (self.records.len() / keep.len().max(1), 0..);
        self.records.retain(|_| at.next().is_some_and(|at: usize| keep[at / bytes]));
        retain(&mut self.indices, keep);
        retain(&mut self.weights, keep);
        retain(&mut self.rows, keep);
        retain(&mut self.goals, keep);
        retain(&mut self.goal_rows, keep);
        self.spans.retain(keep);
        Ok(())
    }

    /// Whether all of them are found, and can be read.
    pub(crate) fn is_found(&self) -> bool {
        self.of.is_some()
    }

    fn check(&self, storage: &ReplayStorage) -> Result<()> {
        if self.of == Some(storage.laps()) {
            return Ok(());
        }
        let fix = "read what was chosen before the next push";
        Err(Error::config("chosen", "transitions of this storage as it is", "others", fix))
    }

    /// Copies one column of them, `[B, ...]`.
    ///
    /// # Errors
    /// Those of [`ReplayStorage::gather`], and [`crate::Error::Config`] for another storage, or one that has taken more
    /// since.
    pub fn read(&self, storage: &ReplayStorage, column: Column, out: FieldMut<'_>) -> Result<()> {
        self.check(storage)?;
        match (column, self.n_step, out) {
            (Column::Reward, Some(_), FieldMut::F32(rewards)) => {
                crate::check_len("out", rewards.len(), self.spans.returns.len())?;
                rewards.copy_from_slice(&self.spans.returns);
                Ok(())
            }
            (Column::Obs(part) | Column::NextObs(part), _, out) if self.is_relabelled(part) => {
                self.read_goals(storage, column, out)
            }
            (_, _, out) => storage.read(column, self.rows_of(storage, column), out),
        }
    }

    /// Whether a part of observations has other goals.
    fn is_relabelled(&self, part: usize) -> bool {
        self.relabel.is_some_and(|relabel| relabel.desired == part)
    }

    /// Copies the goals to reach: of the first transitions those that other steps reached.
    fn read_goals(&self, storage: &ReplayStorage, column: Column, out: FieldMut<'_>) -> Result<()> {
        let Some(relabel) = self.relabel else { return Ok(()) };
        let (count, rows) = (self.goal_rows.len(), self.rows_of(storage, column));
        let bytes = storage.memory_of(column, rows.len(), out)?;
        let (first, rest) = bytes.split_at_mut(bytes.len() / rows.len().max(1) * count);
        storage.read_bytes(Column::NextObs(relabel.achieved), &self.goal_rows, first)?;
        storage.read_bytes(column, &rows[count..], rest)
    }

    /// As [`Chosen::read`], of a column of booleans.
    ///
    /// # Errors
    /// Those of [`Chosen::read`].
    pub fn read_bools(&self, storage: &ReplayStorage, column: Column, out: &mut [bool]) -> Result<()> {
        self.check(storage)?;
        storage.read_bools(column, self.rows_of(storage, column), out)?;
        match column {
            Column::Obs(part) | Column::NextObs(part) if self.is_relabelled(part) => {
                let (relabel, each) =
                    (self.relabel.map_or(0, |relabel| relabel.achieved), out.len() / self.rows.len().max(1));
                let goals = &mut out[..each * self.goal_rows.len()];
                storage.read_bools(Column::NextObs(relabel), &self.goal_rows, goals)
            }
            _ => Ok(()),
        }
    }

    /// Where a column is read: what is told of next states is that of the last step, the rest that of the first.
    fn rows_of(&self, storage: &ReplayStorage, column: Column) -> &[usize] {
        let last = match column {
            Column::Obs(_) | Column::Action | Column::Reward => false,
            Column::NextObs(_) | Column::Terminated | Column::Truncated => true,
            Column::Extra(part) => storage.layout().extra.get(part).is_some_and(|part| part.name.starts_with("next_")),
        };
        if last && self.n_step.is_some() { &self.spans.ends } else { &self.rows }
    }

    pub(crate) fn clear(&mut self) {
        self.of = None;
        self.indices.clear();
        self.weights.clear();
        self.rows.clear();
        self.spans.clear();
        self.goals.clear();
        self.goal_rows.clear();
        self.records.clear();
    }
}

/// Drops the values whose flag is false; there may be more flags than values.
pub(super) fn retain<T>(values: &mut Vec<T>, keep: &[bool]) {
    let mut keep = keep.iter();
    values.retain(|_| keep.next().is_some_and(|keep| *keep));
}

/// A batch of B transitions, in memory that the next one can use again.
///
/// Its fields are `obs`, `next_obs`, `actions`, `rewards`, `terminated`, `truncated`, or as the [`super::Layout`] calls
/// them, each `[B, ...]`.
#[derive(Clone, Debug, Default)]
pub struct SampledBatch {
    pub(crate) chosen: Chosen,
    columns: Vec<Column>,
    fields: Vec<Field>,
}

impl SampledBatch {
    /// Forgets the transitions and keeps the memory.
    pub fn clear(&mut self) {
        self.chosen.clear();
        self.fields.iter_mut().for_each(Field::clear);
    }

    /// How many transitions there are.
    pub fn len(&self) -> usize {
        self.chosen.indices.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Which they are.
    pub fn chosen(&self) -> &Chosen {
        &self.chosen
    }

    /// The transitions' numbers, `[B]`.
    pub fn indices(&self) -> &[usize] {
        self.chosen.indices()
    }

    /// Importance weights, `[B]`.
    pub fn weights(&self) -> &[f32] {
        self.chosen.weights()
    }

    /// What the value of the next observation counts, `[B]`; empty without [`NStep`].
    pub fn discounts(&self) -> &[f32] {
        self.chosen.discounts()
    }

    /// A field by its name.
    pub fn field(&self, name: &str) -> Option<&Field> {
        self.fields.iter().find(|field| field.name() == name)
    }

    /// A field's elements, to be changed in place, as normalisation does.
    pub fn field_mut(&mut self, name: &str) -> Option<FieldMut<'_>> {
        self.fields.iter_mut().find(|field| field.name() == name).map(Field::data_mut)
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

    /// The flags of a field of booleans, a byte each; none if there is no such field.
    pub fn flags(&self, name: &str) -> &[u8] {
        match self.field(name).map(Field::data) {
            Some(FieldData::Bool(flags)) => flags,
            _ => &[],
        }
    }

    /// Room for so many transitions of a layout.
    pub(crate) fn prepare(&mut self, layout: &Layout, count: usize) -> Result<()> {
        if !self.fits(layout) {
            let columns = layout.columns();
            let made = columns.iter().map(|(name, shape, dtype, _)| Field::new(name.clone(), 0, shape, *dtype));
            self.fields = made.collect::<Result<_>>()?;
            self.columns = columns.into_iter().map(|(.., column)| column).collect();
        }
        for field in &mut self.fields {
            field.set_rows(count).map_err(|error| error.rename_argument("rows", "batch_size"))?;
        }
        self.chosen.prepare(count)
    }

    /// Whether the fields are those of a layout; asked without an allocation.
    fn fits(&self, layout: &Layout) -> bool {
        let next = |name: &str, part: &str| name.strip_prefix("next_") == Some(part);
        let fit = |(field, column): (&Field, &Column)| {
            let (part, named) = match *column {
                Column::Obs(i) => (layout.obs.get(i), false),
                Column::NextObs(i) => (layout.obs.get(i), true),
                Column::Action => (Some(&layout.action), false),
                Column::Extra(i) => (layout.extra.get(i), false),
                Column::Reward | Column::Terminated | Column::Truncated => return true,
            };
            part.is_some_and(|part| {
                let name = if named { next(field.name(), &part.name) } else { field.name() == part.name };
                name && (field.shape(), field.dtype()) == (&part.shape[..], part.dtype)
            })
        };
        self.fields.len() == 2 * layout.obs.len() + layout.extra.len() + 4
            && self.fields.iter().zip(&self.columns).all(fit)
    }

    /// Fills the fields with what `read` copies of each column.
    pub(crate) fn fill_by(&mut self, read: impl Fn(&Chosen, Column, FieldMut<'_>) -> Result<()>) -> Result<()> {
        let Self { chosen, columns, fields } = self;
        columns.iter().zip(fields).try_for_each(|(column, field)| read(chosen, *column, field.data_mut()))
    }
}
