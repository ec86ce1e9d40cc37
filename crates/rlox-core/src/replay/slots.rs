//! Rows of bytes that are taken and given back, beside a ring.

use crate::{Result, memory};

/// So many bytes more are asked for without a look at what is free, which takes some 20 us.
const SMALL: usize = 1 << 20;

/// Rows of one size. Memory grows with the most that were taken at once.
#[derive(Clone, Debug, Default)]
pub(crate) struct Slots {
    bytes_each: usize,
    /// How many there are, taken or not.
    rows: usize,
    data: Vec<u8>,
    free: Vec<u32>,
}

impl Slots {
    pub(crate) fn new(bytes_each: usize) -> Self {
        Self { bytes_each, ..Self::default() }
    }

    /// Makes room for so many more, of which an eighth of those there are come at once. `promised` bytes are somebody
    /// else's, who has not taken them from the system yet.
    ///
    /// # Errors
    /// [`crate::Error::Memory`] if the system grants none; nothing has changed then.
    pub(crate) fn reserve(&mut self, count: usize, promised: usize) -> Result<()> {
        if self.free.len() >= count {
            return Ok(());
        }
        let there = self.rows;
        let missing = count - self.free.len();
        let more = missing.max(there / 8);
        let total = there.saturating_add(more);
        if total > u32::MAX as usize {
            return Err(memory::refused("capacity", total, self.bytes_each));
        }
        let bytes = more.saturating_mul(self.bytes_each);
        if bytes > SMALL {
            let said =
                || format!("{more} observations beside a ring of which {promised} bytes are to come, which need");
            memory::check_named("capacity", 1, bytes.saturating_add(promised), said)?;
        }
        self.data.try_reserve_exact(bytes).map_err(|_| memory::refused("capacity", more, self.bytes_each))?;
        self.free.try_reserve(total).map_err(|_| memory::refused("capacity", total, 4))?;
        self.data.resize(self.data.len() + bytes, 0);
        self.rows = total;
        self.free.extend((there as u32..total as u32).rev());
        Ok(())
    }

    /// Makes room for so many rows in all.
    ///
    /// # Errors
    /// Those of [`Slots::reserve`].
    pub(crate) fn reserve_all(&mut self, count: usize, promised: usize) -> Result<()> {
        self.reserve(count.saturating_sub(self.taken()), promised)?;
        // A copy has room only for what was free.
        let more = self.rows - self.free.len();
        self.free.try_reserve(more).map_err(|_| memory::refused("capacity", self.rows, 4))
    }

    /// Takes all rows back, and then gives them in their order.
    pub(crate) fn give_all_back(&mut self) {
        let rows = self.rows as u32;
        self.free.clear();
        self.free.extend((0..rows).rev());
    }

    /// A row of one's own, of those that [`Slots::reserve`] made room for.
    pub(crate) fn take(&mut self) -> u32 {
        self.free.pop().unwrap_or_else(|| {
            // More than was reserved: another row must not be given away twice.
            let there = self.rows;
            self.data.resize(self.data.len() + self.bytes_each, 0);
            self.rows += 1;
            there as u32
        })
    }

    /// The row that was taken as the one of this number since all were given back.
    pub(crate) fn given_mut(&mut self, number: usize) -> &mut [u8] {
        &mut self.data[number * self.bytes_each..][..self.bytes_each]
    }

    /// How many rows are taken.
    pub(crate) fn taken(&self) -> usize {
        self.rows - self.free.len()
    }

    pub(crate) fn give_back(&mut self, slot: u32) {
        self.free.push(slot);
    }

    pub(crate) fn row(&self, slot: u32) -> &[u8] {
        &self.data[slot as usize * self.bytes_each..][..self.bytes_each]
    }

    pub(crate) fn row_mut(&mut self, slot: u32) -> &mut [u8] {
        &mut self.data[slot as usize * self.bytes_each..][..self.bytes_each]
    }

    /// Bytes of memory.
    pub(crate) fn bytes(&self) -> usize {
        self.data.len() + 4 * self.free.capacity()
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;
    use crate::{Error, available_memory};

    #[test]
    fn what_is_promised_to_others_is_not_given_away() {
        let Some(free) = available_memory() else { return };
        let mut slots = Slots::new(1 << 20);
        let rejected = crate::testing::assert_rejects(slots.reserve(2, free as usize), Error::Memory, "capacity");
        assert!(rejected.got.contains("beside a ring"), "{rejected}");
        assert_eq!((slots.bytes(), slots.taken()), (0, 0));
        slots.reserve(2, 0).unwrap();
        assert!(slots.bytes() >= 2 << 20);
    }
}
